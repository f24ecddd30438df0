"""The families that a `ModelSpec` can describe, and how they differ. Pure Python.

Names of values are those of transformers' configs. Models are stored without values that newer releases
added, so what a config class would assume for them is here too, as `defaults`.
"""

from dataclasses import replace

from inference.model.spec import Activation, Role
from inference.model.spec_family import Family

# Where norms follow attention and MLP too, "post_attention_layernorm" is what it says.
_POST_NORM_NAMES: dict[Role, str] = {
    "post_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
_GLM_NORM_NAMES: dict[Role, str] = {
    "post_attention_norm": "post_self_attn_layernorm",
    "post_mlp_norm": "post_mlp_layernorm",
}

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "clamped_swish": "clamped_swish",  # our word: transformers has it in the family's code
}

OLMO3_ROPE_BASE = 500_000.0
_DEFAULTS: dict[str, object] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_GEMMA: dict[str, object] = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "head_dim": 256,
}
_GEMMA_2: dict[str, object] = {
    **_GEMMA,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}

FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", _DEFAULTS, may_have_mlp_biases=True),
    "mistral": Family(
        "MistralForCausalLM",
        {**_DEFAULTS, "sliding_window": 4096, "num_key_value_heads": 8},
        attention_biases="never",
        windows="every_layer",
    ),
    "ministral3": Family(
        "Ministral3ForCausalLM",
        {
            **_DEFAULTS,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1_000_000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 16_384,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        attention_biases="never",
        windows="every_layer",
        may_grow_queries=True,
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        {**_DEFAULTS, "sliding_window": 4096, "max_window_layers": 28, "num_key_value_heads": 32},
        attention_biases="query_key_value",
        windows="some_layers_if_asked",
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        {
            **_DEFAULTS,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "num_key_value_heads": 32,
            "head_dim": 128,
        },
        windows="some_layers_if_asked",
        query_key_norm="head",
    ),
    "gemma": Family(
        "GemmaForCausalLM",
        {**_GEMMA, "num_key_value_heads": 16, "hidden_act": "gelu_pytorch_tanh"},
        adds_one_to_norms=True,
        scales_embedding=True,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        {**_GEMMA_2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        activation_key="hidden_activation",
        windows="some_layers",
        window_period=2,
        has_post_norms=True,
        norm_names=_POST_NORM_NAMES,
        adds_one_to_norms=True,
        scales_embedding=True,
        scales_by_scalar=True,
        has_attention_softcap=True,
        has_logit_softcap=True,
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        _GEMMA_2,
        activation_key="hidden_activation",
        windows="some_layers",
        window_period=6,
        window_period_key="sliding_window_pattern",
        has_ropes_by_kind=True,
        query_key_norm="head",
        has_post_norms=True,
        norm_names=_POST_NORM_NAMES,
        adds_one_to_norms=True,
        scales_embedding=True,
        scales_by_scalar=True,
        has_logit_softcap=True,
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        {**_DEFAULTS, "rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
        attention_biases="never",
        windows="every_layer",
        fused="attention_and_mlp",
        may_turn_partly=True,
    ),
    "granite": Family(
        "GraniteForCausalLM", _DEFAULTS, may_have_mlp_biases=True, has_multipliers=True
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        {**_DEFAULTS, "rms_norm_eps": 1e-5},
        query_key_norm="whole",
        has_pre_norms=False,
        has_post_norms=True,
        norm_names=_POST_NORM_NAMES,
    ),
    "olmo3": Family(
        "Olmo3ForCausalLM",
        {
            **_DEFAULTS,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "rope_theta": OLMO3_ROPE_BASE,
        },
        windows="some_layers",
        window_period=4,
        has_ropes_by_kind=True,
        query_key_norm="whole",
        has_pre_norms=False,
        has_post_norms=True,
        norm_names=_POST_NORM_NAMES,
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        {
            **_DEFAULTS,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "rope_theta": 2_000_000.0,
        },
        may_have_mlp_biases=True,
        unturned="as_listed",
    ),
    "exaone4": Family(
        "Exaone4ForCausalLM",
        {**_DEFAULTS, "rms_norm_eps": 1e-5, "num_key_value_heads": 32, "sliding_window": 4096},
        attention_biases="never",
        windows="some_layers",
        window_period=4,
        window_period_key="sliding_window_pattern",
        unturned="full_layers_beside_sliding",
        query_key_norm="head",
        has_pre_norms=False,
        has_post_norms=True,
        norm_names=_POST_NORM_NAMES,
    ),
    "glm4": Family(
        "Glm4ForCausalLM",
        {
            **_DEFAULTS,
            "rms_norm_eps": 0.00000015625,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "attention_bias": True,
            "partial_rotary_factor": 0.5,
        },
        attention_biases="query_key_value_as_configured",
        has_post_norms=True,
        norm_names=_GLM_NORM_NAMES,
        fused="mlp",
        rotates_pairs=True,
        may_turn_partly=True,
    ),
    "seed_oss": Family(
        "SeedOssForCausalLM",
        {**_DEFAULTS, "num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
        attention_biases="query_key_value_as_configured",
        refused_flags=("attention_out_bias", "mlp_bias"),
    ),
    "ernie4_5": Family(
        "Ernie4_5ForCausalLM",
        {
            **_DEFAULTS,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "tie_word_embeddings": True,
            "rope_theta": 500_000.0,
        },
        attention_biases="never",
        rotates_pairs=True,
        refused_flags=("use_bias",),
    ),
    # Of these GGUF files alone are read, whose metadata lack nothing.
    "mixtral": Family("MixtralForCausalLM", _DEFAULTS, attention_biases="never", has_experts=True),
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM",
        _DEFAULTS,
        attention_biases="query_key_value",
        has_experts=True,
        shares_an_expert=True,
    ),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", _DEFAULTS, query_key_norm="head", has_experts=True),
    "olmoe": Family("OlmoeForCausalLM", _DEFAULTS, query_key_norm="whole", has_experts=True),
    "granitemoe": Family(
        "GraniteMoeForCausalLM", _DEFAULTS, has_multipliers=True, has_experts=True
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        _DEFAULTS,
        windows="some_layers",
        window_period=2,
        has_experts=True,
        has_expert_biases=True,
        has_sinks=True,
    ),
}

FAMILIES["gemma4"] = replace(
    FAMILIES["gemma3"],
    model_class="Gemma4ForCausalLM",
    defaults={
        **_GEMMA_2,
        "global_head_dim": 512,
        "query_pre_attn_scalar": 1,  # scores are as they are
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
    },
    window_period_key=None,
    adds_one_to_norms=False,
    layer_sizes="by_kind",
    has_value_norm=True,
    may_have_ple=True,
    has_layer_scales=True,
    refused_flags=("enable_moe_block",),
)
FAMILIES["gemma4_moe"] = replace(
    FAMILIES["gemma4"], has_experts=True, has_mlp_beside_experts=True, refused_flags=()
)

FAMILY_OF_MODEL_TYPE: dict[str, str] = {
    # Those words of Gemma's name models with images; folders hold each expert for itself.
    **{
        name: name
        for name, family in FAMILIES.items()
        if name not in ("gemma3", "gemma4") and not family.has_experts
    },
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
}
