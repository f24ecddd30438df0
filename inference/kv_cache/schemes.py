"""How keys and values are stored: fp32, fp16, bf16, int8, int4. Definitions and tensor arithmetic.

A scheme turns the D numbers of one token and head into one row in each of its *planes*, and back:

    fp32, fp16, bf16     D numbers of that type
    int8                 D codes  | 1 scale, fp16
    int4                 D/2 bytes | G scales and G minima, fp16        G groups of 32 numbers

Rows are quantised once, when they are written, and hold all that is needed to read them: a block can
be copied, put aside and brought back as bytes. What a step computes with is what a later step will
read, so it makes no difference in which step a token was computed.

int4 stores keys and values rotated by a Hadamard matrix, which spreads outliers over the whole head.
The rotation is orthogonal: query times key stays what it was if the query is rotated too, and a
weighted sum of values is rotated back once at the end.
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
_INT4_GROUP = 32


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
    """One part of what is stored per token and head.

    Attributes:
        dtype: Type of its numbers.
        width: X, how many.
    """

    dtype: torch.dtype
    width: int

    @property
    def row_bytes(self) -> int:
        """Memory per token and head."""
        return self.dtype.itemsize * self.width


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

    def planes(self, head_dim: int) -> tuple[Plane, ...]:
        """What is stored per token and head."""

    def rotation_factors(self, head_dim: int) -> tuple[float, float] | None:
        """Factors of the Hadamard matrix for what is stored and for its way back; None without."""

    def encode(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """Turn (..., D) of a float type into rows (..., X) of each plane."""

    def decode(self, planes: Sequence[Tensor], out: Tensor, workspace: Workspace) -> None:
        """Turn rows (..., X) of each plane into numbers.

        Args:
            planes: Views of the stored rows.
            out: (..., D), of a float type; its last dimension contiguous.
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

    def planes(self, head_dim: int) -> tuple[Plane, ...]:
        """See `KvScheme`."""
        return (Plane(self.dtype, head_dim),)

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
    """Codes -127 ... 127 with one scale per token and head, symmetric."""

    name: KvSchemeName = "int8"
    view_dtype: None = None

    def planes(self, head_dim: int) -> tuple[Plane, ...]:
        """See `KvScheme`."""
        return Plane(torch.int8, head_dim), Plane(torch.float16, 1)

    def rotation_factors(self, head_dim: int) -> None:
        """See `KvScheme`: nothing is rotated."""

    def encode(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """See `KvScheme`."""
        numbers = numbers.float()
        largest = numbers.abs().amax(dim=-1, keepdim=True)
        scale = (largest / 127.0).clamp_(_MIN_INT8_SCALE, _FP16_MAX).half()
        codes = (numbers / scale.float()).round_().clamp_(-127.0, 127.0)
        return codes.to(torch.int8), scale

    def decode(self, planes: Sequence[Tensor], out: Tensor, workspace: Workspace) -> None:
        """See `KvScheme`."""
        codes, scale = planes
        out.copy_(codes).mul_(scale.to(out.dtype))


@dataclass(frozen=True, slots=True)
class Int4Scheme:
    """Codes 0 ... 15 in groups, each with a scale and a minimum, of rotated numbers.

    A byte holds a number of the first half of the head (low four bits) and one of the second half,
    so that unpacking is two operations on whole rows.
    """

    name: KvSchemeName = "int4"
    view_dtype: None = None

    def planes(self, head_dim: int) -> tuple[Plane, ...]:
        """See `KvScheme`; D must be even."""
        groups = head_dim // _group_size(head_dim)
        return Plane(torch.uint8, head_dim // 2), Plane(torch.float16, 2 * groups)

    def rotation_factors(self, head_dim: int) -> tuple[float, float] | None:
        """See `KvScheme`. Both are powers of two, so that bfloat16 multiplies exactly."""
        if head_dim & (head_dim - 1):
            return None
        power = head_dim.bit_length() - 1
        return 2.0 ** -(power // 2), 2.0 ** -(power - power // 2)

    def encode(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """See `KvScheme`."""
        D = numbers.shape[-1]
        grouped = numbers.float().view(*numbers.shape[:-1], -1, _group_size(D))
        low, high = grouped.aminmax(dim=-1, keepdim=True)
        minimum = low.clamp(-_FP16_MAX, _FP16_MAX).half()
        # From the minimum as it is stored, so that its rounding costs nothing at the upper end.
        scale = ((high - minimum.float()) / 15.0).clamp_(_MIN_INT4_SCALE, _FP16_MAX).half()
        codes = ((grouped - minimum.float()) / scale.float()).round_().clamp_(0.0, 15.0)
        codes = codes.to(torch.uint8).flatten(-2)
        packed = codes[..., : D // 2] | (codes[..., D // 2 :] << 4)
        return packed, torch.cat([scale.squeeze(-1), minimum.squeeze(-1)], dim=-1)

    def decode(self, planes: Sequence[Tensor], out: Tensor, workspace: Workspace) -> None:
        """See `KvScheme`."""
        packed, parameters = planes
        half = packed.shape[-1]
        codes = workspace.take("nibbles", packed.shape, torch.uint8, packed)
        out[..., :half].copy_(torch.bitwise_and(packed, 15, out=codes))
        out[..., half:].copy_(torch.bitwise_right_shift(packed, 4, out=codes))
        scale, minimum = parameters.to(out.dtype).unsqueeze(-1).chunk(2, dim=-2)
        out.view(*out.shape[:-1], scale.shape[-2], -1).mul_(scale).add_(minimum)


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
    return sum(
        2 * layer.num_kv_heads * sum(plane.row_bytes for plane in scheme.planes(layer.head_dim))
        for layer in geometry
    )


def hadamard(size: int, *, factor: float, device: torch.device) -> Tensor:
    """Sylvester's symmetric matrix of +-factor, (size, size), float32; size is a power of two."""
    matrix = torch.full((1, 1), factor)
    while matrix.shape[0] < size:
        row = torch.cat([matrix, matrix], dim=1)
        matrix = torch.cat([row, torch.cat([matrix, -matrix], dim=1)])
    return matrix.to(device)


def _group_size(head_dim: int) -> int:
    return math.gcd(head_dim, _INT4_GROUP)
