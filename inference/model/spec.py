"""What a decoder-only transformer computes, as numbers alone. Pure Python.

One description for everyone who runs a model of the Llama kin: our decoder in torch, and the kernels
(their `qk_model` holds the same). With x of one token:

    x = embedding[token] * embedding_scale
    each layer:
        a = attention_norm(x)
        q, k, v = query(a), key(a), value(a)     biases; norms on q, k and v; rotary on q and k;
                                                 k less a fixed vector: `key_centres`;
                                                 q times what grows with its place: `QueryGrowth`
        x += residual_scale * post_attention_norm(output(attention(q, k, v)))
                                             sinks: a score for each head that joins its softmax, and
                                             has no value
        m = mlp_norm(x)
        x += residual_scale * post_mlp_norm(mlp(m)),    mlp(m) = down(activation(gate(m), up(m)))
        x += residual_scale * post_ple_norm(ple_output(activation(ple_gate(x), e)))
        x *= layer_scale
    logits = soft cap of (head(final_norm(x)) * logit_scale)

In a mixture of experts each has gate, up and down of its own, and mlp(m) is the sum of those that the
router chooses for the token, times their weights: `ExpertSpec`.

Per-layer embeddings (PLE, of Gemma 3n and 4) give each layer a vector e of the token itself. With x0 = x at
the first layer, those of all layers, one after the other, are

    (ple_norm(ple_projection(x0) / sqrt(hidden)) + ple_embedding[token] * sqrt(P)) / sqrt(2)

A part whose weight a model lacks is left out. All norms are RMS norms with plain weights: where a family
stores a norm's weight less one, the one is added when it is read.
"""

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

Activation = Literal["silu", "gelu_tanh", "clamped_swish"]
QueryKeyNorm = Literal["none", "head", "whole"]
Role = Literal[
    "embedding", "final_norm", "head",
    "ple_embedding", "ple_projection", "ple_norm",
    "attention_norm", "query", "key", "value", "output",
    "query_bias", "key_bias", "value_bias", "output_bias", "query_norm", "key_norm", "sinks",
    "post_attention_norm", "mlp_norm", "router", "router_bias",
    "gate", "up", "down", "gate_bias", "up_bias", "down_bias",
    "shared_router", "shared_gate", "shared_up", "shared_down", "post_mlp_norm",
    "router_norm", "expert_norm", "expert_scale", "post_shared_norm", "post_expert_norm",
    "ple_gate", "ple_output", "post_ple_norm", "layer_scale",
]  # fmt: skip

BIAS_OF: dict[Role, Role] = {
    "query": "query_bias",
    "key": "key_bias",
    "value": "value_bias",
    "output": "output_bias",
    "gate": "gate_bias",
    "up": "up_bias",
    "down": "down_bias",
}  # of each matrix of a layer

EMBEDDINGS: tuple[Role, ...] = ("embedding", "ple_embedding")  # of which a step reads a few rows
PLE_MATRICES: tuple[Role, ...] = ("ple_gate", "ple_output")  # of each layer
EXPERT_MATRICES: tuple[Role, ...] = ("gate", "up", "down")
SHARED_MATRICES: tuple[Role, ...] = ("shared_gate", "shared_up", "shared_down")
EXPERT_ROLES: tuple[Role, ...] = (
    *("router", "router_bias", "gate", "up", "down", "gate_bias", "up_bias", "down_bias"),
    *("shared_router", *SHARED_MATRICES, "router_norm", "expert_norm", "expert_scale"),
    *("post_shared_norm", "post_expert_norm"),
)  # of a layer with experts


class UnsupportedSpecError(Exception):
    """A model that no `ModelSpec` describes; another path must run it. Its text says why."""


