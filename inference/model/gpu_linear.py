"""Products with weights that stay quantised on the device: 4 bits, or 8 as two times 4.

A weight of 8 bits, scale * (16 * high + low) + minimum, is multiplied as two matrices of 4 bits. torch has
a product with 8-bit weights too (`_weight_int8pack_mm`), but its CUDA kernel gives each output to one
thread that walks a whole row alone: a 4096 x 4096 matrix was seen to take 90 us on a card that reads it as
bfloat16 in 10. The kernel for 4 bits uses the tensor cores and reads half of 8 bits each time, and
scales stay those of the file, 32 weights each, where the other would have one for a whole row.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from inference.formats.codes import GROUP, Codes
from inference.model.int4_product import Int4Product
from inference.model.linear import Linear, fast_linear

# From so many rows on, weights are unpacked and multiplied as floats. An estimate: the kernel for 4 bits goes
# through the matrix once for 16 rows; unpacking it in torch's operators moves about 20 bytes for each weight,
# as much as some 30 times that, but part of it in the cache. `tests/benchmarks/gpu_check.py` measures both.
MANY_ROWS = 256

# So many weights are unpacked at a time: some 100 MB, with all that is in between.
_SLAB_WEIGHTS = 2**24
_SLAB_STEP = 64  # rows of a slab: a multiple of what any kernel packs together


class PlainWeight(NamedTuple):
    """A matrix of floats.

    Attributes:
        matrix: (N, K).
    """

    matrix: Tensor


class Int4Weight(NamedTuple):
    """A matrix of 4-bit codes: (code - 8) * scale + zero.

    Attributes:
        packed: As `Int4Product.pack` gives it.
        lines: Scales and zeros, (K / 32, N, 2), of the type that is computed in.
    """

    packed: Tensor
    lines: Tensor


class Int8Weight(NamedTuple):
    """A matrix of 8-bit codes as the sum of two of 4 bits.

    Attributes:
        high: Its codes' high halves, packed.
        high_lines: Their scales, 16 times the weight's, and zeros.
        low: The low halves.
        low_lines: Their scales and zeros.
    """

    high: Tensor
    high_lines: Tensor
    low: Tensor
    low_lines: Tensor


MatrixWeight = PlainWeight | Int4Weight | Int8Weight


def pack_int4(product: Int4Product, codes: Codes, dtype: torch.dtype) -> Int4Weight:
    """Pack codes from 0 to 15; scale and zero are rounded to `dtype`."""
    # From the scale as the file has it: so its rounding moves the middle of the codes by nothing.
    zero = codes.minimum + 8 * codes.scale
    return Int4Weight(product.pack(codes.codes), _lines(codes.scale, zero, dtype))


def pack_int8(product: Int4Product, codes: Codes, dtype: torch.dtype) -> Int8Weight:
    """Pack codes from 0 to 255; scale and zero are rounded to `dtype`."""
    scale = codes.scale.to(dtype).float()
    # scale * code = 16 scale * (high - 8) + scale * (low - 8) + 136 scale. The last goes to the high
    # halves, and the rounding of the scale moves the middle of the codes by nothing.
    zero = codes.minimum + 128 * codes.scale + 8 * scale
    return Int8Weight(
        product.pack(codes.codes >> 4),
        _lines(16 * scale, zero, dtype),
        product.pack(codes.codes & 15),
        _lines(scale, torch.zeros_like(scale), dtype),
    )


def packed_bytes(num_bits: int, num_rows: int, num_columns: int, dtype: torch.dtype) -> int:
    """Memory of a matrix (N, K) of 4 or 8 bits, once it is packed."""
    size = num_rows * num_columns
    return num_bits // 4 * (size // 2 + size // GROUP * 2 * dtype.itemsize)


def make_linear(
    weight: MatrixWeight, bias: Tensor | None, product: Int4Product | None, num_columns: int
) -> Linear:
    """The product with a matrix.

    Args:
        weight: The matrix; used where it is.
        bias: (N,), or None.
        product: Packed it, if it is packed.
        num_columns: K.
    """
    if isinstance(weight, PlainWeight):
        return fast_linear(weight.matrix, bias)
    assert product is not None, "it was packed by one"
    parts = (weight,) if isinstance(weight, Int4Weight) else _halves(weight)
    return PackedLinear(product, parts, bias, num_columns)


class PackedLinear:
    """The product with the sum of some matrices of 4 bits, (T, K) to (T, N)."""

    def __init__(
        self,
        product: Int4Product,
        parts: tuple[Int4Weight, ...],
        bias: Tensor | None,
        num_columns: int,
    ) -> None:
        self._product = product
        self._parts = parts
        self._bias = bias
        self._num_columns = num_columns

    def __call__(self, x: Tensor) -> Tensor:
        """(T, K) to (T, N)."""
        if x.shape[0] == 0:  # a step without logits; a kernel cannot be begun for nothing
            return x.new_empty(0, self._parts[0].lines.shape[1])
        if x.shape[0] >= MANY_ROWS:
            return self.by_floats(x)
        x = x.contiguous()
        first, *others = (
            self._product.multiply(x, part.packed, part.lines) for part in self._parts
        )
        for other in others:
            first.add_(other)
        return first if self._bias is None else first.add_(self._bias)

    def by_floats(self, x: Tensor) -> Tensor:
        """(T, K) to (T, N), by unpacked weights: some rows of the matrix, then the next."""
        N, bias = self._parts[0].lines.shape[1], self._bias
        step = max(1, _SLAB_WEIGHTS // self._num_columns // _SLAB_STEP) * _SLAB_STEP
        slabs = [slice(low, min(low + step, N)) for low in range(0, N, step)]
        outs = [
            functional.linear(x, self.unpacked(rows), None if bias is None else bias[rows])
            for rows in slabs
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)

    def unpacked(self, rows: slice) -> Tensor:
        """Rows of the matrix as floats; they begin at a multiple of 64 and end at another or at N."""
        first, *others = (self._floats(part, rows) for part in self._parts)
        for other in others:
            first.add_(other)
        return first

    def _floats(self, part: Int4Weight, rows: slice) -> Tensor:
        together = part.lines.shape[1] // part.packed.shape[0]  # rows in one of what is packed
        packed = part.packed[rows.start // together : rows.stop // together]
        lines = part.lines[:, rows]
        scale, zero = lines.permute(2, 1, 0).contiguous().unsqueeze(-1)  # (rows, K / 32, 1) each
        codes = self._product.unpack(packed, self._num_columns).to(scale.dtype).sub_(8)
        grouped = codes.view(codes.shape[0], -1, GROUP)
        return torch.addcmul(zero, grouped, scale).view(codes.shape)


def _halves(weight: Int8Weight) -> tuple[Int4Weight, Int4Weight]:
    return Int4Weight(weight.high, weight.high_lines), Int4Weight(weight.low, weight.low_lines)


def _lines(scale: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.stack((scale.t(), zero.t()), dim=-1).to(dtype).contiguous()
