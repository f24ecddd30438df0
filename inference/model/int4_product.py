"""torch's product of rows with a matrix of 4-bit codes, of each kind of device. Engine thread only.

In groups of 32 along a row, a weight is (code - 8) * scale + zero. Codes are packed into an order that the
device's kernel wants, which is torch's own affair; on CUDA it is the same in each *tile* of 8 rows.

    device   operators                                   takes
    CUDA     _weight_int4pack_mm, tinygemm               bfloat16, N % 8 == 0, capability 8.0 or more
    CPU      _weight_int4pack_mm_for_cpu                 N % 16 == 0; here for the tests

Source: aten/src/ATen/native/cuda/int4mm.cu and native/cpu/int4mm_kernel.cpp of pytorch/pytorch, 2.13.
"""

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from inference.formats.codes import GROUP

_TILE_ROWS = 8
_TILE_COLUMNS = 16  # of the inner tiles, 2, 4 or 8 of which lie together
_MIN_CAPABILITY = (8, 0)
_TRIED_ROWS, _TRIED_COLUMNS = 64, (96, 192, 256)  # so that 2, 4 and 8 tiles lie together

logger = logging.getLogger(__name__)


class Int4Product(Protocol):
    """Packs codes, and multiplies with what is packed."""

    def can_take(self, num_rows: int, num_columns: int, dtype: torch.dtype) -> bool:
        """Whether there is a product of rows of a type with a matrix (N, K)."""

    def pack(self, codes: Tensor) -> Tensor:
        """Codes from 0 to 15, (N, K), uint8, in the order of the kernel."""

    def multiply(self, x: Tensor, packed: Tensor, scales_and_zeros: Tensor) -> Tensor:
        """(T, K) to (T, N); scales and zeros are (K / 32, N, 2), of the type of x."""

    def unpack(self, packed: Tensor, num_columns: int) -> Tensor:
        """What `pack` was given, (N, K)."""


