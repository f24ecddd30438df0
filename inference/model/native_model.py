"""A model that our CPU kernels compute: a whole step in one call. Engine thread only.

Here Python fills in the structures that the kernels read, and keeps alive what they point to.
"""

import ctypes
from collections.abc import Sequence
from ctypes import addressof, c_int32, c_int64
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inference.attention.base import AttentionBackend
from inference.kernels import structures as c
from inference.kernels.library import Kernels, Team
from inference.kv_cache.schemes import LayerGeometry
from inference.kv_cache.tensors import KvTensors
from inference.model.base import PathName
from inference.model.key_centres import key_centres
from inference.model.packed_weights import PackedWeights
from inference.model.spec import (
    EMBEDDINGS,
    EXPERT_MATRICES,
    PLE_MATRICES,
    SHARED_MATRICES,
    ModelSpec,
    Role,
    RopeSpec,
    WeightKey,
)
from inference.model.step import Chunk, lay_out

_MATRICES: tuple[Role, ...] = (
    *("query", "key", "value", "output", "router"),
    *EXPERT_MATRICES,
    *SHARED_MATRICES,
    *PLE_MATRICES,
)
_KV_SCHEMES = {
    "fp32": c.KvScheme.F32,
    "fp16": c.KvScheme.F16,
    "bf16": c.KvScheme.BF16,
    "int8": c.KvScheme.INT8,
    "int4": c.KvScheme.INT4,
}
_ACTIVATIONS = {
    "silu": c.Activation.SILU,
    "gelu_tanh": c.Activation.GELU_TANH,
    "clamped_swish": c.Activation.CLAMPED_SWISH,
}
_NORMS = {
    "none": c.QueryKeyNorm.NONE,
    "head": c.QueryKeyNorm.HEAD,
    "whole": c.QueryKeyNorm.WHOLE,
}


class NativeModel:
    """A decoder-only model with packed weights.

    Attributes:
        geometry: What each layer stores per token.
        dtype: Type of keys and queries, as the model computes them.
        vocab_size: V, length of the logits.
        stable_context_tokens: Beyond this the rotary angles would change; None if they never do.
        has_attention_softcap: Whether its layers cap attention scores.
        config_text: All that its values depend on beside weights and text.
        device: The CPU.
        kernels: The instruction set.
    """

    path_name: PathName = "fast"
    has_independent_rows = True
    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(
        self, spec: ModelSpec, weights: PackedWeights, kernels: Kernels, *, num_threads: int
    ) -> None:
        """Join a model, its weights and a team of threads.

        Args:
            spec: What to compute.
            weights: All of its weights.
            kernels: Compute it.
            num_threads: Threads of a step.
        """
        self.geometry = tuple(LayerGeometry(*shape) for shape in spec.kv_shapes)
        self.vocab_size = spec.vocab_size
        self.stable_context_tokens = spec.stable_context_tokens
        self.has_attention_softcap = spec.attention_softcap is not None
        self.kernels = kernels.isa
        # Inputs of products are rounded here, and last digits are each instruction set's own: keys and
        # values are not those of other paths.
        self.config_text = f"native 2, {self.kernels}: {spec.text}"
        self._calls = kernels
        self._team = kernels.new_team(num_threads)
        self._weights = weights
        self._experts = spec.experts
        self._ropes, self._angles = _ropes(spec.ropes)
        self._ones = np.ones(spec.head_dim, dtype=np.float32)
        vectors = {key: torch.from_numpy(vector) for key, vector in weights.vectors.items()}
        self._key_centres = key_centres(spec, vectors)
        self._layers = (c.Layer * spec.num_layers)(
            *(
                _layer(spec, index, weights, centre, self._ones)
                for index, centre in enumerate(self._key_centres)
            )
        )
        self._model = c.Model(
            num_layers=spec.num_layers,
            hidden_size=spec.hidden_size,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            mlp_size=spec.mlp_size,
            vocab_size=spec.vocab_size,
            ple_size=spec.ple_size,
            activation=_ACTIVATIONS[spec.activation],
            query_key_norm=_NORMS[spec.query_key_norm],
            norm_epsilon=spec.norm_epsilon,
            embedding_scale=spec.embedding_scale,
            residual_scale=spec.residual_scale,
            attention_scale=spec.attention_scale,
            query_growth=spec.query_growth.factor if spec.query_growth else 0.0,
            growth_tokens=spec.query_growth.num_tokens if spec.query_growth else 0,
            logit_scale=spec.logit_scale,
            attention_softcap=spec.attention_softcap or 0.0,
            logit_softcap=spec.logit_softcap or 0.0,
            num_experts=spec.experts.count if spec.experts else 0,
            num_experts_used=spec.experts.num_used if spec.experts else 0,
            expert_weights_sum_to_one=bool(spec.experts and spec.experts.weights_sum_to_one),
            shared_size=spec.experts.shared_size if spec.experts else 0,
            num_ropes=len(spec.ropes),
            ropes=addressof(self._ropes),
            layers=addressof(self._layers),
            embedding=weights.matrices[WeightKey("embedding")].structure,
            head=weights.matrices[WeightKey("head")].structure,
            final_norm=weights.vectors[WeightKey("final_norm")].ctypes.data,
            **_ple(spec, weights),
        )

    @property
    def num_threads(self) -> int:
        """Threads of a step."""
        return self._team.size

    def make_runner(self, kv: KvTensors, attention: AttentionBackend) -> "NativeRunner":
        """See `LanguageModel`; the kernels attend themselves."""
        return NativeRunner(self, kv, self._calls, self._team)

    @property
    def embedding_bytes(self) -> int:
        """Memory of the embeddings, of which a step reads a few rows."""
        return sum(
            matrix.data.nbytes
            for key, matrix in self._weights.matrices.items()
            if key.role in EMBEDDINGS
        )

    @property
    def logits_share(self) -> float:
        """Of the weights that a step reads, those of the head."""
        used = self._experts.num_used / self._experts.count if self._experts else 1.0
        read = [
            matrix.data.nbytes * (used if key.role in EXPERT_MATRICES else 1.0)
            for key, matrix in self._weights.matrices.items()
            if key.role not in EMBEDDINGS
        ]
        return self._weights.matrices[WeightKey("head")].data.nbytes / sum(read)

    @property
    def structure(self) -> c.Model:
        """What the kernels read; valid as long as this model."""
        return self._model


