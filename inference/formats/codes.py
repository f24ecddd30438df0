"""The codes of ggml's weight blocks as they are stored, for products that keep weights quantised.

Of each type here, 32 weights that follow each other lie on a straight line over their codes:

    weight = scale * code + minimum

4-bit codes are 0 to 15. Those of 5 and 8 bits are given as bytes with the middle of their range at 128, so
that the minimum of signed numbers is -128 times the scale. Any thread, any device.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from inference.formats.block_fields import (
    add_fifth_bits,
    add_fifth_bits_k,
    half,
    six_bit_scales,
    unpack_nibbles,
)
from inference.formats.gguf_types import TENSOR_TYPES_BY_NAME

GROUP = 32
_UP_FROM_5_BITS = 128 - 16


class Codes(NamedTuple):
    """Rows of a matrix, not yet multiplied out.

    Attributes:
        codes: (N, K), uint8.
        scale: Of each group of 32, (N, K / 32), float32.
        minimum: Likewise.
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor

    @property
    def weights(self) -> Tensor:
        """The numbers that they stand for, (N, K), float32."""
        N, K = self.codes.shape
        grouped = self.codes.view(N, -1, GROUP).float()
        return (grouped * self.scale[..., None] + self.minimum[..., None]).view(N, K)


_Lines = tuple[Tensor, Tensor]  # scale and minimum of each group of a block, (n, groups) each


def _read_q4_0(blocks: Tensor, codes: Tensor) -> _Lines:
    unpack_nibbles(blocks[:, 2:], codes)
    scale = half(blocks, 0)
    return scale, scale * -8


def _read_q4_1(blocks: Tensor, codes: Tensor) -> _Lines:
    unpack_nibbles(blocks[:, 4:], codes)
    return half(blocks, 0), half(blocks, 2)


def _read_q5_0(blocks: Tensor, codes: Tensor) -> _Lines:
    unpack_nibbles(blocks[:, 6:], codes)
    add_fifth_bits(blocks[:, 2:6], codes)
    codes.add_(_UP_FROM_5_BITS)
    scale = half(blocks, 0)
    return scale, scale * -128


def _read_q5_1(blocks: Tensor, codes: Tensor) -> _Lines:
    unpack_nibbles(blocks[:, 8:], codes)
    add_fifth_bits(blocks[:, 4:8], codes)
    codes.add_(_UP_FROM_5_BITS)
    scale = half(blocks, 0)
    return scale, half(blocks, 2) - scale * _UP_FROM_5_BITS


def _read_q8_0(blocks: Tensor, codes: Tensor) -> _Lines:
    codes.copy_(blocks[:, 2:] ^ 128)  # -128 to 127, as bytes, become 0 to 255
    scale = half(blocks, 0)
    return scale, scale * -128


def _sub_block_lines(blocks: Tensor) -> _Lines:
    scales, minima = six_bit_scales(blocks[:, 4:16])
    return half(blocks, 0) * scales, half(blocks, 2) * minima * -1


def _read_q4_k(blocks: Tensor, codes: Tensor) -> _Lines:
    unpack_nibbles(blocks[:, 16:].view(-1, 4, 32), codes.view(-1, 4, 64))
    return _sub_block_lines(blocks)


def _read_q5_k(blocks: Tensor, codes: Tensor) -> _Lines:
    unpack_nibbles(blocks[:, 48:].view(-1, 4, 32), codes.view(-1, 4, 64))
    add_fifth_bits_k(blocks[:, 16:48], codes)
    codes.add_(_UP_FROM_5_BITS)
    scale, minimum = _sub_block_lines(blocks)
    return scale, minimum - scale * _UP_FROM_5_BITS


_READERS: dict[str, Callable[[Tensor, Tensor], _Lines]] = {
    "Q4_0": _read_q4_0,
    "Q4_1": _read_q4_1,
    "Q5_0": _read_q5_0,
    "Q5_1": _read_q5_1,
    "Q8_0": _read_q8_0,
    "Q4_K": _read_q4_k,
    "Q5_K": _read_q5_k,
}
FOUR_BIT_TYPES = frozenset({"Q4_0", "Q4_1", "Q4_K"})
CODED_TYPES = frozenset(_READERS)


def read_codes(rows: Tensor, type_name: str) -> Codes:
    """Take rows of blocks apart.

    Args:
        rows: (N, bytes of a row), uint8; not changed.
        type_name: One of `CODED_TYPES`.
    """
    kind = TENSOR_TYPES_BY_NAME[type_name]
    N = rows.shape[0]
    blocks = rows.reshape(-1, kind.block_bytes)
    shape = (blocks.shape[0], kind.block_elements)
    codes = torch.empty(shape, dtype=torch.uint8, device=rows.device)
    scale, minimum = _READERS[type_name](blocks, codes)
    return Codes(codes.view(N, -1), scale.reshape(N, -1), minimum.reshape(N, -1))
