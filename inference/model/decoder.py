"""Our decoder: a `ModelSpec` and its weights, computed by torch. Engine thread only.

It is the model for every device that torch knows, and what the C++ kernels are held against: there
are no tricks in it. Norms and rotary embedding are computed in float32, the rest in the model's type.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from inference.attention.base import AttentionBackend, LayerCall
from inference.attention.paged import PagedAttention
from inference.kv_cache.layer_memory import KeyValues
from inference.kv_cache.schemes import LayerGeometry
from inference.kv_cache.tensors import KvTensors
from inference.model.base import PathName
from inference.model.cuda_capture import cuda_capture
from inference.model.experts import Activate, Experts, clamped_swish
from inference.model.graphs import GraphRunner
from inference.model.key_centres import key_centres
from inference.model.layer_stream import LayerStream
from inference.model.linear import FastLinear, Linear, fast_linear
from inference.model.norms import norm_weight, rms_norm
from inference.model.ple import Ple
from inference.model.rotary import Rotary, Turns
from inference.model.runner import ModelRunner
from inference.model.spec import (
    BIAS_OF,
    EXPERT_MATRICES,
    EXPERT_ROLES,
    PLE_MATRICES,
    ModelSpec,
    QueryGrowth,
    Role,
    WeightKey,
)

_ACTIVATIONS: dict[str, Activate] = {
    "silu": lambda gate, up: functional.silu(gate).mul_(up),
    "gelu_tanh": lambda gate, up: functional.gelu(gate, approximate="tanh").mul_(up),
    "clamped_swish": clamped_swish,
}


class StepBlocks:
    """Where one engine's steps store keys and values, and what attends to them.

    Attributes:
        slots: Where this step's tokens go, (T,), int64; set before each forward.
    """

    def __init__(
        self,
        kv: KvTensors,
        attention: AttentionBackend,
        shared_layers: frozenset[int] = frozenset(),
    ) -> None:
        """Take the memory, its reader, and the layers whose keys and values others attend to as well."""
        self._kv = kv
        self._attention = attention
        self._shared: dict[int, KeyValues | None] = dict.fromkeys(shared_layers)
        self.slots = torch.empty(0, dtype=torch.int64)

    def attend(self, layer: int, query: Tensor, new: KeyValues | None, call: LayerCall) -> Tensor:
        """Store one layer's new keys and values, (1, KH, T, D), and attend.

        Queries (1, H, T, D) meet keys as a later step would read them. So it makes no difference in
        which chunk a token was computed.

        Args:
            layer: Where keys and values are stored.
            query: (1, H, T, D).
            new: What is to be stored; None if it was in this step.
            call: How to attend.

        Returns:
            (1, T, H, D).
        """
        stored = self._shared[layer] if new is None else self._kv.write(layer, self.slots, new)
        if stored is None:
            raise RuntimeError(f"layer {layer} has stored nothing in this step")
        if layer in self._shared:
            self._shared[layer] = stored
        past = self._kv.layers[layer]
        if past.rotation is None:
            return self._attention.attend(query, stored, past, call)
        turn = past.rotation.to_query.to(query.dtype)
        return self._attention.attend(query @ turn, stored, past, call) @ turn


class TorchDecoder:
    """A decoder-only model in torch.

    Attributes:
        geometry: What each layer stores per token.
        dtype: Type of keys and queries, as the model computes them.
        vocab_size: V, length of the logits.
        stable_context_tokens: Beyond this the rotary angles would change; None if they never do.
        has_attention_softcap: Whether its layers cap attention scores.
        config_text: All that its values depend on beside weights and text.
        device: Where it is.
        has_streamed_layers: Whether some layers' weights come over from the host in each step.
    """

    path_name: PathName = "torch"
    has_independent_rows = False
    kernels = "torch"

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[WeightKey, Tensor],
        *,
        linears: Mapping[WeightKey, Linear] | None = None,
        stream: LayerStream | None = None,
    ) -> None:
        """Join a model and its weights.

        Args:
            spec: What to compute.
            weights: For each of the spec's keys that `linears` lacks, of the spec's shapes: norms in
                float32, all else in the type to compute in; on one device. They are used where they
                are.
            linears: Products with matrices, biases included, by the matrix' key; the others are what
                is fastest with torch's own operators.
            stream: Brings over the weights of layers that are kept on the host; `linears` has them.
        """
        embedding = weights[WeightKey("embedding")]
        self.geometry = tuple(LayerGeometry(*shape) for shape in spec.kv_shapes)
        self.dtype = embedding.dtype
        self.device = embedding.device
        self.vocab_size = spec.vocab_size
        self.stable_context_tokens = spec.stable_context_tokens
        self.has_attention_softcap = spec.attention_softcap is not None
        self.config_text = f"torch 2 {spec.text}"
        self.has_streamed_layers = stream is not None
        self._spec = spec
        self._activation = _ACTIVATIONS[spec.activation]
        self._embedding = embedding
        self._final_norm = norm_weight(weights[WeightKey("final_norm")], self.dtype)
        ready = linears or {}
        head = WeightKey("head")
        self._head = ready[head] if head in ready else fast_linear(weights[head], None)
        self._ple = Ple.build(spec, weights, ready) if spec.ple_size else None
        self._ropes = [
            Rotary.on(self.device, rope, spec.head_dim_of_rope(index))
            for index, rope in enumerate(spec.ropes)
        ]
        centres = [
            None if centre is None else torch.from_numpy(centre).unsqueeze(1).to(embedding)
            for centre in key_centres(spec, weights)
        ]
        layers = [
            _Layer.build(index, spec, weights, ready, centre)
            for index, centre in enumerate(centres)
        ]
        self._layers: Iterable[_Layer] = layers if stream is None else stream.over(layers)

    def make_cache(self, kv: KvTensors, attention: AttentionBackend) -> StepBlocks:
        """See `TorchModel`."""
        shared = {layer.kv_layer for layer in self._spec.layers if layer.kv_layer is not None}
        return StepBlocks(kv, attention, frozenset(shared))

    def make_runner(self, kv: KvTensors, attention: AttentionBackend) -> ModelRunner | GraphRunner:
        """See `LanguageModel`; decode steps are replayed where there are CUDA graphs and a spare block."""
        has_fast_rows = isinstance(self._head, FastLinear)
        eager = ModelRunner(self, kv, attention, device=self.device, has_fast_rows=has_fast_rows)
        if kv.spare_slot is None or not isinstance(attention, PagedAttention):
            return eager
        if (
            self.has_streamed_layers
        ):  # their weights come over beside the step: nothing to replay alone
            return eager
        capture = cuda_capture(self.device)
        return eager if capture is None else GraphRunner(self, kv, attention, eager, capture)

    def forward(
        self, token_ids: Tensor, positions: Tensor, keep: Tensor, cache: StepBlocks
    ) -> Tensor:
        """See `TorchModel`."""
        spec = self._spec
        x = functional.embedding(token_ids[0], self._embedding) * spec.embedding_scale
        turns = [rope.turns(positions[0]) for rope in self._ropes]
        growth = _growth(spec.query_growth, positions[0], self.dtype)
        ple = None if self._ple is None else self._ple.parts(token_ids[0], x)
        for index, layer in enumerate(self._layers):
            added = self._attention(layer, x, turns[layer.rope_index], growth, cache)
            x.add_(added, alpha=spec.residual_scale)
            x.add_(self._mlp(layer, x), alpha=spec.residual_scale)
            if ple is not None:
                x.add_(self._per_layer(layer, x, ple[:, index]), alpha=spec.residual_scale)
            if layer.scale is not None:
                x.mul_(layer.scale)
        return self._logits(x[keep])

    def _attention(
        self,
        layer: "_Layer",
        x: Tensor,
        turns: Turns,
        growth: Tensor | None,
        cache: StepBlocks,
    ) -> Tensor:
        """What one layer's attention adds to x, (T, hidden)."""
        a = self._norm(layer, "attention_norm", x)
        query = self._norm_heads(layer, "query_norm", layer.linears["query"](a))
        if "key" in layer.linears:
            key = product = layer.linears["key"](a)
            value = layer.linears["value"](a) if "value" in layer.linears else product
            key = self._norm_heads(layer, "key_norm", key)
            query, key = turns.apply(query, key)
            if layer.key_centre is not None:
                key = key - layer.key_centre
            new = KeyValues(key, self._values(value, turns.head_dim))
        else:
            query, _ = turns.apply(query, query[:, :0])
            new = None
        if growth is not None:
            query = query * growth
        out = cache.attend(layer.kv_layer, query, new, layer.call)
        out = layer.linears["output"](out.reshape(x.shape[0], -1))
        return self._norm(layer, "post_attention_norm", out)

    def _mlp(self, layer: "_Layer", x: Tensor) -> Tensor:
        """What one layer's MLP adds to x, (T, hidden)."""
        m = self._norm(layer, "mlp_norm", x)
        if layer.experts is not None:
            out = layer.experts(m, x)
        else:
            inner = self._activation(layer.linears["gate"](m), layer.linears["up"](m))
            out = layer.linears["down"](inner)
        return self._norm(layer, "post_mlp_norm", out)

    def _per_layer(self, layer: "_Layer", x: Tensor, embedded: Tensor) -> Tensor:
        """What one layer's part of the per-layer embeddings, (T, P), adds to x, (T, hidden)."""
        inner = self._activation(layer.linears["ple_gate"](x), embedded)
        return self._norm(layer, "post_ple_norm", layer.linears["ple_output"](inner))

    def _logits(self, x: Tensor) -> Tensor:
        """(rows, hidden) to (rows, V), float32."""
        if x.shape[0] == 0:  # a step without logits; kernels cannot be begun for nothing
            return x.new_empty(0, self.vocab_size, dtype=torch.float32)
        logits = self._head(rms_norm(x, self._final_norm, self._spec.norm_epsilon)).float()
        logits = logits * self._spec.logit_scale
        cap = self._spec.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _norm(self, layer: "_Layer", role: Role, x: Tensor) -> Tensor:
        """Norm over the whole width, if the layer has it."""
        weight = layer.norms.get(role)
        return x if weight is None else rms_norm(x, weight, self._spec.norm_epsilon)

    def _norm_heads(self, layer: "_Layer", role: Role, x: Tensor) -> Tensor:
        """Norm over each head, or over all together, if the layer has it: (T, heads * D) to the same."""
        weight = layer.norms.get(role)
        if weight is None:
            return x
        parts = x.view(x.shape[0], -1, weight.shape[0])
        return rms_norm(parts, weight, self._spec.norm_epsilon).view(x.shape)

    def _values(self, x: Tensor, head_dim: int) -> Tensor:
        """(T, heads * D), normed if the model does, to (1, heads, T, D)."""
        heads = x.view(1, x.shape[0], -1, head_dim)
        if self._spec.has_value_norm:
            heads = functional.rms_norm(heads.float(), (head_dim,), eps=self._spec.norm_epsilon)
        return heads.to(x.dtype).transpose(1, 2)