class NativeRunner:
    """A native model with its KV memory; a `Runner`.

    Attributes:
        kv: The memory of the blocks.
        device: The CPU.
        num_logits: How many first logits are computed, a multiple of `logits_unit` or all; may be set.
        logits_unit: Rows of a panel.
        logits_share: Of the weights that a step reads, those that make logits.
    """

    device = NativeModel.device
    num_replays = 0

    def __init__(self, model: NativeModel, kv: KvTensors, kernels: Kernels, team: Team) -> None:
        self.kv = kv
        self._model = model
        self._kernels = kernels
        self._team = team
        self.num_logits = model.vocab_size
        self.logits_unit = kernels.panel_rows
        self.logits_share = model.logits_share
        self._kv_layers = (c.KvLayer * len(kv.layers))(
            *(_kv_layer(kv, n) for n in range(len(kv.layers)))
        )
        self._kv = c.Kv(
            scheme=_KV_SCHEMES[kv.scheme.name],
            num_layers=len(kv.layers),
            num_slots=kv.num_blocks * kv.block_size,
            layers=addressof(self._kv_layers),
        )

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """See `Runner`."""
        step = lay_out(chunks, self.kv)
        logits = torch.empty(len(step.keep), self.num_logits)
        token_ids, positions = _int32s(step.token_ids), _int32s(step.positions)
        slots, keep = _int64s(step.slots), _int32s(step.keep)
        extents = [_int64s([*chain.from_iterable(span.extents)]) for span in step.spans]
        spans = (c.Span * len(step.spans))(
            *(
                c.Span(span.row, span.num_rows, span.start, len(numbers) // 2, addressof(numbers))
                for span, numbers in zip(step.spans, extents, strict=True)
            )
        )
        call = c.Step(
            num_rows=len(token_ids),
            num_spans=len(spans),
            num_keep=len(keep),
            num_logits=self.num_logits,
            token_ids=addressof(token_ids),
            positions=addressof(positions),
            slots=addressof(slots),
            spans=addressof(spans),
            keep=addressof(keep),
            logits=logits.data_ptr(),
            cancel=None,
        )
        self._kernels.forward(self._team, self._model.structure, self._kv, call)
        return logits


# Arrays of ctypes, as numpy takes longer to make one of few numbers and to tell where it is.
def _int32s(numbers: Sequence[int]) -> "ctypes.Array[c_int32]":
    return (c_int32 * len(numbers))(*numbers)


def _int64s(numbers: Sequence[int]) -> "ctypes.Array[c_int64]":
    return (c_int64 * len(numbers))(*numbers)


def _kv_layer(kv: KvTensors, index: int) -> c.KvLayer:
    planes = kv.layers[index].planes
    stored_factor, query_factor = kv.scheme.rotation_factors(kv.geometry[index].head_dim) or (
        0.0,
        0.0,
    )
    layer = c.KvLayer(
        value_groups=planes[-1].shape[-1] if kv.scheme.name == "int4" else 0,
        stored_factor=stored_factor,
        query_factor=query_factor,
    )
    for place, plane in enumerate(planes):
        layer.planes[place] = plane.data_ptr()
    return layer


def _layer(
    spec: ModelSpec,
    index: int,
    weights: PackedWeights,
    key_centre: npt.NDArray[np.float32] | None,
    ones: npt.NDArray[np.float32],
) -> c.Layer:
    values: dict[str, object] = {}
    for role in spec.roles_of(index):
        key = WeightKey(role, index)
        is_matrix = role in _MATRICES
        values[role] = (
            weights.matrices[key].structure if is_matrix else weights.vectors[key].ctypes.data
        )
    if spec.has_value_norm:
        values["value_norm"] = ones.ctypes.data
    if key_centre is not None:
        values["key_centre"] = key_centre.ctypes.data
    layer, (num_kv_heads, head_dim) = spec.layers[index], spec.kv_shape(index)
    return c.Layer(
        **values,
        window=layer.window or 0,
        rope_index=layer.rope_index,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        mlp_size=spec.mlp_size_of(index),
        kv_layer=index if layer.kv_layer is None else layer.kv_layer,
    )


def _ple(spec: ModelSpec, weights: PackedWeights) -> dict[str, object]:
    """The model's part of its per-layer embeddings, if it has any."""
    if not spec.ple_size:
        return {}
    return {
        "ple_embedding": weights.matrices[WeightKey("ple_embedding")].structure,
        "ple_projection": weights.matrices[WeightKey("ple_projection")].structure,
        "ple_norm": weights.vectors[WeightKey("ple_norm")].ctypes.data,
    }


def _ropes(ropes: Sequence[RopeSpec]) -> tuple[ctypes.Array[c.Rope], list[npt.NDArray[np.float32]]]:
    angles = [np.array(rope.inverse_frequencies, dtype=np.float32) for rope in ropes]
    structures = (c.Rope * len(ropes))(
        *(
            c.Rope(each.ctypes.data, rope.factor, len(each))
            for each, rope in zip(angles, ropes, strict=True)
        )
    )
    return structures, angles