class WeightKey(NamedTuple):
    """Names one weight.

    Attributes:
        role: What it is for.
        layer: Index of its layer; None for weights of the whole model.
    """

    role: Role
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """One rotary embedding: the pair i of a head is turned by position * inverse_frequencies[i].

    Attributes:
        inverse_frequencies: (rotary_dim / 2), float32 numbers.
        factor: On cosine and sine.
    """

    inverse_frequencies: tuple[float, ...]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer.

    Attributes:
        window: A token sees itself and the window - 1 tokens before it; None sees all.
        rope_index: Which of the model's rotary embeddings.
        num_kv_heads: KH; None is the model's.
        head_dim: D; None is the model's.
        mlp_size: Width inside the MLP; None is the model's.
        kv_layer: The earlier layer whose keys and values it attends to; None are its own. Behind such a
            layer none has its own.
        value_is_key: Values are the key's product, before its norm and its turning.
    """

    window: int | None = None
    rope_index: int = 0
    num_kv_heads: int | None = None
    head_dim: int | None = None
    mlp_size: int | None = None
    kv_layer: int | None = None
    value_is_key: bool = False

    def __repr__(self) -> str:
        told = [f"window={self.window}", f"rope_index={self.rope_index}"]
        told += [
            f"{each.name}={getattr(self, each.name)}"
            for each in fields(self)[2:]
            if getattr(self, each.name) != each.default
        ]
        return f"LayerSpec({', '.join(told)})"


class QueryGrowth(NamedTuple):
    """Queries at position p are multiplied by 1 + factor * log(1 + floor(p / num_tokens))."""

    factor: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """The experts of a layer, of which each token uses some.

    With p = softmax(router(m)) over all experts, a token uses those of the largest p, and p are their
    weights. An expert that all tokens share has the weight sigmoid(shared_router(m)).

    In Gemma 4 that weight is one; router and experts have norms of x for themselves, router_norm / sqrt(hidden)
    and expert_norm; a used expert's weight is times expert_scale; and what the shared one makes, and all others
    together, is normed by post_shared_norm and post_expert_norm before it is added.

    Attributes:
        count: E.
        num_used: How many a token uses.
        weights_sum_to_one: Whether the weights of the used ones are divided by their sum.
        shared_size: Width inside the expert that all share; 0 if there is none.
    """

    count: int
    num_used: int
    weights_sum_to_one: bool
    shared_size: int = 0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model without its weights.

    Attributes:
        family: Our word for the architecture, as in `spec_families`.
        vocab_size: V.
        hidden_size: Width of the residual stream.
        num_heads: H.
        num_kv_heads: KH; query head h reads h * KH // H.
        head_dim: D.
        mlp_size: Width inside the MLP, or inside each expert.
        layers: One for each layer.
        layer_roles: The weights that each layer has, in the order of their use.
        ropes: All of one length.
        activation: Of gate and up: silu(gate) * up, gelu(gate) * up, or gpt-oss's
            gate * sigmoid(1.702 gate) * (up + 1) with the gate at most 7 and up within +-7.
        query_key_norm: Over each head, or over all heads together.
        norm_epsilon: Added to the mean square.
        attention_scale: On scores.
        attention_softcap: Scores become cap * tanh(score / cap); None leaves them.
        logit_softcap: The same for logits, after logit_scale.
        embedding_scale: On the embedding's rows.
        residual_scale: On what attention and MLP add.
        logit_scale: On logits.
        is_head_tied: Whether the head is the embedding.
        context_tokens: What the model was made for.
        stable_context_tokens: Beyond this the rotary angles would change; None if they never do.
        experts: Of each layer; None if it has one MLP for all tokens.
        query_growth: None if queries do not grow.
        has_value_norm: Whether each head's value is divided by its root mean square.
        ple_size: P; 0 without per-layer embeddings.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    layers: tuple[LayerSpec, ...]
    layer_roles: tuple[Role, ...]
    ropes: tuple[RopeSpec, ...]
    activation: Activation
    query_key_norm: QueryKeyNorm
    norm_epsilon: float
    attention_scale: float
    is_head_tied: bool
    context_tokens: int
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    stable_context_tokens: int | None = None
    experts: ExpertSpec | None = None
    query_growth: QueryGrowth | None = None
    has_value_norm: bool = False
    ple_size: int = 0

    @property
    def text(self) -> str:
        """All of it that is not as it is in most models: so a new option names no old model anew."""
        told = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if getattr(self, each.name) != each.default
        ]
        return f"ModelSpec({', '.join(told)})"

    @property
    def num_layers(self) -> int:
        """How many layers."""
        return len(self.layers)

    @property
    def has_sinks(self) -> bool:
        """Whether a score without a value joins each softmax of the attention."""
        return "sinks" in self.layer_roles

    @property
    def kv_shapes(self) -> tuple[tuple[int, int], ...]:
        """KH and D of each layer that stores keys and values: the first ones."""
        return tuple(
            self.kv_shape(index)
            for index, layer in enumerate(self.layers)
            if layer.kv_layer is None
        )

    def kv_shape(self, layer: int) -> tuple[int, int]:
        """KH and D of a layer."""
        own = self.layers[layer]
        return own.num_kv_heads or self.num_kv_heads, own.head_dim or self.head_dim

    def mlp_size_of(self, layer: int) -> int:
        """Width inside a layer's MLP."""
        return self.layers[layer].mlp_size or self.mlp_size

    def roles_of(self, layer: int) -> tuple[Role, ...]:
        """The weights that a layer has, in the order of their use."""
        own = self.layers[layer]
        absent: set[Role] = set()
        if own.kv_layer is not None:
            absent = {"key", "value", "key_bias", "value_bias", "key_norm"}
        elif own.value_is_key:
            absent = {"value"}
        return tuple(role for role in self.layer_roles if role not in absent)

    def head_dim_of_rope(self, rope_index: int) -> int:
        """D of the layers that a rotary embedding is for."""
        dims = {
            layer.head_dim or self.head_dim
            for layer in self.layers
            if layer.rope_index == rope_index
        }
        return min(dims, default=self.head_dim)

    @property
    def rotary_dim(self) -> int:
        """How many numbers of a head are turned where heads are alike: (i, i + rotary_dim / 2) are a pair."""
        return 2 * len(self.ropes[0].inverse_frequencies)

    @property
    def weight_keys(self) -> tuple[WeightKey, ...]:
        """All weights, in the order of their use; a tied head is named too."""
        ple: tuple[Role, ...] = ("ple_embedding", "ple_projection", "ple_norm")
        first = [WeightKey("embedding"), *(WeightKey(role) for role in ple if self.ple_size)]
        inner = [
            WeightKey(role, index)
            for index in range(self.num_layers)
            for role in self.roles_of(index)
        ]
        return *first, *inner, WeightKey("final_norm"), WeightKey("head")

    def shape(self, role: Role, layer: int | None = None) -> tuple[int, ...]:
        """Shape of a weight: (outputs, inputs) of a matrix, else (length,).

        The matrices of a layer's experts are one, their rows expert by expert.

        Args:
            role: What it is for.
            layer: Of which layer; None where all are alike, or for weights of the whole model.
        """
        if role in ("embedding", "head"):
            return self.vocab_size, self.hidden_size
        if role.startswith("ple_") or role == "layer_scale":
            return self._ple_shape(role)
        KH, D = (self.num_kv_heads, self.head_dim) if layer is None else self.kv_shape(layer)
        mlp_size = self.mlp_size if layer is None else self.mlp_size_of(layer)
        if self.experts is not None and role in ("router", "router_bias", "expert_scale"):
            return (self.experts.count, self.hidden_size)[: 2 if role == "router" else 1]
        if role == "sinks":
            return (self.num_heads,)
        if role == "shared_router":
            return (self.hidden_size,)
        num_experts = 1 if self.experts is None else self.experts.count
        shared_size = 0 if self.experts is None else self.experts.shared_size
        matrix = role.removesuffix("_bias")
        outputs = {
            "query": self.num_heads * D,
            "key": KH * D,
            "value": KH * D,
            "gate": num_experts * mlp_size,
            "up": num_experts * mlp_size,
            "down": num_experts * self.hidden_size,
            "shared_gate": shared_size,
            "shared_up": shared_size,
        }
        inputs = {
            "output": self.num_heads * D,
            "down": mlp_size,
            "shared_down": shared_size,
        }
        if role in ("query_norm", "key_norm"):
            is_whole = self.query_key_norm == "whole"
            return (outputs[role.removesuffix("_norm")] if is_whole else D,)
        num_rows = outputs.get(matrix, self.hidden_size)
        if role not in BIAS_OF and role not in SHARED_MATRICES:
            return (num_rows,)
        return num_rows, inputs.get(matrix, self.hidden_size)

    def _ple_shape(self, role: Role) -> tuple[int, ...]:
        all_layers = self.num_layers * self.ple_size
        shapes: dict[Role, tuple[int, ...]] = {
            "ple_embedding": (self.vocab_size, all_layers),
            "ple_projection": (all_layers, self.hidden_size),
            "ple_norm": (self.ple_size,),
            "ple_gate": (self.ple_size, self.hidden_size),
            "ple_output": (self.hidden_size, self.ple_size),
            "layer_scale": (1,),
        }
        return shapes[role]
