"""Which GGUF architectures run, as which transformers model. Pure Python.

Names of modules are transformers'; what the file calls their weights, and how the converter of llama.cpp
changed them, is here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from inference.model import gguf_bridge_configs as bridge
from inference.model import gguf_configs as ours
from inference.model.gguf_config_parts import ConfigBuilder, plain_config

_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GLM_NORMS = {
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}
_PER_LAYER = {
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale",
}
_EXPERTS = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_up_proj": "ffn_gate_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
_SHARED_EXPERT = {
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}


@dataclass(frozen=True, slots=True)
class Family:
    """How one GGUF architecture becomes a transformers model.

    Attributes:
        module: Package under transformers.models.
        config_class: Name of the config there.
        model_class: Name of the causal model there.
        build_config: Makes the config's arguments.
        layer_names: Where it differs from the usual names, transformers' to GGUF's; of experts the first
            of two tensors that are one here.
        spec_family: Which of our decoder's families it is; None for the bridge alone.
        interleaves_rotary: Rows of q and k lie in pairs (2i, 2i + 1), as llama.cpp's rotary
            embedding wants them, instead of in halves.
        adds_one_to_norms: The file holds 1 + weight for norms.
        uses_longrope: Factors for short and long contexts are tensors of the file.
        is_ours_alone: transformers' model holds the weights in another form: no bridge.
    """

    module: str
    config_class: str
    model_class: str
    build_config: ConfigBuilder
    layer_names: Mapping[str, str] = field(default_factory=dict)
    spec_family: str | None = None
    interleaves_rotary: bool = False
    adds_one_to_norms: bool = False
    uses_longrope: bool = False
    is_ours_alone: bool = False


_LLAMA = Family(
    "llama", "LlamaConfig", "LlamaForCausalLM", ours.llama_config, spec_family="llama",
    interleaves_rotary=True,
)  # fmt: skip
_QWEN2 = Family("qwen2", "Qwen2Config", "Qwen2ForCausalLM", ours.qwen2_config, spec_family="qwen2")
_QWEN3 = Family("qwen3", "Qwen3Config", "Qwen3ForCausalLM", ours.qwen3_config, spec_family="qwen3")

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "internlm2": _LLAMA,
    "exaone": Family(
        "llama", "LlamaConfig", "LlamaForCausalLM", ours.llama_config, spec_family="llama"
    ),
    "qwen2": _QWEN2,
    "qwen2vl": _QWEN2,  # of text alone all three places of a token are one
    "qwen3": _QWEN3,
    "qwen3vl": _QWEN3,
    "mistral3": Family(
        "ministral3", "Ministral3Config", "Ministral3ForCausalLM", ours.mistral3_config,
        spec_family="ministral3", interleaves_rotary=True,
    ),
    "gemma": Family(
        "gemma", "GemmaConfig", "GemmaForCausalLM", plain_config, spec_family="gemma",
        adds_one_to_norms=True,
    ),
    "gemma2": Family(
        "gemma2", "Gemma2Config", "Gemma2ForCausalLM", ours.gemma2_config, _POST_NORMS,
        spec_family="gemma2", adds_one_to_norms=True,
    ),
    "gemma3": Family(
        "gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", ours.gemma3_config, _POST_NORMS,
        spec_family="gemma3", adds_one_to_norms=True,
    ),
    "gemma4": Family(
        "gemma4", "Gemma4TextConfig", "Gemma4ForCausalLM", ours.gemma4_config, {**_POST_NORMS, **_PER_LAYER},
        spec_family="gemma4", is_ours_alone=True,
    ),
    "phi3": Family(
        "phi3", "Phi3Config", "Phi3ForCausalLM", ours.phi3_config, spec_family="phi3",
        uses_longrope=True,
    ),
    "granite": Family(
        "granite", "GraniteConfig", "GraniteForCausalLM", ours.granite_config,
        spec_family="granite", interleaves_rotary=True,
    ),
    "olmo2": Family(
        "olmo2", "Olmo2Config", "Olmo2ForCausalLM", ours.olmo2_config, _POST_NORMS,
        spec_family="olmo2",
    ),
    "smollm3": Family(
        "smollm3", "SmolLM3Config", "SmolLM3ForCausalLM", ours.smollm3_config,
        spec_family="smollm3", interleaves_rotary=True,
    ),
    "exaone4": Family(
        "exaone4", "Exaone4Config", "Exaone4ForCausalLM", ours.exaone4_config, _POST_NORMS,
        spec_family="exaone4",
    ),
    "glm4": Family(
        "glm4", "Glm4Config", "Glm4ForCausalLM", ours.glm4_config, _GLM_NORMS, spec_family="glm4"
    ),
    "seed_oss": Family(
        "seed_oss", "SeedOssConfig", "SeedOssForCausalLM", ours.seed_oss_config,
        {"post_attention_layernorm": "post_attention_norm"}, spec_family="seed_oss",
    ),
    "ernie4_5": Family(
        "ernie4_5", "Ernie4_5Config", "Ernie4_5ForCausalLM", ours.ernie4_5_config,
        spec_family="ernie4_5",
    ),
    "arcee": Family(
        "arcee", "ArceeConfig", "ArceeForCausalLM", bridge.arcee_config, interleaves_rotary=True
    ),
    "hunyuan-dense": Family(
        "hunyuan_v1_dense", "HunYuanDenseV1Config", "HunYuanDenseV1ForCausalLM",
        bridge.hunyuan_config,
        {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
    ),
    "starcoder2": Family(
        "starcoder2", "Starcoder2Config", "Starcoder2ForCausalLM", bridge.starcoder2_config,
        {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    ),
    "stablelm": Family(
        "stablelm", "StableLmConfig", "StableLmForCausalLM", bridge.stablelm_config
    ),
    "nemotron": Family(
        "nemotron", "NemotronConfig", "NemotronForCausalLM", bridge.nemotron_config,
        adds_one_to_norms=True,
    ),
    "olmo": Family(
        "olmo", "OlmoConfig", "OlmoForCausalLM", bridge.olmo_config, interleaves_rotary=True
    ),
    "command-r": Family("cohere", "CohereConfig", "CohereForCausalLM", bridge.cohere_config),
    "cohere2": Family("cohere2", "Cohere2Config", "Cohere2ForCausalLM", bridge.cohere2_config),
    "qwen2moe": Family(
        "qwen2_moe", "Qwen2MoeConfig", "Qwen2MoeForCausalLM", ours.qwen2_moe_config,
        {**_EXPERTS, **_SHARED_EXPERT}, spec_family="qwen2_moe",
    ),
    "qwen3moe": Family(
        "qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", ours.qwen3_moe_config, _EXPERTS,
        spec_family="qwen3_moe",
    ),
    "olmoe": Family(
        "olmoe", "OlmoeConfig", "OlmoeForCausalLM", ours.olmoe_config, _EXPERTS,
        spec_family="olmoe",
    ),
    "granitemoe": Family(
        "granitemoe", "GraniteMoeConfig", "GraniteMoeForCausalLM", ours.granite_moe_config,
        {
            "block_sparse_moe.router": "ffn_gate_inp",
            "block_sparse_moe.experts.gate_up_proj": "ffn_gate_exps",
            "block_sparse_moe.experts.down_proj": "ffn_down_exps",
        },
        spec_family="granitemoe", interleaves_rotary=True,
    ),
    "gpt-oss": Family(
        "gpt_oss", "GptOssConfig", "GptOssForCausalLM", ours.gpt_oss_config,
        {"post_attention_layernorm": "post_attention_norm"}, spec_family="gpt_oss", is_ours_alone=True,
    ),
}  # fmt: skip

GEMMA4_EXPERTS = replace(
    FAMILIES["gemma4"], build_config=ours.gemma4_moe_config, spec_family="gemma4_moe"
)
MIXTRAL = Family(
    "mixtral", "MixtralConfig", "MixtralForCausalLM", ours.mixtral_config, _EXPERTS, spec_family="mixtral",
    interleaves_rotary=True,
)  # fmt: skip
BIASED_LLAMA = Family(  # on query, key and value alone: what transformers calls Qwen 2
    "qwen2", "Qwen2Config", "Qwen2ForCausalLM", ours.qwen2_config, spec_family="qwen2",
    interleaves_rotary=True,
)  # fmt: skip
OLMO3 = Family(
    "olmo3", "Olmo3Config", "Olmo3ForCausalLM", ours.olmo3_config, _POST_NORMS, spec_family="olmo3"
)
