"""What to build for one GGUF file, and where each weight comes from. Pure Python."""

import re
from dataclasses import dataclass
from typing import Literal

from inference.formats.gguf import GgufFile
from inference.model.gguf_config_parts import ConfigValues
from inference.model.gguf_families import (
    BIASED_LLAMA,
    FAMILIES,
    GEMMA4_EXPERTS,
    MIXTRAL,
    OLMO3,
    Family,
)
from inference.model.gguf_metadata import GgufMetadata
from inference.model.size_limits import MAX_EXPERTS

Change = Literal["none", "interleaved_q", "interleaved_k", "one_added", "joined"]

ROPE_FREQS = "rope_freqs.weight"
ROPE_FACTORS_LONG = "rope_factors_long.weight"
ROPE_FACTORS_SHORT = "rope_factors_short.weight"

_TOP_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Layers that attend to keys and values of others have these in some files, for nothing.
_OF_KEYS = re.compile(r"blk\.(\d{1,6})\.attn_(?:k|v|k_norm)\.weight")
GATES_OF_EXPERTS = "ffn_gate_exps"
UPS_OF_EXPERTS = "ffn_up_exps"
FUSED_EXPERTS = "ffn_gate_up_exps"  # of each expert its gate's rows, then those of up


@dataclass(frozen=True, slots=True)
class WeightSource:
    """Where one parameter comes from.

    Attributes:
        tensor_name: In the GGUF file.
        change: What the converter did to it, to be undone.
        joined_name: A second tensor, whose rows follow those of the first, for each expert; if any.
    """

    tensor_name: str
    change: Change
    joined_name: str | None = None

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """All tensors of the file that it takes."""
        return (
            (self.tensor_name,)
            if self.joined_name is None
            else (self.tensor_name, self.joined_name)
        )

    def tensor_shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The tensors that a parameter of that shape is made of."""
        if self.joined_name is None:
            return {self.tensor_name: shape}
        experts, rows, columns = shape
        return dict.fromkeys(self.tensor_names, (experts, rows // 2, columns))


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
        if kind not in ("weight", "bias"):  # experts are no modules
            stem, kind = parameter_name, "weight"
        _, _, layer_id, part = stem.split(".", 3)
        name = self.family.layer_names.get(part) or _LAYER_NAMES[part]
        prefix = f"blk.{layer_id}"
        if name == GATES_OF_EXPERTS:
            return WeightSource(
                f"{prefix}.{name}.{kind}", "joined", f"{prefix}.{UPS_OF_EXPERTS}.{kind}"
            )
        return WeightSource(f"{prefix}.{name}.{kind}", self._change(name, kind))

    def is_known_tensor(self, tensor_name: str) -> bool:
        """Whether a tensor may be there beside the parameters: factors of the rotary embedding, unused keys."""
        of_keys = _OF_KEYS.fullmatch(tensor_name)
        if of_keys is not None:
            return int(of_keys[1]) in self._layers_without_keys
        if tensor_name in (ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT):
            return self.family.uses_longrope
        return tensor_name == ROPE_FREQS

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return "num_experts_per_tok" in self.config

    @property
    def has_fused_experts(self) -> bool:
        """Whether gate and up of its experts are one tensor."""
        return self.config.get("has_fused_experts") is True

    @property
    def _layers_without_keys(self) -> range:
        num_layers, num_shared = (
            int(str(self.config.get(key, 0)))
            for key in ("num_hidden_layers", "num_kv_shared_layers")
        )
        return range(num_layers - num_shared, num_layers)

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
    family = _find_family(meta)
    if meta.architecture in ("clip", "mmproj"):
        raise meta.unsupported("This is the image part of a model, without the language model.")
    if family is None:
        raise meta.unsupported(
            f"The architecture {meta.architecture[:60]!r} is not one of the {len(FAMILIES)} that Quire "
            "opens from GGUF, such as llama, qwen3, gemma3, phi3 and granite."
        )
    return GgufPlan(meta.architecture, family, family.build_config(meta))


def _find_family(meta: GgufMetadata) -> Family | None:
    """Four kinds of models have no word of their own."""
    has_experts = meta.integer("expert_count", 0, within=(0, MAX_EXPERTS)) > 0
    if meta.architecture == "gemma4" and has_experts:
        return GEMMA4_EXPERTS
    if meta.architecture in ("llama", "internlm2"):
        if has_experts:
            return MIXTRAL
        has_biases, has_output_bias = (
            f"blk.0.attn_{name}.bias" in meta.tensors for name in ("q", "output")
        )
        if has_biases and not has_output_bias:
            return BIASED_LLAMA
    if meta.architecture == "olmo2" and meta.has("attention.sliding_window"):
        return OLMO3
    return FAMILIES.get(meta.architecture)
