"""What sets one family of models apart from Llama. Pure Python; the families are in `spec_families`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from inference.model.spec import PLE_MATRICES, SHARED_MATRICES, QueryKeyNorm, Role

Biases = Literal["never", "query_key_value", "query_key_value_as_configured", "as_configured"]
Windows = Literal["none", "every_layer", "some_layers", "some_layers_if_asked"]
Unturned = Literal["none", "as_listed", "full_layers_beside_sliding"]
Fused = Literal["nothing", "mlp", "attention_and_mlp"]
Sizes = Literal["alike", "by_kind"]


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
