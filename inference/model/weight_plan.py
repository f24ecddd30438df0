"""How each weight is kept on a device, decided before any is read: in 4 or 8 bits, or as floats. Any thread.

    Q4_0, Q4_1, Q4_K      4 bits, codes and scales from the file's blocks
    other quantised types, and floats if that is wished for      8 bits (with Q4_1: 4)
    floats                as they are, in the type that is computed in

Embeddings are tables of floats; a tied head that is packed lies beside it. Where the device has no
product with packed weights, or a matrix does not fit its tiles, all is floats.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from inference.config import WeightTypeName
from inference.formats.codes import CODED_TYPES, FOUR_BIT_TYPES
from inference.formats.weight_file import StoredTensor
from inference.model.decoder_weights import DecoderWeights
from inference.model.gpu_linear import packed_bytes
from inference.model.int4_product import Int4Product
from inference.model.quantised_weights import changed_words, kernel_types
from inference.model.spec import EMBEDDINGS, WeightKey

logger = logging.getLogger(__name__)

HEAD, EMBEDDING = WeightKey("head"), WeightKey("embedding")
_FLOATS = frozenset({"F32", "F16", "BF16"})


class MatrixPlan(NamedTuple):
    """How one matrix is to be kept.

    Attributes:
        num_bits: 4 or 8; 0 for floats.
        num_bytes: Memory; 0 if it is another one too.
    """

    num_bits: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """How all weights are to be kept.

    Attributes:
        weights: Where they are.
        dtype: What is computed in.
        product: Of packed weights; None if none is to be packed.
        tensors: In the types that are to be packed, by name.
        matrices: All but embeddings.
        rounded_to: Type that floats are rounded to; empty if they are not.
        changed: Which types become others because there is no product with them, for people.
    """

    weights: DecoderWeights
    dtype: torch.dtype
    product: Int4Product | None
    tensors: Mapping[str, StoredTensor]
    matrices: Mapping[WeightKey, MatrixPlan]
    rounded_to: str
    changed: str

    @property
    def is_plain(self) -> bool:
        """Whether all weights are floats."""
        return not any(plan.num_bits for plan in self.matrices.values())

    @property
    def layer_bytes(self) -> list[int]:
        """Memory of each layer's matrices."""
        sizes = [0] * self.weights.spec.num_layers
        for key, plan in self.matrices.items():
            if key.layer is not None:
                sizes[key.layer] += plan.num_bytes
        return sizes

    @property
    def shared_bytes(self) -> int:
        """Memory of all else: embeddings, head, and the vectors of all layers."""
        sources = self.weights.sources
        vectors = sum(
            sources[key].num_elements * _type_of(key, self.dtype).itemsize
            for key in self.weights.stored_keys
            if key not in self.matrices
        )
        return vectors + sum(
            plan.num_bytes for key, plan in self.matrices.items() if key.layer is None
        )

    @property
    def bits(self) -> list[int]:
        """Of packed matrices, rising."""
        return sorted({plan.num_bits for plan in self.matrices.values() if plan.num_bits})

    @property
    def words(self) -> str:
        """How weights are kept, for people; empty if all are floats."""
        bits = " and ".join(str(number) for number in self.bits)
        packed = f"weights in {bits} bits" if bits else ""
        return ", ".join(part for part in (packed, self.changed) if part)

    @property
    def arithmetic(self) -> str:
        """What values depend on: see `MadeModel`."""
        packed = " ".join(f"int{number}" for number in self.bits)
        return " ".join(part for part in (str(self.dtype), packed, self.rounded_to) if part)


def plan_weights(
    weights: DecoderWeights,
    dtype: torch.dtype,
    product: Int4Product | None,
    wish: WeightTypeName = "auto",
) -> WeightPlan:
    """Decide how each matrix is kept.

    Args:
        weights: Where they are.
        dtype: What is computed in.
        product: The device's with packed weights, if it has one.
        wish: See `EngineConfig.weights`.
    """
    if wish == "float":
        product = None
    rounded_to = wish if product is not None and wish != "auto" else ""
    tensors = kernel_types(weights, rounded_to, _FLOATS | CODED_TYPES)
    keys = [key for key in weights.matrix_keys if key.role not in EMBEDDINGS]
    matrices = {}
    for key in [*keys, HEAD] if weights.spec.is_head_tied else keys:
        source = weights.sources[key]
        kind = tensors[source.tensor_name].type_name
        N, K = source.num_rows, source.num_columns
        if product is not None and kind in CODED_TYPES and product.can_take(N, K, dtype):
            num_bits = 4 if kind in FOUR_BIT_TYPES else 8
            matrices[key] = MatrixPlan(num_bits, packed_bytes(num_bits, N, K, dtype))
        else:
            is_alias = key == HEAD and weights.spec.is_head_tied
            matrices[key] = MatrixPlan(0, 0 if is_alias else N * K * dtype.itemsize)
    is_rounded = any(
        matrix.num_bits
        and weights.file.tensors[weights.sources[key].tensor_name].type_name in _FLOATS
        for key, matrix in matrices.items()
    )
    changed = _changes(weights, tensors, matrices)
    return WeightPlan(
        weights, dtype, product, tensors, matrices, rounded_to if is_rounded else "", changed
    )


def _changes(
    weights: DecoderWeights,
    tensors: Mapping[str, StoredTensor],
    matrices: Mapping[WeightKey, MatrixPlan],
) -> str:
    """Which types become others because there is no product with them: logged, and for people."""
    names = {weights.sources[key].tensor_name for key, plan in matrices.items() if plan.num_bits}
    changes = Counter(
        (weights.file.tensors[name].type_name, tensors[name].type_name) for name in names
    )
    for (stored, kept), count in changes.items():
        if stored != kept:
            logger.info("%d tensors of the type %s become %s", count, stored, kept)
    return changed_words(changes)


def _type_of(key: WeightKey, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if key.role.endswith("norm") else dtype
