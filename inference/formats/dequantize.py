"""Turns ggml's weight blocks into ordinary tensors, in torch, on the CPU. Any thread.

Each unpacker takes whole blocks, (n, block_bytes) uint8, and fills (n, block_elements) float32.
Work goes in slices of rows, so that scratch memory stays at a few MB whatever the tensor's size.

Source of the layouts: the GGUF format's block structures in ggml (ggml-org/ggml,
src/ggml-common.h). Arithmetic is float32 in the same order, so results are equal to the last bit.
Rarer types are unpacked by a library: see `library_blocks`.
"""

from collections.abc import Callable

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
from inference.formats.library_blocks import LIBRARY_UNPACKERS

SLICE_ELEMENTS = 2**19  # measured fastest between 2^17 and 2^20: the scratch stays in the cache

_PLAIN = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
}


def can_dequantize(type_name: str) -> bool:
    """Whether `dequantize` knows this tensor type."""
    return type_name in _PLAIN or type_name in _UNPACKERS


def dequantize(data: Tensor, type_name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Unpack one tensor.

    Args:
        data: The tensor's bytes, (num_bytes,) uint8 on the CPU; not changed.
        type_name: A type for which `can_dequantize` is true.
        shape: Rows first; the last size is a multiple of the type's block.
        dtype: A floating type for the result.

    Returns:
        A new tensor of `shape` on the CPU that shares no memory with `data`.
    """
    plain = _PLAIN.get(type_name)
    if plain is not None:
        if data.data_ptr() % plain.itemsize:
            data = data.clone()
        return data.view(plain).to(dtype, copy=True).reshape(shape)
    kind = TENSOR_TYPES_BY_NAME[type_name]
    unpack = _UNPACKERS[type_name]
    blocks = data.view(-1, kind.block_bytes)
    result = torch.empty(blocks.shape[0], kind.block_elements, dtype=dtype)
    step = SLICE_ELEMENTS // kind.block_elements
    scratch = torch.empty(min(step, blocks.shape[0]), kind.block_elements)
    for start in range(0, blocks.shape[0], step):
        part = blocks[start : start + step]
        target = result[start : start + step]
        if dtype == torch.float32:
            unpack(part, target)
        else:
            unpacked = scratch[: part.shape[0]]
            unpack(part, unpacked)
            target.copy_(unpacked)
    return result.reshape(shape)


def _unpack_q4_0(blocks: Tensor, out: Tensor) -> None:
    unpack_nibbles(blocks[:, 2:], out)
    out.sub_(8).mul_(half(blocks, 0))


def _unpack_q4_1(blocks: Tensor, out: Tensor) -> None:
    unpack_nibbles(blocks[:, 4:], out)
    out.mul_(half(blocks, 0)).add_(half(blocks, 2))


def _unpack_q5_0(blocks: Tensor, out: Tensor) -> None:
    unpack_nibbles(blocks[:, 6:], out)
    add_fifth_bits(blocks[:, 2:6], out)
    out.sub_(16).mul_(half(blocks, 0))


def _unpack_q5_1(blocks: Tensor, out: Tensor) -> None:
    unpack_nibbles(blocks[:, 8:], out)
    add_fifth_bits(blocks[:, 4:8], out)
    out.mul_(half(blocks, 0)).add_(half(blocks, 2))


def _unpack_q8_0(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks[:, 2:].view(torch.int8))
    out.mul_(half(blocks, 0))


# K-quants: super-blocks of 256 elements with small integer scales per sub-block.


def _two_bit_planes(quants: Tensor) -> Tensor:
    """Unpack 2-bit numbers: (n, 64) bytes to (n, 2, 4, 32), the plane being the bits' place."""
    halves = quants.reshape(-1, 2, 1, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    return (halves >> shifts) & 3


def _unpack_q2_k(blocks: Tensor, out: Tensor) -> None:
    scales = blocks[:, :16]
    factors = half(blocks, 80) * (scales & 15)
    minima = half(blocks, 82) * (scales >> 4)
    out.copy_(_two_bit_planes(blocks[:, 16:80]).reshape(out.shape))
    groups = out.view(-1, 16, 16)
    groups.mul_(factors[:, :, None]).sub_(minima[:, :, None])


def _unpack_q3_k(blocks: Tensor, out: Tensor) -> None:
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    third_bits = (blocks[:, None, :32] >> shifts) & 1
    low = _two_bit_planes(blocks[:, 32:96])
    out.copy_((low | third_bits.view(low.shape) << 2).reshape(out.shape))
    # 16 scales of 6 bits: low halves in 8 bytes of nibbles, high pairs in 4 bytes.
    packed = blocks[:, 96:108]
    low_scales = torch.cat([packed[:, :8] & 15, packed[:, :8] >> 4], dim=1)
    pair_shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high_scales = ((packed[:, None, 8:] >> pair_shifts) & 3).reshape(-1, 16)
    scales = (low_scales | high_scales << 4).float().sub_(32)
    factors = half(blocks, 108) * scales
    out.sub_(4).view(-1, 16, 16).mul_(factors[:, :, None])


def _scale_sub_blocks(blocks: Tensor, out: Tensor) -> None:
    scales, minima = six_bit_scales(blocks[:, 4:16])
    factors = half(blocks, 0) * scales
    offsets = half(blocks, 2) * minima
    out.view(-1, 8, 32).mul_(factors[:, :, None]).sub_(offsets[:, :, None])


def _unpack_q4_k(blocks: Tensor, out: Tensor) -> None:
    unpack_nibbles(blocks[:, 16:].view(-1, 4, 32), out.view(-1, 4, 64))
    _scale_sub_blocks(blocks, out)


def _unpack_q5_k(blocks: Tensor, out: Tensor) -> None:
    unpack_nibbles(blocks[:, 48:].view(-1, 4, 32), out.view(-1, 4, 64))
    add_fifth_bits_k(blocks[:, 16:48], out)
    _scale_sub_blocks(blocks, out)


def _unpack_q6_k(blocks: Tensor, out: Tensor) -> None:
    nibbles = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat([nibbles & 15, nibbles >> 4], dim=2).view(-1, 2, 4, 32)
    high = _two_bit_planes(blocks[:, 128:192])
    out.copy_((low | high << 4).reshape(out.shape))
    factors = half(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    out.sub_(32).view(-1, 16, 16).mul_(factors[:, :, None])


_UNPACKERS: dict[str, Callable[[Tensor, Tensor], None]] = {
    "Q4_0": _unpack_q4_0,
    "Q4_1": _unpack_q4_1,
    "Q5_0": _unpack_q5_0,
    "Q5_1": _unpack_q5_1,
    "Q8_0": _unpack_q8_0,
    "Q2_K": _unpack_q2_k,
    "Q3_K": _unpack_q3_k,
    "Q4_K": _unpack_q4_k,
    "Q5_K": _unpack_q5_k,
    "Q6_K": _unpack_q6_k,
    **LIBRARY_UNPACKERS,
}