def _growth(growth: QueryGrowth | None, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What queries at these places, (T,), are multiplied by: (T, 1)."""
    if growth is None:
        return None
    turns = torch.floor(positions / growth.num_tokens)
    return (1 + growth.factor * torch.log1p(turns)).to(dtype).unsqueeze(1)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights, ready to use; `key_centre` is (KH, 1, D), `scale` (1,)."""

    linears: dict[Role, Linear]
    norms: dict[Role, Tensor]
    call: LayerCall
    rope_index: int
    kv_layer: int
    scale: Tensor | None
    key_centre: Tensor | None
    experts: Experts | None

    @classmethod
    def build(
        cls,
        index: int,
        spec: ModelSpec,
        weights: Mapping[WeightKey, Tensor],
        ready: Mapping[WeightKey, Linear],
        key_centre: Tensor | None,
    ) -> "_Layer":
        layer, roles = spec.layers[index], spec.roles_of(index)
        dtype = weights[WeightKey("embedding")].dtype
        linears: dict[Role, Linear] = {}
        for role in (*BIAS_OF, *PLE_MATRICES):
            if role not in roles or (spec.experts is not None and role in EXPERT_MATRICES):
                continue
            key = WeightKey(role, index)
            if key in ready:
                linears[role] = ready[key]
            else:
                bias = weights.get(WeightKey(BIAS_OF[role], index)) if role in BIAS_OF else None
                linears[role] = fast_linear(weights[key], bias)
        return cls(
            linears=linears,
            norms={
                role: norm_weight(weights[WeightKey(role, index)], dtype)
                for role in roles
                if role.endswith("norm")
            },
            call=LayerCall(
                spec.attention_scale,
                layer.window,
                spec.attention_softcap,
                weights[WeightKey("sinks", index)].float() if spec.has_sinks else None,
            ),
            rope_index=layer.rope_index,
            kv_layer=index if layer.kv_layer is None else layer.kv_layer,
            scale=weights.get(WeightKey("layer_scale", index)),
            key_centre=key_centre,
            experts=_experts(index, spec, weights),
        )


def _experts(index: int, spec: ModelSpec, weights: Mapping[WeightKey, Tensor]) -> Experts | None:
    """A layer's experts, if it has any; there are no packed ones."""
    if spec.experts is None:
        return None
    own = {
        role: weights[WeightKey(role, index)] for role in spec.layer_roles if role in EXPERT_ROLES
    }
    return Experts(spec.experts, own, _ACTIVATIONS[spec.activation], epsilon=spec.norm_epsilon)
