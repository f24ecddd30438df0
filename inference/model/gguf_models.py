"""Which GGUF architectures run, as which transformers model, and where each weight comes from.

Pure Python. The weights of a module are looked up by transformers' name; what the file calls them,
and how the converter of llama.cpp changed them, is here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from inference.formats.gguf import GgufFile
from inference.model.gguf_configs import (
    ConfigBuilder,
    ConfigValues,
    gemma2_config,
    gemma3_config,
    granite_config,
    llama_config,
    olmo2_config,
    phi3_config,
    plain_config,
    qwen2_config,
    qwen3_config,
)
from inference.model.gguf_metadata import GgufMetadata

Change = Literal["none", "interleaved_q", "interleaved_k", "one_added"]

ROPE_FREQS = "rope_freqs.weight"
ROPE_FACTORS_LONG = "rope_factors_long.weight"
ROPE_FACTORS_SHORT = "rope_factors_short.weight"

_TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass(frozen=True, slots=True)
class Family:
    """How one GGUF architecture becomes a transformers model.

    Attributes:
        module: Package under transformers.models.
        config_class: Name of the config there.
        model_class: Name of the causal model there.
        build_config: Makes the config's arguments.
        layer_names: Where it differs from the usual names, transformers' to GGUF's.
        interleaves_rotary: Rows of q and k lie in pairs (2i, 2i + 1), as llama.cpp's rotary
            embedding wants them, instead of in halves.
        adds_one_to_norms: The file holds 1 + weight for norms.
        uses_longrope: Factors for short and long contexts are tensors of the file.
    """

    module: str
    config_class: str
    model_class: str
    build_config: ConfigBuilder
    layer_names: Mapping[str, str] = field(default_factory=dict)
    interleaves_rotary: bool = False
    adds_one_to_norms: bool = False
    uses_longrope: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family(
        "llama", "LlamaConfig", "LlamaForCausalLM", llama_config, interleaves_rotary=True
    ),
    "qwen2": Family("qwen2", "Qwen2Config", "Qwen2ForCausalLM", qwen2_config),
    "qwen3": Family("qwen3", "Qwen3Config", "Qwen3ForCausalLM", qwen3_config),
    "gemma": Family(
        "gemma", "GemmaConfig", "GemmaForCausalLM", plain_config, adds_one_to_norms=True
    ),
    "gemma2": Family(
        "gemma2", "Gemma2Config", "Gemma2ForCausalLM", gemma2_config, _POST_NORMS,
        adds_one_to_norms=True,
    ),
    "gemma3": Family(
        "gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", gemma3_config, _POST_NORMS,
        adds_one_to_norms=True,
    ),
    "phi3": Family("phi3", "Phi3Config", "Phi3ForCausalLM", phi3_config, uses_longrope=True),
    "granite": Family(
        "granite", "GraniteConfig", "GraniteForCausalLM", granite_config, interleaves_rotary=True
    ),
    "olmo2": Family("olmo2", "Olmo2Config", "Olmo2ForCausalLM", olmo2_config, _POST_NORMS),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WeightSource:
    """Where one parameter comes from.

    Attributes:
        tensor_name: In the GGUF file.
        change: What the converter did to it, to be undone.
    """

    tensor_name: str
    change: Change


@dataclass(frozen=True, slots=True)
class GgufPlan:
    """What to build for one file.

    Attributes:
        architecture: The file's word.
        family: How it maps to transformers.
        config: Arguments of the config class.
    """

    architecture: str
    family: Family
    config: ConfigValues

    def source(self, parameter_name: str) -> WeightSource:
        """Find the tensor for one of transformers' parameter names."""
        stem, _, kind = parameter_name.rpartition(".")
        top = _TOP_NAMES.get(stem)
        if top is not None:
            return WeightSource(f"{top}.{kind}", self._change(top, kind))
        _, _, layer_id, part = stem.split(".", 3)
        name = self.family.layer_names.get(part) or _LAYER_NAMES[part]
        return WeightSource(f"blk.{layer_id}.{name}.{kind}", self._change(name, kind))

    def is_known_tensor(self, tensor_name: str) -> bool:
        """Whether a tensor has a use beside the parameters: factors of the rotary embedding."""
        if tensor_name in (ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT):
            return self.family.uses_longrope
        return tensor_name == ROPE_FREQS

    def _change(self, name: str, kind: str) -> Change:
        if self.family.adds_one_to_norms and name.endswith("norm") and kind == "weight":
            return "one_added"
        if self.family.interleaves_rotary and name == "attn_q":
            return "interleaved_q"
        if self.family.interleaves_rotary and name == "attn_k":
            return "interleaved_k"
        return "none"


def plan_model(file: GgufFile) -> GgufPlan:
    """Decide what to build for a GGUF file.

    Raises:
        ModelFileError: Required metadata is missing or contradicts the tensors.
        UnsupportedModelError: The architecture, or a variant of it, is not known here.
    """
    meta = GgufMetadata(file.metadata, file.tensors, file.path)
    family = FAMILIES.get(meta.architecture)
    if meta.architecture in ("clip", "mmproj"):
        raise meta.unsupported("This is the image part of a model, without the language model.")
    if family is None:
        raise meta.unsupported(
            f"The architecture {meta.architecture[:60]!r} is not known. Quire opens GGUF files of "
            f"{', '.join(sorted(FAMILIES))}."
        )
    return GgufPlan(meta.architecture, family, family.build_config(meta))
