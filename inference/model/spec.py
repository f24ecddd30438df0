"""What a decoder-only transformer computes, as numbers alone. Pure Python.

One description for everyone who runs a model of the Llama kin: our decoder in torch, and the kernels
(their `qk_model` holds the same). With x of one token:

    x = embedding[token] * embedding_scale
    each layer:
        a = attention_norm(x)
        q, k, v = query(a), key(a), value(a)     biases; norms on q and k; rotary on q and k;
                                                 k less a fixed vector: `key_centres`;
                                                 q times what grows with its place: `QueryGrowth`
        x += residual_scale * post_attention_norm(output(attention(q, k, v)))
                                             sinks: a score for each head that joins its softmax, and
                                             has no value
        m = mlp_norm(x)
        x += residual_scale * post_mlp_norm(mlp(m)),    mlp(m) = down(activation(gate(m), up(m)))
    logits = soft cap of (head(final_norm(x)) * logit_scale)

In a mixture of experts each has gate, up and down of its own, and mlp(m) is the sum of those that the
router chooses for the token, times their weights: `ExpertSpec`.

A part whose weight a model lacks is left out. All norms are RMS norms with plain weights: where a family
stores a norm's weight less one, the one is added when it is read.
"""

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

Activation = Literal["silu", "gelu_tanh", "clamped_swish"]
QueryKeyNorm = Literal["none", "head", "whole"]
Role = Literal[
    "embedding", "final_norm", "head",
    "attention_norm", "query", "key", "value", "output",
    "query_bias", "key_bias", "value_bias", "output_bias", "query_norm", "key_norm", "sinks",
    "post_attention_norm", "mlp_norm", "router", "router_bias",
    "gate", "up", "down", "gate_bias", "up_bias", "down_bias",
    "shared_router", "shared_gate", "shared_up", "shared_down", "post_mlp_norm",
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

EXPERT_MATRICES: tuple[Role, ...] = ("gate", "up", "down")
SHARED_MATRICES: tuple[Role, ...] = ("shared_gate", "shared_up", "shared_down")
EXPERT_ROLES: tuple[Role, ...] = (
    *("router", "router_bias", "gate", "up", "down", "gate_bias", "up_bias", "down_bias"),
    *("shared_router", *SHARED_MATRICES),
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
    """

    window: int | None = None
    rope_index: int = 0


class QueryGrowth(NamedTuple):
    """Queries at position p are multiplied by 1 + factor * log(1 + floor(p / num_tokens))."""

    factor: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """The experts of a layer, of which each token uses some.

    With p = softmax(router(m)) over all experts, a token uses those of the largest p, and p are their
    weights. An expert that all tokens share has the weight sigmoid(shared_router(m)).

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
    def rotary_dim(self) -> int:
        """How many numbers of a head are turned: (i, i + rotary_dim / 2) are a pair."""
        return 2 * len(self.ropes[0].inverse_frequencies)

    @property
    def weight_keys(self) -> tuple[WeightKey, ...]:
        """All weights, in the order of their use; a tied head is named too."""
        inner = [
            WeightKey(role, index) for index in range(self.num_layers) for role in self.layer_roles
        ]
        return WeightKey("embedding"), *inner, WeightKey("final_norm"), WeightKey("head")

    def shape(self, role: Role) -> tuple[int, ...]:
        """Shape of a weight: (outputs, inputs) of a matrix, else (length,).

        The matrices of a layer's experts are one, their rows expert by expert.
        """
        if role in ("embedding", "head"):
            return self.vocab_size, self.hidden_size
        if self.experts is not None and role in ("router", "router_bias"):
            return (self.experts.count, self.hidden_size)[: 2 if role == "router" else 1]
        if role == "sinks":
            return (self.num_heads,)
        if role == "shared_router":
            return (self.hidden_size,)
        num_experts = 1 if self.experts is None else self.experts.count
        shared_size = 0 if self.experts is None else self.experts.shared_size
        matrix = role.removesuffix("_bias")
        outputs = {
            "query": self.num_heads * self.head_dim,
            "key": self.num_kv_heads * self.head_dim,
            "value": self.num_kv_heads * self.head_dim,
            "gate": num_experts * self.mlp_size,
            "up": num_experts * self.mlp_size,
            "down": num_experts * self.hidden_size,
            "shared_gate": shared_size,
            "shared_up": shared_size,
        }
        inputs = {
            "output": self.num_heads * self.head_dim,
            "down": self.mlp_size,
            "shared_down": shared_size,
        }
        if role in ("query_norm", "key_norm"):
            is_whole = self.query_key_norm == "whole"
            return (outputs[role.removesuffix("_norm")] if is_whole else self.head_dim,)
        num_rows = outputs.get(matrix, self.hidden_size)
        if role not in BIAS_OF and role not in SHARED_MATRICES:
            return (num_rows,)
        return num_rows, inputs.get(matrix, self.hidden_size)
