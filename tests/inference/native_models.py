"""Tiny models for the CPU kernels, and steps of theirs through ctypes, without the program around them."""

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, c_int32, c_void_p
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from inference.attention.base import Span
from inference.config import KvSchemeName
from inference.kernels.library import LIBRARY_PATH, PATH_VARIABLE, Kernels, Team, open_library
from inference.kernels.structures import (
    Activation,
    Kv,
    KvLayer,
    KvScheme,
    Layer,
    Matrix,
    MatrixType,
    Model,
    QueryKeyNorm,
    Rope,
    Step,
)
from inference.kernels.structures import Span as SpanStructure
from inference.kv_cache.schemes import LayerGeometry, find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.model.decoder_weights import read_weights
from inference.model.key_centres import key_centres
from inference.model.spec import ModelSpec, Role, WeightKey
from inference.model.step import Chunk, lay_out
from tests.inference.tiny_decoders import weights_of
from tests.inference.tiny_models import fill_with_garbage

SCHEMES: dict[KvSchemeName, KvScheme] = {
    "fp32": KvScheme.F32,
    "fp16": KvScheme.F16,
    "bf16": KvScheme.BF16,
    "int8": KvScheme.INT8,
    "int4": KvScheme.INT4,
}
ISAS = ("avx512vnni", "avx2", "neon", "portable")  # avxvnni differs from avx2 in products alone


@cache
def kernels() -> Kernels:
    """The kernels under test: another file (with a sanitizer) can be named by the environment."""
    found = open_library(Path(os.environ.get(PATH_VARIABLE, LIBRARY_PATH)))
    if isinstance(found, str):
        pytest.skip(found)
    library = found._library
    library.qk_store.argtypes = [
        POINTER(Model), POINTER(Kv), c_int32, c_int32, c_void_p, c_void_p, c_void_p,
    ]  # fmt: skip
    library.qk_attend.argtypes = [
        c_void_p, POINTER(Model), POINTER(Kv), c_int32, POINTER(Step), c_void_p, c_void_p,
    ]  # fmt: skip
    return found


@cache
def team(num_threads: int) -> Team:
    """One team of each size for all tests."""
    return kernels().new_team(num_threads)


def use_isa(name: str) -> None:
    """Compute with one instruction set, or skip the test."""
    if not kernels().set_isa(name):
        pytest.skip(f"this processor has no {name}")


class Memory:
    """Keeps alive what structures point to."""

    def __init__(self) -> None:
        self._kept: list[object] = []

    def floats(self, values: Tensor | Sequence[float]) -> int:
        """Address of a float32 copy."""
        return self.array(torch.as_tensor(values, dtype=torch.float32).clone().numpy())

    def array(self, values: np.ndarray) -> int:
        """Address of an array, which must be contiguous."""
        assert values.flags.c_contiguous
        self._kept.append(values)
        return values.ctypes.data

    def structures(self, kind: type[ctypes.Structure], values: Sequence[ctypes.Structure]) -> int:
        """Address of an array of structures."""
        array = (kind * len(values))()
        for index, value in enumerate(values):
            array[index] = value
        self._kept.append(array)
        return ctypes.addressof(array)


def rows_as_file(weight: Tensor, kind: MatrixType) -> np.ndarray:
    """Rows of a matrix as a GGUF file holds them, (N, bytes)."""
    if kind == MatrixType.F32:
        return np.ascontiguousarray(weight.float().numpy()).view(np.uint8)
    assert kind == MatrixType.Q8_0
    blocks = weight.float().numpy().reshape(weight.shape[0], -1, 32)
    scales = (np.abs(blocks).max(axis=2, keepdims=True) / 127).astype(np.float16)
    codes = np.rint(blocks / np.maximum(scales.astype(np.float32), 1e-10)).astype(np.int8)
    parts = [scales.view(np.uint8), codes.view(np.uint8)]
    return np.ascontiguousarray(np.concatenate(parts, axis=2).reshape(weight.shape[0], -1))


def pack(memory: Memory, weight: Tensor, kind: MatrixType = MatrixType.F32) -> Matrix:
    """A matrix (N, K) for the kernels."""
    num_rows, num_columns = weight.shape
    room = np.zeros(kernels().packed_bytes(kind, num_rows, num_columns) + 64, dtype=np.uint8)
    address = memory.array(room)
    matrix = Matrix(kind, num_rows, num_columns, 0, address + -address % 64)
    rows = rows_as_file(weight, kind)
    first = rows.ctypes.data
    kernels().pack(matrix, 0, [first + index * rows.shape[1] for index in range(num_rows)])
    return matrix


