"""Weights of one block type as blocks of another, by their scales instead of by rounding anew.

Types of small tables and grids know a few levels, times a scale. Where another type has the same levels, or
nearly, its scales and codes follow from those of the file, and no search is needed. What is lost, as a
share of the weights' root mean square, beside what the type itself lost when the file was made:

    IQ3_S                   Q4_K   nothing: the odd numbers up to 15
    IQ3_XXS                 Q4_K   1.9 % beside some 20 %: the same, but 15.5 becomes 15
    IQ2_XXS                 Q4_K   2.2 % beside more than 30 %: 8, 25, 43 become 1, 3, 5 times 8.5
    IQ2_XS, IQ2_S, IQ1_M    Q4_K   5 to 7 % beside 30 % and more: 32 weights get one scale, not two
    IQ1_S                   Q4_1   nothing: three levels and a shift
    TQ1_0, TQ2_0            Q4_0   nothing: -1, 0, 1
    MXFP4                   Q5_0   nothing: twice the levels are whole numbers up to 12
    Q3_K                    Q6_K   nothing

("Nothing" is but for the rounding of a scale to fp16.) Each function takes whole blocks, (n, block_bytes)
uint8, and gives rows of blocks of the other type. Any thread. Source of the layouts: ggml-org/ggml,
src/ggml-common.h.
"""

from collections.abc import Callable

import numpy as np
import torch

from inference.formats.block_writing import (
    Bytes,
    Floats,
    write_q4_0,
    write_q4_1,
    write_q4_k,
    write_q5_0,
    write_q6_k,
)
from inference.formats.dequantize import dequantize
from inference.formats.gguf_types import TENSOR_TYPES_BY_NAME

_SUPER = 256  # weights of a block of the K types
_MX_CODES = (np.array([0, 1, 2, 3, 4, 6, 8, 12] * 2) * ([1] * 8 + [-1] * 8) + 16).astype(np.uint8)
_LOW_HALVES, _HIGH_HALVES = np.arange(256) & 15, np.arange(256) >> 4
# Steps in units of d / 8. Least squares give 8, 25, 43 as 1, 3, 5 times 8.514; where two scales become the
# larger one, as 3, 9, 15 times a third, which leaves levels between for the smaller.
_ONE_SCALE_STEP = np.float32(2 * 8.514 / 8)
_TWO_SCALES_STEP = np.float32(2 * 8.514 / 3 / 8)
_SHIFTED_STEP = np.float32(2 * 0.61 / 8)  # of IQ1_M: its levels are 1, 7 and 9


# --- reading ----------------------------------------------------------------------------------