class CpuInt4:
    """The product on a CPU."""

    def can_take(self, num_rows: int, num_columns: int, dtype: torch.dtype) -> bool:
        """See `Int4Product`."""
        return num_rows % 16 == 0 and num_columns % GROUP == 0

    def pack(self, codes: Tensor) -> Tensor:
        """See `Int4Product`."""
        packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
        return packed

    def multiply(self, x: Tensor, packed: Tensor, scales_and_zeros: Tensor) -> Tensor:
        """See `Int4Product`."""
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x, packed, GROUP, scales_and_zeros
        )
        return product

    def unpack(self, packed: Tensor, num_columns: int) -> Tensor:
        """See `Int4Product`; the order depends on the processor, so the product itself is asked."""
        N, K = packed.shape[0], num_columns
        eight = torch.tensor([1.0, 8.0]).expand(K // GROUP, N, 2).contiguous()
        rows = self.multiply(torch.eye(K), packed, eight)
        return rows.t().round().to(torch.uint8)


class CudaInt4:
    """The product on a CUDA device.

    Args:
        convert: torch's operator, (N, K / 2) bytes with the even column's code in the high half to
            (N / 8, K / (16 * inner), 32, inner / 2) int32; tests give one of their own.
    """

    def __init__(self, convert: Callable[[Tensor, int], Tensor] | None = None) -> None:
        self._convert = convert or torch.ops.aten._convert_weight_to_int4pack
        self._orders: dict[int, Tensor] = {}

    def can_take(self, num_rows: int, num_columns: int, dtype: torch.dtype) -> bool:
        """See `Int4Product`."""
        has_tiles = num_rows % _TILE_ROWS == 0 and num_columns % GROUP == 0
        return has_tiles and dtype == torch.bfloat16

    def pack(self, codes: Tensor) -> Tensor:
        """See `Int4Product`."""
        return self._pack(codes, _inner_tiles(codes.shape[1]))

    def multiply(self, x: Tensor, packed: Tensor, scales_and_zeros: Tensor) -> Tensor:
        """See `Int4Product`."""
        product: Tensor = torch.ops.aten._weight_int4pack_mm(x, packed, GROUP, scales_and_zeros)
        return product

    def unpack(self, packed: Tensor, num_columns: int) -> Tensor:
        """See `Int4Product`."""
        inner = _inner_tiles(num_columns)
        order = self._order(inner, packed.device)
        columns = _TILE_COLUMNS * inner
        tiles = packed.view(torch.uint8).view(packed.shape[0], packed.shape[1], -1)
        halves = torch.stack((tiles & 15, tiles >> 4), dim=-1).flatten(2)
        codes = halves.index_select(2, order).view(*packed.shape[:2], _TILE_ROWS, columns)
        return codes.transpose(1, 2).reshape(packed.shape[0] * _TILE_ROWS, num_columns)

    def _pack(self, codes: Tensor, inner: int) -> Tensor:
        both = codes[:, ::2] << 4 | codes[:, 1::2]
        return self._convert(both.contiguous(), inner)

    def _order(self, inner: int, device: torch.device) -> Tensor:
        """Where in a packed tile each of its codes is, (8 * 16 * inner,), int64: found by packing one."""
        if inner not in self._orders:
            size = _TILE_ROWS * _TILE_COLUMNS * inner
            places = torch.arange(size, device=device)
            packed_places = torch.zeros_like(places)
            for shift in (0, 4, 8):  # size <= 1024: three codes name a place
                digit = (places >> shift & 15).to(torch.uint8).view(_TILE_ROWS, -1)
                tile = self._pack(digit, inner).view(torch.uint8).flatten()
                halves = torch.stack((tile & 15, tile >> 4), dim=-1).flatten()
                packed_places |= halves.long() << shift
            self._orders[inner] = packed_places.argsort()
        return self._orders[inner]


def _inner_tiles(num_columns: int) -> int:
    """The most tiles that may lie together: a longer load for each thread of the kernel."""
    return next(n for n in (8, 4, 2) if num_columns % (_TILE_COLUMNS * n) == 0)


def find_int4(device: torch.device) -> Int4Product | None:
    """The product on a device; None if it has none, or one that does not give the right numbers."""
    if device.type == "cpu":
        return CpuInt4()
    if not is_int4_known(device):
        return None
    product = CudaInt4()
    return product if is_right(product, device) else None


def is_int4_known(device: torch.device) -> bool:
    """Whether torch should have the product of CUDA on a device."""
    # AMD's graphics cards are called cuda too; on them the tiles have other sizes.
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= _MIN_CAPABILITY


def is_right(product: Int4Product, device: torch.device) -> bool:
    """Try a product: torch's operators are private ones, and may change or be left out of a build."""
    try:
        is_exact = all(_is_exact(product, device, num_columns) for num_columns in _TRIED_COLUMNS)
    except RuntimeError as error:  # an operator that is not there raises a kind of it
        logger.warning("weights are unpacked, as their product cannot be computed: %s", error)
        return False
    if not is_exact:
        logger.warning("weights are unpacked, as their product gives wrong numbers")
    return is_exact


def _is_exact(product: Int4Product, device: torch.device, num_columns: int) -> bool:
    """Whether a product of small whole numbers, and the way back, give just what they should."""
    N, K = _TRIED_ROWS, num_columns
    places = torch.arange(N * K, device=device).view(N, K)
    codes = (places * 7 // 3 % 16).to(torch.uint8)
    x = (places[:3] % 5 - 2).bfloat16()
    line = torch.tensor([2.0, 1.0], dtype=torch.bfloat16, device=device)
    packed = product.pack(codes)
    out = product.multiply(x, packed, line.expand(K // GROUP, N, 2).contiguous())
    expected = (x.float() @ ((codes.float() - 8) * 2 + 1).t()).bfloat16()
    return torch.equal(out, expected) and torch.equal(product.unpack(packed, K), codes)