class NativeModel:
    """A model for the kernels.

    Attributes:
        spec: What it computes.
        structure: For the kernels.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[WeightKey, Tensor],
        kind: MatrixType = MatrixType.F32,
        kinds: Mapping[Role, MatrixType] | None = None,
    ) -> None:
        """All matrices are of one kind, but for some roles."""
        self.spec = spec
        self._memory = memory = Memory()
        layers = [
            _layer(
                memory,
                spec,
                index,
                {role: weights[WeightKey(role, index)] for role in spec.roles_of(index)},
                lambda role: (kinds or {}).get(role, kind),
            )
            for index in range(spec.num_layers)
        ]
        for layer, centre in zip(layers, key_centres(spec, weights), strict=True):
            if centre is not None:
                layer.key_centre = memory.array(centre)
        ropes = [
            Rope(
                memory.floats(rope.inverse_frequencies), rope.factor, len(rope.inverse_frequencies)
            )
            for rope in spec.ropes
        ]
        self.structure = Model(
            num_layers=spec.num_layers,
            hidden_size=spec.hidden_size,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            mlp_size=spec.mlp_size,
            vocab_size=spec.vocab_size,
            ple_size=spec.ple_size,
            activation=Activation[spec.activation.upper()],
            query_key_norm=QueryKeyNorm[spec.query_key_norm.upper()],
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
            num_ropes=len(ropes),
            ropes=memory.structures(Rope, ropes),
            layers=memory.structures(Layer, layers),
            embedding=pack(memory, weights[WeightKey("embedding")], kind),
            head=pack(memory, weights[WeightKey("head")], kind),
            final_norm=memory.floats(weights[WeightKey("final_norm")]),
        )
        if spec.ple_size:
            self.structure.ple_embedding = pack(memory, weights[WeightKey("ple_embedding")], kind)
            self.structure.ple_projection = pack(memory, weights[WeightKey("ple_projection")], kind)
            self.structure.ple_norm = memory.floats(weights[WeightKey("ple_norm")])

    @property
    def geometry(self) -> tuple[LayerGeometry, ...]:
        """What each layer stores per token."""
        return tuple(LayerGeometry(*shape) for shape in self.spec.kv_shapes)

    def new_kv(
        self, scheme: KvSchemeName, *, num_blocks: int = 64, block_size: int = 8
    ) -> KvTensors:
        """Blocks full of garbage."""
        kv = KvTensors(
            self.geometry,
            num_blocks=num_blocks,
            block_size=block_size,
            scheme=find_scheme(scheme, torch.float32),
            device=torch.device("cpu"),
        )
        fill_with_garbage(kv)
        return kv


def native_of(module: PreTrainedModel, kind: MatrixType = MatrixType.F32) -> NativeModel:
    """The kernels' form of a transformers model."""
    weights = weights_of(module)
    return NativeModel(weights.spec, read_weights(weights, dtype=torch.float32), kind)