def _half(blocks: Bytes, start: int) -> Floats:
    """The fp16 number at byte `start` of each block: (n, 1)."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _words(blocks: Bytes, start: int, end: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """16 bits each: (n, (end - start) / 2)."""
    return np.ascontiguousarray(blocks[:, start:end]).view(np.uint16)


def _looked_up(quants: Bytes, codes: Bytes) -> Bytes:
    """The codes (16,) of nibbles, low halves first: (..., 16) to (..., 32).

    Whole bytes are looked up, without becoming indices of an array, which would be twice as slow.
    """
    data = np.ascontiguousarray(quants).tobytes()
    halves = [data.translate(codes[table].tobytes()) for table in (_LOW_HALVES, _HIGH_HALVES)]
    arrays = [np.frombuffer(half, np.uint8).reshape(quants.shape) for half in halves]
    return np.concatenate(arrays, axis=-1)


def _nibble_pairs(fields: Bytes) -> Bytes:
    """Low and high half of each byte: (n, k) to (n, k, 2)."""
    return np.stack([fields & 15, fields >> 4], axis=2)


def _numbers(blocks: Bytes, type_name: str) -> Floats:
    shape = (len(blocks), TENSOR_TYPES_BY_NAME[type_name].block_elements)
    data = torch.from_numpy(np.ascontiguousarray(blocks)).view(-1)
    return dequantize(data, type_name, shape, torch.float32).numpy()


def _codes(numbers: Floats, scales: Floats, middle: float, most: int) -> Bytes:
    """What numbers (n, K) are over scales (n, groups), as codes from 0 to `most`.

    A scale of 0 gives the middle, and what is no number 0.
    """
    divisors = np.where(scales == 0, np.float32(1), scales)[:, :, None]
    steps = numbers.reshape(*scales.shape, -1) / divisors + np.float32(middle)
    codes = np.fmin(np.fmax(np.rint(steps), 0), most).astype(np.uint8)
    return codes.reshape(numbers.shape)


# --- one function for each type ---------------------------------------------------------------


def _mxfp4(blocks: Bytes) -> Bytes:
    exponents = np.minimum(blocks[:, :1].astype(np.int32) - 128, 15)
    scales = np.ldexp(np.float32(1), exponents)
    scales[blocks[:, :1] == 255] = np.nan  # as the format has it
    return write_q5_0(scales, _looked_up(blocks[:, 1:], _MX_CODES))


def _three_levels(type_name: str, start: int, blocks: Bytes) -> Bytes:
    scales = _half(blocks, start).repeat(8, axis=1)
    codes = _codes(_numbers(blocks, type_name), scales, 8, 10)  # two bits can hold one more
    return write_q4_0(scales.reshape(-1, 1), codes.reshape(-1, 32))


def _iq1_s(blocks: Bytes) -> Bytes:
    fields = _words(blocks, 34, 50)
    scales = _half(blocks, 0) * (2 * (fields >> 12 & 7) + 1).astype(np.float32)
    minima = scales * np.where(fields >> 15, np.float32(-1.125), np.float32(-0.875))
    above = _numbers(blocks, "IQ1_S").reshape(-1, 8, 32) - minima[:, :, None]
    codes = _codes(above.reshape(-1, _SUPER), scales, 0, 2)
    return write_q4_1(scales.reshape(-1, 1), minima.reshape(-1, 1), codes.reshape(-1, 32))


def _odd_multiples(type_name: str, scale: Floats, fields: Bytes, blocks: Bytes) -> Bytes:
    """To Q4_K, each 32 weights by an odd multiple of scale (n, 1), from its bits, (n, 8)."""
    multiples = 2 * fields + 1
    codes = _codes(_numbers(blocks, type_name), scale * multiples, 7.5, 15)
    return write_q4_k(scale, multiples, codes)


def _iq3_s(blocks: Bytes) -> Bytes:
    fields = _nibble_pairs(blocks[:, 106:110]).reshape(-1, 8)
    return _odd_multiples("IQ3_S", 2 * _half(blocks, 0), fields, blocks)


def _iq3_xxs(blocks: Bytes) -> Bytes:
    return _odd_multiples(
        "IQ3_XXS", 2 * _half(blocks, 0), blocks[:, 69:98:4] >> np.uint8(4), blocks
    )


def _iq2_xxs(blocks: Bytes) -> Bytes:
    fields = blocks[:, 9:66:8] >> np.uint8(4)
    return _odd_multiples("IQ2_XXS", _half(blocks, 0) * _ONE_SCALE_STEP, fields, blocks)


def _iq2_two_scales(type_name: str, start: int, blocks: Bytes) -> Bytes:
    fields = _nibble_pairs(blocks[:, start : start + 8]).max(axis=2)
    return _odd_multiples(type_name, _half(blocks, 0) * _TWO_SCALES_STEP, fields, blocks)


def _iq1_m(blocks: Bytes) -> Bytes:
    words = _words(blocks, 48, 56)
    parts = words >> 12 << np.array([0, 4, 8, 12], dtype=np.uint16)
    d = np.bitwise_or.reduce(parts, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    fields = (words[:, :, None] >> np.array([0, 3, 6, 9], dtype=np.uint16) & 7).astype(np.uint8)
    larger = fields.reshape(-1, 8, 2).max(axis=2)
    return _odd_multiples("IQ1_M", d * _SHIFTED_STEP, larger, blocks)


def _q3_k(blocks: Bytes) -> Bytes:
    packed = blocks[:, 96:108]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = (packed[:, None, 8:] >> shifts & 3).reshape(-1, 16)
    multiples = (low | high << 4).astype(np.int8) - np.int8(32)
    scale = _half(blocks, 108)
    codes = _codes(_numbers(blocks, "Q3_K"), scale * multiples, 32, 63)
    return write_q6_k(scale, multiples, codes)


REPACKERS: dict[str, tuple[str, Callable[[Bytes], Bytes]]] = {
    "IQ3_S": ("Q4_K", _iq3_s),
    "IQ3_XXS": ("Q4_K", _iq3_xxs),
    "IQ2_XXS": ("Q4_K", _iq2_xxs),
    "IQ2_XS": ("Q4_K", lambda blocks: _iq2_two_scales("IQ2_XS", 66, blocks)),
    "IQ2_S": ("Q4_K", lambda blocks: _iq2_two_scales("IQ2_S", 74, blocks)),
    "IQ1_M": ("Q4_K", _iq1_m),
    "IQ1_S": ("Q4_1", _iq1_s),
    "TQ1_0": ("Q4_0", lambda blocks: _three_levels("TQ1_0", 52, blocks)),
    "TQ2_0": ("Q4_0", lambda blocks: _three_levels("TQ2_0", 64, blocks)),
    "MXFP4": ("Q5_0", _mxfp4),
    "Q3_K": ("Q6_K", _q3_k),
}
