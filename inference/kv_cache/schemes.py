"""How keys and values are stored: fp32, fp16, bf16, int8, int4. Definitions and tensor arithmetic.

A scheme turns the numbers of a token, D for each head's key and value, into *planes*, and back:

    fp32, fp16, bf16    per key and value: D numbers of that type
    int8                per key and value: D codes | a scale, fp16
    int4                per key: as int8
                        per value: D/2 bytes | G scales | G minima, fp16, for G groups of numbers

Keys bear four bits badly: an error in a key moves a whole row of weights, one in a value only a
share of the result. With keys in four bits, SmolLM2-135M predicts 3 % worse; so int4 spends them on
values alone.

Rows are quantised once, when they are written, and hold all that is needed to read them: a block can
be copied, put aside and brought back as bytes. What a step computes with is what a later step will
read, so it makes no difference in which step a token was computed.

int8 and int4 store keys and values rotated by a Hadamard matrix, which spreads outliers over the
whole head: with it, int8 changes SmolLM2-135M's predictions a quarter as much. The rotation is
orthogonal: query times key stays what it was if the query is rotated too, and a weighted sum of
values is rotated back once, at the end.
Source: Ashkboos et al. 2024, "QuaRot"; scales per token and group as in Sheng et al. 2023, "FlexGen".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from inference.config import KvSchemeName

_FP16_MAX = 65504.0
# The smallest scale of int8: below the smallest normal number of fp16, but still exact to 0.4 %, so
# that the largest code of a row stays within 127. Rows that small lose at most 4e-6.
_MIN_INT8_SCALE = 2.0**-17
_MIN_INT4_SCALE = 2.0**-17
_LARGEST_GROUP = 32


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """Shape of one token's keys (and values) in one layer.

    Attributes:
        num_kv_heads: KH.
        head_dim: D, the same for keys and values.
    """

    num_kv_heads: int
    head_dim: int


class Plane(NamedTuple):
    """One part of what is stored per token.

    Attributes:
        dtype: Type of its numbers.
        rows: R, how many rows there are: 2 * KH (keys' heads, then values'), or KH if a row holds both.
        width: X, numbers per row.
    """

    dtype: torch.dtype
    rows: int
    width: int

    @property
    def token_bytes(self) -> int:
        """Memory per token."""
        return self.dtype.itemsize * self.rows * self.width


class Workspace:
    """Buffers that are there already: a new tensor costs more than the work on it. One thread."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
        """A contiguous tensor on the device of `like`, valid until the name is taken again."""
        size = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size or buffer.device != like.device:
            buffer = torch.empty(size, dtype=dtype, device=like.device)
            self._buffers[name, dtype] = buffer
        return buffer[:size].view(*shape)


