"""The families that a `ModelSpec` can describe, and how they differ. Pure Python.

Names of values are those of transformers' configs. Models are stored without values that newer releases
added, so what a config class would assume for them is here too, as `defaults`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from inference.model.spec import PLE_MATRICES, SHARED_MATRICES, Activation, QueryKeyNorm, Role

Biases = Literal["never", "query_key_value", "query_key_value_as_configured", "as_configured"]
Windows = Literal["none", "every_layer", "some_layers", "some_layers_if_asked"]
Unturned = Literal["none", "as_listed", "full_layers_beside_sliding"]
Fused = Literal["nothing", "mlp", "attention_and_mlp"]
Sizes = Literal["alike", "by_kind"]

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


@dataclass(frozen=True, slots=True)
class Family:
    """What sets one architecture apart from Llama.

    Attributes:
        model_class: transformers' causal model.
        defaults: Values that a configuration may lack.
        activation_key: Where the activation's name is.
        attention_biases: Which projections of the attention have one.
        may_have_mlp_biases: Whether "mlp_bias" counts.
        windows: Which layers look back only over "sliding_window"; it is asked for with
            "use_sliding_window".
        window_period: Without "layer_types", the last of so many layers sees everything.
        window_period_key: Where a configuration may have another number.
        query_key_norm: Norms on queries and keys.
        has_pre_norms: Norms before attention and MLP.
        has_post_norms: Norms on their results.
        adds_one_to_norms: Stored norms lack one.
        norm_names: transformers' names of norms, where they are not Llama's.
        fused: Whether one matrix holds gate and up, and one query, key and value.
        rotates_pairs: Rows of queries and keys lie in pairs (2i, 2i + 1), as they are turned.
        unturned: Which layers have no rotary embedding: those whose number in "no_rope_layers" is 0,
            or those that see everything where others have a window.
        has_ropes_by_kind: One rotary embedding for full layers, one for sliding ones.
        scales_embedding: By the root of the width.
        scales_by_scalar: Scores are divided by the root of "query_pre_attn_scalar".
        has_multipliers: Granite's four.
        has_attention_softcap: Whether "attn_logit_softcapping" counts.
        has_logit_softcap: Whether "final_logit_softcapping" counts.
        may_turn_partly: Whether "partial_rotary_factor" counts.
        has_experts: A mixture of experts in each layer.
        shares_an_expert: All tokens use one expert more.
        has_expert_biases: Router and experts have biases.
        has_sinks: A score without a value joins each softmax.
        may_grow_queries: Whether "llama_4_scaling_beta" of the rotary parameters counts.
        layer_sizes: Whether full layers have heads of another size than sliding ones, the last layers share
            keys and values, and so on: see `spec_layers`.
        has_value_norm: A norm without a weight on each value.
        may_have_ple: Whether "hidden_size_per_layer_input" counts.
        has_layer_scales: A number on the residual stream behind each layer, unless "has_layer_scales" says no.
        has_mlp_beside_experts: All tokens use an MLP beside the experts, and each has norms of its own; a
            factor on each expert's weight, unless "has_expert_scales" says no.
        refused_flags: Options that nobody is known to have set.
    """

    model_class: str
    defaults: Mapping[str, object] = field(default_factory=dict)
    activation_key: str = "hidden_act"
    attention_biases: Biases = "as_configured"
    may_have_mlp_biases: bool = False
    windows: Windows = "none"
    window_period: int | None = None
    window_period_key: str | None = None
    query_key_norm: QueryKeyNorm = "none"
    has_pre_norms: bool = True
    has_post_norms: bool = False
    adds_one_to_norms: bool = False
    norm_names: Mapping[Role, str] = field(default_factory=dict)
    fused: Fused = "nothing"
    rotates_pairs: bool = False
    unturned: Unturned = "none"
    has_ropes_by_kind: bool = False
    scales_embedding: bool = False
    scales_by_scalar: bool = False
    has_multipliers: bool = False
    has_attention_softcap: bool = False
    has_logit_softcap: bool = False
    may_turn_partly: bool = False
    has_experts: bool = False
    shares_an_expert: bool = False
    has_expert_biases: bool = False
    has_sinks: bool = False
    may_grow_queries: bool = False
    layer_sizes: Sizes = "alike"
    has_value_norm: bool = False
    may_have_ple: bool = False
    has_layer_scales: bool = False
    has_mlp_beside_experts: bool = False
    refused_flags: tuple[str, ...] = ()

    def layer_roles(
        self,
        *,
        attention_bias: bool,
        mlp_bias: bool,
        has_ple: bool,
        has_layer_scales: bool,
        has_expert_scales: bool,
    ) -> tuple[Role, ...]:
        """The weights of a layer, in the order of their use.

        Args:
            attention_bias: What the configuration says.
            mlp_bias: The same.
            has_ple: Whether there are per-layer embeddings.
            has_layer_scales: Whether the configuration has them.
            has_expert_scales: The same.
        """
        is_asked = self.attention_biases in ("as_configured", "query_key_value_as_configured")
        has_biases = self.attention_biases == "query_key_value" or (is_asked and attention_bias)
        has_output_bias = has_biases and self.attention_biases == "as_configured"
        has_mlp_biases = self.has_expert_biases or (mlp_bias and self.may_have_mlp_biases)
        parts: list[tuple[bool, tuple[Role, ...]]] = [
            (self.has_pre_norms, ("attention_norm",)),
            (True, ("query", "key", "value")),
            (has_biases, ("query_bias", "key_bias", "value_bias")),
            (self.query_key_norm != "none", ("query_norm", "key_norm")),
            (self.has_sinks, ("sinks",)),
            (True, ("output",)),
            (has_output_bias, ("output_bias",)),
            (self.has_post_norms, ("post_attention_norm",)),
            (self.has_pre_norms, ("mlp_norm",)),
            (self.has_mlp_beside_experts, (*SHARED_MATRICES, "post_shared_norm", "router_norm")),
            (self.has_experts, ("router",)),
            (self.has_mlp_beside_experts, ("expert_norm",)),
            (self.has_expert_biases, ("router_bias",)),
            (True, ("gate", "up")),
            (has_mlp_biases, ("gate_bias", "up_bias")),
            (True, ("down",)),
            (has_mlp_biases, ("down_bias",)),
            (self.has_mlp_beside_experts and has_expert_scales, ("expert_scale",)),
            (self.has_mlp_beside_experts, ("post_expert_norm",)),
            (self.shares_an_expert, ("shared_router", *SHARED_MATRICES)),
            (self.has_post_norms, ("post_mlp_norm",)),
            (has_ple, (*PLE_MATRICES, "post_ple_norm")),
            (self.has_layer_scales and has_layer_scales, ("layer_scale",)),
        ]
        return tuple(role for is_there, roles in parts if is_there for role in roles)


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
    "gemma4": Family(
        "Gemma4ForCausalLM",
        {
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "head_dim": 256,
            "global_head_dim": 512,
            "num_key_value_heads": 4,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 1,  # scores are as they are
            "sliding_window": 512,
            "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": 262_144,
        },
        activation_key="hidden_activation",
        windows="some_layers",
        window_period=6,
        has_ropes_by_kind=True,
        query_key_norm="head",
        has_post_norms=True,
        norm_names=_POST_NORM_NAMES,
        scales_embedding=True,
        scales_by_scalar=True,
        has_logit_softcap=True,
        layer_sizes="by_kind",
        has_value_norm=True,
        may_have_ple=True,
        has_layer_scales=True,
        refused_flags=("enable_moe_block",),
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
