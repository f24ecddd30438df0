"""What a decoder's weights are in a file, and how torch gets them. Thread of the load.

What the kernels want is in `packed_weights`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.formats.dequantize import dequantize
from inference.formats.weight_file import WeightFile
from inference.model.progress import LoadReporter
from inference.model.spec import ModelSpec, WeightKey
from inference.model.spec_weights import WeightSource
from inference.model.unpacking import unpacked


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """The weights of one model in their file.

    Attributes:
        file: Open; it has each tensor, of the right shape.
        spec: What the model computes.
        sources: Where each weight is.
    """

    file: WeightFile
    spec: ModelSpec
    sources: Mapping[WeightKey, WeightSource]

    @property
    def stored_keys(self) -> list[WeightKey]:
        """All weights but a tied head."""
        is_tied = self.spec.is_head_tied
        return [key for key in self.sources if not (is_tied and key.role == "head")]

    @property
    def matrix_keys(self) -> list[WeightKey]:
        """Those of them that are matrices; the others are vectors."""
        return [key for key in self.stored_keys if self.sources[key].is_matrix]

    @property
    def num_parameters(self) -> int:
        """Count of weights, tied ones once."""
        return sum(self.sources[key].num_elements for key in self.stored_keys)


def read_weights(
    weights: DecoderWeights,
    *,
    dtype: torch.dtype,
    device: str = "cpu",
    reporter: LoadReporter | None = None,
) -> dict[WeightKey, Tensor]:
    """Unpack every weight onto a device: norms in float32, all else in `dtype`; a tied head once."""
    keys, read = weights.stored_keys, {}
    for key, weight in unpacked(keys, lambda key: read_weight(weights, key, dtype)):
        read[key] = weight.to(device)
        if reporter is not None:
            reporter.advance(len(read), len(keys))
    if weights.spec.is_head_tied:
        read[WeightKey("head")] = read[WeightKey("embedding")]
    return read


def read_weight(weights: DecoderWeights, key: WeightKey, dtype: torch.dtype) -> Tensor:
    """Unpack one weight: a norm in float32, all else in `dtype`. It shares no memory with the file."""
    source = weights.sources[key]
    name = source.tensor_name
    stored = weights.file.tensors[name]
    if source.is_matrix:
        rows = stored_rows(weights, key).reshape(-1)
        shape = (source.num_rows, source.num_columns)
        weight = dequantize(rows, stored.type_name, shape, dtype)
    else:  # of whatever type: its blocks go over what is a row of a matrix
        kept = torch.float32 if key.role.endswith("norm") else dtype
        data = weights.file.tensor_data(name)
        whole = dequantize(data, stored.type_name, stored.shape, kept).flatten()
        weight = _in_order(whole, source)
    weights.file.release(name)
    return weight.add_(1.0) if source.lacks_one else weight


def stored_rows(weights: DecoderWeights, key: WeightKey) -> Tensor:
    """The bytes of one matrix' rows as the file has them, in the weight's order: (N, bytes of a row).

    They may share memory with the file, and must not be changed.
    """
    source = weights.sources[key]
    rows = weights.file.tensor_data(source.tensor_name).view(source.num_stored_rows, -1)
    return _in_order(rows, source)


def _in_order(rows: Tensor, source: WeightSource) -> Tensor:
    """A weight's rows, out of all of its tensor."""
    order = source.rows
    return rows[order.start : order.stop] if isinstance(order, range) else rows[torch.tensor(order)]