class KvScheme(Protocol):
    """One way to store keys and values."""

    @property
    def name(self) -> KvSchemeName:
        """Its word in the configuration."""

    @property
    def view_dtype(self) -> torch.dtype | None:
        """The type in which the first plane can be read as it lies; None if it needs arithmetic."""

    def planes(self, geometry: LayerGeometry) -> tuple[Plane, ...]:
        """What is stored per token of a layer."""

    def rotation_factors(self, head_dim: int) -> tuple[float, float] | None:
        """Factors of the Hadamard matrix for what is stored and for its way back; None without."""

    def encode(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """Turn (2 * KH, T, D) of a float type into rows (R, T, X) of each plane."""

    def decode(self, planes: Sequence[Tensor], out: Tensor, workspace: Workspace) -> None:
        """Turn rows (R, T, X) of each plane into numbers.

        Args:
            planes: Views of the stored rows.
            out: (2 * KH, T, D), of a float type; its last dimension contiguous.
            workspace: For what is in between.
        """


@dataclass(frozen=True, slots=True)
class PlainScheme:
    """Numbers of one float type, as they are.

    Attributes:
        name: Its word in the configuration.
        dtype: The type.
    """

    name: KvSchemeName
    dtype: torch.dtype

    @property
    def view_dtype(self) -> torch.dtype:
        """See `KvScheme`."""
        return self.dtype

    def planes(self, geometry: LayerGeometry) -> tuple[Plane, ...]:
        """See `KvScheme`."""
        return (Plane(self.dtype, 2 * geometry.num_kv_heads, geometry.head_dim),)

    def rotation_factors(self, head_dim: int) -> None:
        """See `KvScheme`: nothing is rotated."""

    def encode(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """See `KvScheme`; an outlier beyond fp16 becomes its largest number, never infinite."""
        if self.dtype == torch.float16 and numbers.dtype != torch.float16:
            numbers = numbers.clamp(-_FP16_MAX, _FP16_MAX)
        return (numbers.to(self.dtype),)

    def decode(self, planes: Sequence[Tensor], out: Tensor, workspace: Workspace) -> None:
        """See `KvScheme`."""
        out.copy_(planes[0])


@dataclass(frozen=True, slots=True)
class Int8Scheme:
    """Codes -127 ... 127 with one scale per token and head, symmetric, of rotated numbers."""

    name: KvSchemeName = "int8"
    view_dtype: None = None

    def planes(self, geometry: LayerGeometry) -> tuple[Plane, ...]:
        """See `KvScheme`."""
        rows = 2 * geometry.num_kv_heads
        return Plane(torch.int8, rows, geometry.head_dim), Plane(torch.float16, rows, 1)

    def rotation_factors(self, head_dim: int) -> tuple[float, float] | None:
        """See `KvScheme`."""
        return _rotation_factors(head_dim)

    def encode(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """See `KvScheme`."""
        return _encode_8_bits(numbers.float())

    def decode(self, planes: Sequence[Tensor], out: Tensor, workspace: Workspace) -> None:
        """See `KvScheme`."""
        codes, scale = planes
        out.copy_(codes).mul_(scale.to(out.dtype))


@dataclass(frozen=True, slots=True)
class Int4Scheme:
    """Keys as in int8; values as codes 0 ... 15 in groups, each with a scale and a minimum; rotated.

    A byte holds a number of the first half of the head (low four bits) and one of the second half, so
    that unpacking is two operations on whole rows. D must be even.
    """

    name: KvSchemeName = "int4"
    view_dtype: None = None

    def planes(self, geometry: LayerGeometry) -> tuple[Plane, ...]:
        """See `KvScheme`."""
        KH, D = geometry.num_kv_heads, geometry.head_dim
        group = Plane(torch.float16, KH, D // _group_size(D))
        keys = Plane(torch.int8, KH, D), Plane(torch.float16, KH, 1)
        return *keys, Plane(torch.uint8, KH, D // 2), group, group

    def rotation_factors(self, head_dim: int) -> tuple[float, float] | None:
        """See `KvScheme`."""
        return _rotation_factors(head_dim)

    def encode(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """See `KvScheme`."""
        keys, values = numbers.float().chunk(2)
        return *_encode_8_bits(keys), *_encode_4_bits(values)

    def decode(self, planes: Sequence[Tensor], out: Tensor, workspace: Workspace) -> None:
        """See `KvScheme`."""
        key_codes, key_scale, packed, scale, minimum = planes
        keys, values = out.chunk(2)
        keys.copy_(key_codes).mul_(key_scale.to(out.dtype))
        half = packed.shape[-1]
        codes = workspace.take("codes", packed.shape, torch.uint8, packed)
        values[..., :half].copy_(torch.bitwise_and(packed, 15, out=codes))
        values[..., half:].copy_(torch.bitwise_right_shift(packed, 4, out=codes))
        # NOTE: both must be contiguous, as to() makes them: from one plane it took four times as long.
        scale, minimum = scale.to(out.dtype).unsqueeze(-1), minimum.to(out.dtype).unsqueeze(-1)
        values.view(*values.shape[:-1], scale.shape[2], -1).mul_(scale).add_(minimum)


_SCHEMES: dict[KvSchemeName, KvScheme] = {
    "fp32": PlainScheme("fp32", torch.float32),
    "fp16": PlainScheme("fp16", torch.float16),
    "bf16": PlainScheme("bf16", torch.bfloat16),
    "int8": Int8Scheme(),
    "int4": Int4Scheme(),
}


def find_scheme(name: KvSchemeName, compute_dtype: torch.dtype) -> KvScheme:
    """The scheme of a name.

    Args:
        name: From the configuration; "auto" is bf16 for a model that computes in bfloat16, else fp16.
        compute_dtype: Type of keys and queries, as the model computes them.
    """
    if name == "auto":
        name = "bf16" if compute_dtype == torch.bfloat16 else "fp16"
    return _SCHEMES[name]


def bytes_per_token(geometry: Sequence[LayerGeometry], scheme: KvScheme) -> int:
    """Memory of one slot over all layers, keys and values."""
    return sum(plane.token_bytes for layer in geometry for plane in scheme.planes(layer))


def hadamard(size: int, *, factor: float, device: torch.device) -> Tensor:
    """Sylvester's symmetric matrix of +-factor, (size, size), float32; size is a power of two."""
    matrix = torch.full((1, 1), factor)
    while matrix.shape[0] < size:
        row = torch.cat([matrix, matrix], dim=1)
        matrix = torch.cat([row, torch.cat([matrix, -matrix], dim=1)])
    return matrix.to(device)


def _encode_8_bits(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scale of (R, T, D), float32."""
    largest = numbers.abs().amax(dim=-1, keepdim=True)
    scale = (largest / 127.0).clamp_(_MIN_INT8_SCALE, _FP16_MAX).half()
    codes = (numbers / scale.float()).round_().clamp_(-127.0, 127.0)
    return codes.to(torch.int8), scale


def _encode_4_bits(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Packed codes, scales and minima of (R, T, D), float32."""
    R, T, D = numbers.shape
    grouped = numbers.view(R, T, -1, _group_size(D))
    low, high = grouped.aminmax(dim=-1, keepdim=True)
    stored_minimum = low.clamp_(-_FP16_MAX, _FP16_MAX).half()
    minimum = stored_minimum.float()
    # From the minimum as it is stored, so that its rounding costs nothing at the upper end.
    scale = high.sub_(minimum).div_(15.0).clamp_(_MIN_INT4_SCALE, _FP16_MAX).half()
    codes = (grouped - minimum).div_(scale.float()).round_().clamp_(0.0, 15.0).to(torch.uint8)
    first, second = codes.view(R, T, D).chunk(2, dim=-1)
    packed = second.bitwise_left_shift(4).bitwise_or_(first)
    return packed, scale.squeeze(-1), stored_minimum.squeeze(-1)


def _group_size(head_dim: int) -> int:
    """The largest that divides the head evenly."""
    return max(size for size in range(1, _LARGEST_GROUP + 1) if head_dim % size == 0)


def _rotation_factors(head_dim: int) -> tuple[float, float] | None:
    """Powers of two whose product is 1 / D, so that bfloat16 multiplies exactly; None if D is none."""
    if head_dim & (head_dim - 1):
        return None
    power = head_dim.bit_length() - 1
    return 2.0 ** -(power // 2), 2.0 ** -(power - power // 2)