def random_model(spec: ModelSpec, *, kind: MatrixType = MatrixType.F32) -> NativeModel:
    """A model of any shape with random weights."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        key: torch.randn(spec.shape(key.role, key.layer), generator=generator) * 0.12
        for key in spec.weight_keys
    }
    return NativeModel(spec, weights, kind)


def kv_structure(memory: Memory, kv: KvTensors) -> Kv:
    """Blocks, as the kernels see them."""
    layers = []
    for layer in kv.layers:
        planes, rotation = [plane.data_ptr() for plane in layer.planes], layer.rotation
        layers.append(
            KvLayer(
                (c_void_p * 5)(*planes, *[None] * (5 - len(planes))),
                value_groups=layer.planes[3].shape[2] if kv.scheme.name == "int4" else 0,
                stored_factor=0.0 if rotation is None else float(rotation.to_stored[0, 0]),
                query_factor=0.0 if rotation is None else float(rotation.to_query[0, 0]),
            )
        )
    return Kv(
        scheme=SCHEMES[kv.scheme.name],
        num_layers=len(layers),
        num_slots=kv.layers[0].planes[0].shape[1],
        layers=memory.structures(KvLayer, layers),
    )


def spans_structure(memory: Memory, spans: Sequence[Span]) -> int:
    """Address of the spans of a step."""
    structures = [
        SpanStructure(
            row=span.row,
            num_rows=span.num_rows,
            start=span.start,
            num_extents=len(span.extents),
            extents=memory.array(np.array(span.extents, dtype=np.int64)),
        )
        for span in spans
    ]
    return memory.structures(SpanStructure, structures)


def try_step(
    model: NativeModel,
    kv: KvTensors,
    chunks: Sequence[Chunk],
    *,
    num_threads: int = 2,
    num_logits: int = 0,
    cancel: c_int32 | None = None,
) -> Tensor | None:
    """Compute chunks as `ModelRunner.run` does; None if it was told to stop."""
    memory = Memory()
    step = lay_out(chunks, kv)
    logits = torch.full((len(step.keep), max(0, num_logits) or model.spec.vocab_size), torch.nan)
    structure = Step(
        num_rows=len(step.token_ids),
        num_spans=len(step.spans),
        num_keep=len(step.keep),
        num_logits=num_logits,
        token_ids=memory.array(np.array(step.token_ids, dtype=np.int32)),
        positions=memory.array(np.array(step.positions, dtype=np.int32)),
        slots=memory.array(np.array(step.slots, dtype=np.int64)),
        spans=spans_structure(memory, step.spans),
        keep=memory.array(np.array(step.keep, dtype=np.int32)),
        logits=logits.data_ptr(),
        cancel=None if cancel is None else ctypes.addressof(cancel),
    )
    is_done = kernels().forward(
        team(num_threads), model.structure, kv_structure(memory, kv), structure
    )
    return logits if is_done else None


def run_step(
    model: NativeModel, kv: KvTensors, chunks: Sequence[Chunk], *, num_threads: int = 2
) -> Tensor:
    """Compute chunks, nobody stops it."""
    logits = try_step(model, kv, chunks, num_threads=num_threads)
    assert logits is not None
    return logits


def run_chunked(
    model: NativeModel,
    kv: KvTensors,
    token_ids: Sequence[int],
    block_table: Sequence[int],
    *,
    chunk_tokens: int,
    num_threads: int = 2,
) -> Tensor:
    """Feed a prompt in chunks; the logits of every token."""
    rows = []
    for low in range(0, len(token_ids), chunk_tokens):
        part = token_ids[low : low + chunk_tokens]
        chunk = Chunk(part, low, block_table, needs_logits=True, needs_all_logits=True)
        rows.append(run_step(model, kv, [chunk], num_threads=num_threads))
    return torch.cat(rows)


def attend(
    model: NativeModel,
    kv: KvTensors,
    spans: Sequence[Span],
    query: Tensor,
    *,
    layer: int = 0,
    num_threads: int = 2,
) -> Tensor:
    """Attention alone: query (T, H, D), scaled and turned already, to the same shape."""
    memory, num_rows = Memory(), query.shape[0]
    zeros = memory.array(np.zeros(num_rows, dtype=np.int64))
    structure = Step(
        num_rows=num_rows,
        num_spans=len(spans),
        token_ids=zeros,
        positions=zeros,
        slots=zeros,
        spans=spans_structure(memory, spans),
    )
    query, out = query.contiguous(), torch.full(query.shape, torch.nan)
    status = kernels()._library.qk_attend(
        team(num_threads).handle,
        ctypes.byref(model.structure),
        ctypes.byref(kv_structure(memory, kv)),
        layer,
        ctypes.byref(structure),
        query.data_ptr(),
        out.data_ptr(),
    )
    assert status == 0
    return out


def store(
    model: NativeModel, kv: KvTensors, slots: Sequence[int], keys: Tensor, values: Tensor
) -> None:
    """Store rows (T, KH, D) in the first layer, as a step does."""
    memory = Memory()
    keys, values = keys.contiguous(), values.contiguous()
    status = kernels()._library.qk_store(
        ctypes.byref(model.structure),
        ctypes.byref(kv_structure(memory, kv)),
        0,
        len(slots),
        keys.data_ptr(),
        values.data_ptr(),
        memory.array(np.array(slots, dtype=np.int64)),
    )
    assert status == 0


def _layer(
    memory: Memory,
    spec: ModelSpec,
    index: int,
    weights: Mapping[Role, Tensor],
    kind_of: Callable[[Role], MatrixType],
) -> Layer:
    own, (num_kv_heads, head_dim) = spec.layers[index], spec.kv_shape(index)
    layer = Layer(
        window=own.window or 0,
        rope_index=own.rope_index,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        mlp_size=spec.mlp_size_of(index),
        kv_layer=index if own.kv_layer is None else own.kv_layer,
        value_norm=memory.floats(torch.ones(head_dim)) if spec.has_value_norm else None,
    )
    for role, weight in weights.items():
        value = pack(memory, weight, kind_of(role)) if weight.dim() == 2 else memory.floats(weight)
        setattr(layer, role, value)
    return layer
