"""Reads weights for our decoder into their places: packed or not, on the device or on the host.

Thread of the load. A matrix that stays quantised goes to the device as its bytes lie in the file, and is
taken apart and packed there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inference.formats.codes import read_codes
from inference.model.decoder_weights import read_weight, stored_rows
from inference.model.gpu_linear import (
    Int4Weight,
    Int8Weight,
    MatrixWeight,
    PlainWeight,
    make_linear,
    pack_int4,
    pack_int8,
)
from inference.model.layer_stream import HostLayer, LayerStream
from inference.model.linear import Linear
from inference.model.progress import LoadReporter
from inference.model.quantised_weights import QuantisedFile
from inference.model.spec import BIAS_OF, WeightKey
from inference.model.unpacking import unpacked
from inference.model.weight_plan import EMBEDDING, HEAD, WeightPlan

# Rows that are taken apart at a time, so that scratch memory stays small; whole tiles of every kernel.
_SLICE_ELEMENTS = 2**26
_SLICE_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class TorchWeights:
    """Weights in their places, as `TorchDecoder` takes them.

    Attributes:
        vectors: Norms, biases, the embedding; float matrices on the device are products too.
        linears: The products with all matrices.
        stream: Brings over those of layers on the host; None if there are none.
    """

    vectors: dict[WeightKey, Tensor]
    linears: dict[WeightKey, Linear]
    stream: LayerStream | None


def load_weights(
    plan: WeightPlan,
    device: torch.device,
    on_host: frozenset[int],
    *,
    num_threads: int,
    reporter: LoadReporter | None = None,
) -> TorchWeights:
    """Read all weights into their places.

    Args:
        plan: How.
        device: Where it is computed.
        on_host: The layers whose matrices stay on the host.
        num_threads: How many round at a time.
        reporter: Told how far it is.
    """
    loader = _Loader(plan, device, num_threads, reporter)
    vectors: dict[WeightKey, Tensor] = {}
    matrices: dict[WeightKey, MatrixWeight] = {}
    host_layers: dict[int, HostLayer] = {}
    keys = plan.weights.stored_keys
    with loader.file:
        for done, (key, weight) in enumerate(loader.read(keys), start=1):
            if isinstance(weight, Tensor):
                vectors[key] = weight
            else:
                matrices[key] = weight
            if key.layer in on_host and (done == len(keys) or keys[done].layer != key.layer):
                host_layers[key.layer] = _moved_to_host(matrices, key.layer, device)
            if reporter is not None:
                reporter.advance(done, len(keys))
                reporter.begin_item(done, 1, len(keys))
        if plan.weights.spec.is_head_tied:
            matrices[HEAD] = loader.tied_head(vectors[EMBEDDING])
    stream = LayerStream(host_layers, device) if host_layers else None
    if stream is not None:
        _point_to_buffers(matrices, stream, host_layers)
    linears = {key: _linear(plan, key, matrices[key], vectors) for key in plan.matrices}
    return TorchWeights(vectors, linears, stream)


class _Loader:
    """Reads weights as a plan wants them."""

    def __init__(
        self,
        plan: WeightPlan,
        device: torch.device,
        num_threads: int,
        reporter: LoadReporter | None,
    ) -> None:
        self._plan = plan
        self._device = device
        weights = plan.weights
        self.file = QuantisedFile(
            weights.file, plan.tensors, num_threads=num_threads, reporter=reporter
        )
        self._packed = replace(weights, file=self.file)

    def read(
        self, keys: list[WeightKey]
    ) -> Iterator[tuple[WeightKey, Tensor | PlainWeight | Int4Weight | Int8Weight]]:
        """Each weight on the device: vectors and the embedding as they are."""
        for key, floats in unpacked(keys, self._floats):
            if key not in self._plan.matrices:
                assert floats is not None, "only matrices are packed"
                yield key, floats.to(self._device)
            elif floats is not None:
                yield key, PlainWeight(floats.to(self._device))
            else:
                yield key, self._pack(key)

    def tied_head(self, embedding: Tensor) -> MatrixWeight:
        """The head that is the embedding: packed beside it, or the same numbers."""
        return self._pack(HEAD) if self._plan.matrices[HEAD].num_bits else PlainWeight(embedding)

    def _floats(self, key: WeightKey) -> Tensor | None:
        """A weight unpacked, on any thread; None if it is to be packed."""
        plan = self._plan.matrices.get(key)
        if plan is not None and plan.num_bits:
            return None
        return read_weight(self._plan.weights, key, self._plan.dtype)

    def _pack(self, key: WeightKey) -> Int4Weight | Int8Weight:
        product, dtype = self._plan.product, self._plan.dtype
        assert product is not None, "nothing else is planned to be packed"
        source = self._packed.sources[key]
        type_name = self._plan.tensors[source.tensor_name].type_name
        rows = stored_rows(self._packed, key)
        step = max(1, _SLICE_ELEMENTS // source.num_columns // _SLICE_MULTIPLE)
        slices = torch.split(rows, step * _SLICE_MULTIPLE)
        pack = pack_int4 if self._plan.matrices[key].num_bits == 4 else pack_int8
        parts = [
            pack(product, read_codes(part.to(self._device), type_name), dtype) for part in slices
        ]
        self.file.release(source.tensor_name)
        return _joined(parts)


def _joined(parts: Sequence[Int4Weight | Int8Weight]) -> Int4Weight | Int8Weight:
    """Rows behind each other: packed codes along the first dimension, lines along the second."""
    if len(parts) == 1:
        return parts[0]
    fields = [
        torch.cat(field, dim=index % 2) for index, field in enumerate(zip(*parts, strict=True))
    ]
    return type(parts[0])(*fields)


def _moved_to_host(
    matrices: dict[WeightKey, MatrixWeight], layer: int, device: torch.device
) -> HostLayer:
    """Copy a layer's matrices to the host, and forget where they were."""
    keys = [key for key in matrices if key.layer == layer]
    tensors = [tensor for key in keys for tensor in matrices[key]]
    moved = HostLayer(tensors, is_pinned=device.type == "cuda")
    for key in keys:
        kind = type(matrices[key])
        matrices[key] = kind(*(tensor.to("meta") for tensor in matrices[key]))
    return moved


def _point_to_buffers(
    matrices: dict[WeightKey, MatrixWeight],
    stream: LayerStream,
    host_layers: Mapping[int, HostLayer],
) -> None:
    """Put views of the stream's buffers where matrices were."""
    views = {layer: iter(stream.views(layer)) for layer in host_layers}
    for key, weight in matrices.items():
        if key.layer in views:
            matrices[key] = type(weight)(*(next(views[key.layer]) for _ in weight))


def _linear(
    plan: WeightPlan, key: WeightKey, weight: MatrixWeight, vectors: Mapping[WeightKey, Tensor]
) -> Linear:
    bias = vectors.get(WeightKey(BIAS_OF[key.role], key.layer)) if key.role in BIAS_OF else None
    num_columns = plan.weights.sources[key].num_columns
    return make_linear(weight, bias, plan.product, num_columns)
