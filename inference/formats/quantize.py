"""Rounds rows of floats to ggml's block types, as a GGUF file would hold them. Any thread.

Source of the layouts: ggml-org/ggml, src/ggml-common.h.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

BLOCK = 32
_LEVELS = (13.6, 14.2, 14.7, 15.0, 15.4, 15.9)  # of how many steps a block's range is tried as
_FP16_MAX = 65504.0

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def to_q8_0(numbers: Floats) -> Bytes:
    """Round rows, (N, K), to rows of Q8_0 blocks: a scale, fp16, and 32 codes each."""
    N = numbers.shape[0]
    blocks = numbers.reshape(N, -1, BLOCK)
    scale = (np.abs(blocks).max(axis=2, keepdims=True) / 127.0).astype(np.float16)
    divisor = np.where(scale > 0, scale, 1).astype(np.float32)
    codes = np.clip(np.rint(blocks / divisor), -127, 127).astype(np.int8)
    packed = np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=2)
    return np.ascontiguousarray(packed.reshape(N, -1))


def to_q4_1(numbers: Floats) -> Bytes:
    """Round rows, (N, K), to rows of Q4_1 blocks: a scale and a minimum, fp16, and 32 codes each.

    Scale and minimum are those with the least square error that a few tries find: codes for a range a
    bit wider or narrower than the block's, then the straight line through (code, number).
    """
    x = np.ascontiguousarray(numbers.reshape(-1, BLOCK).T)  # sums over 32 go along the first axis
    low = x.min(axis=0)
    above = x - low
    scale, minimum = _best_lines(above)
    scale16 = scale.astype(np.float16)
    minimum16 = np.clip(minimum + low, -_FP16_MAX, _FP16_MAX).astype(np.float16)
    divisor = np.where(scale16 > 0, scale16, 1).astype(np.float32)
    codes = np.clip(np.rint((x - minimum16.astype(np.float32)) / divisor), 0, 15).astype(np.uint8)
    half = BLOCK // 2
    parts = (
        scale16.view(np.uint8).reshape(-1, 2),
        minimum16.view(np.uint8).reshape(-1, 2),
        (codes[:half] | codes[half:] << 4).T,
    )
    packed = np.concatenate(parts, axis=1)
    return np.ascontiguousarray(packed.reshape(numbers.shape[0], -1))


def _best_lines(x: Floats) -> tuple[Floats, Floats]:
    """Scale and minimum of each block, x (32, n) with 0 as the least number of each: (n,) twice."""
    width = x.max(axis=0)
    sum_x, sum_xx = x.sum(axis=0), np.einsum("ij,ij->j", x, x)
    best_scale, best_minimum = width / 15.0, np.zeros_like(width)
    best_error = np.full_like(width, np.inf)
    safe_width = np.where(width > 0, width, 1)
    for levels in _LEVELS:
        codes = np.minimum(np.rint(x * (levels / safe_width).astype(np.float32)), 15.0)
        sum_c, sum_cc = codes.sum(axis=0), np.einsum("ij,ij->j", codes, codes)
        sum_cx = np.einsum("ij,ij->j", codes, x)
        spread = BLOCK * sum_cc - sum_c * sum_c
        scale = (BLOCK * sum_cx - sum_c * sum_x) / np.where(spread > 0, spread, 1)
        minimum = (sum_x - scale * sum_c) / BLOCK
        error = sum_xx - scale * sum_cx - minimum * sum_x
        is_better = (error < best_error) & (spread > 0) & (scale <= _FP16_MAX)
        best_scale = np.where(is_better, scale, best_scale)
        best_minimum = np.where(is_better, minimum, best_minimum)
        best_error = np.where(is_better, error, best_error)
    return np.minimum(best_scale, _FP16_MAX).astype(np.float32), best_minimum.astype(np.float32)


def to_f32(numbers: Floats) -> Bytes:
    """The bytes of rows, (N, K)."""
    return np.ascontiguousarray(numbers).view(np.uint8)


QUANTIZERS: dict[str, Callable[[Floats], Bytes]] = {
    "F32": to_f32,
    "Q8_0": to_q8_0,
    "Q4_1": to_q4_1,
}
