"""Writes ggml's weight blocks from scales and codes that are known already. Any thread.

Scales are (n, k) float32 and become fp16: those that are too large its largest number, and what is infinite or
no number stays no number, so that a damaged file is noticed by what the model computes. Codes are uint8,
one per weight. Each function gives (n, block_bytes). Source of the layouts: ggml-org/ggml,
src/ggml-common.h.
"""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

FP16_MAX = 65504.0


def as_half(numbers: Floats) -> Bytes:
    """The bytes of fp16 numbers: (n, k) to (n, 2 k)."""
    return _bounded(numbers, FP16_MAX).astype(np.float16).view(np.uint8)


def _bounded(numbers: Floats, most: float) -> Floats:
    return np.where(np.isfinite(numbers), np.clip(numbers, -most, most), np.float32(np.nan))


def write_q4_0(scale: Floats, codes: Bytes) -> Bytes:
    """Scale (n, 1) times code (n, 32) - 8."""
    return np.concatenate([as_half(scale), _halves(codes)], axis=1)


def write_q4_1(scale: Floats, minimum: Floats, codes: Bytes) -> Bytes:
    """Scale (n, 1) times code (n, 32), plus minimum (n, 1)."""
    return np.concatenate([as_half(scale), as_half(minimum), _halves(codes)], axis=1)


def write_q5_0(scale: Floats, codes: Bytes) -> Bytes:
    """Scale (n, 1) times code (n, 32) - 16."""
    fifth = np.packbits(codes >> 4, axis=1, bitorder="little")
    return np.concatenate([as_half(scale), fifth, _halves(codes & np.uint8(15))], axis=1)


def write_q4_k(scale: Floats, multiples: Bytes, codes: Bytes) -> Bytes:
    """Scale (n, 1) times multiple (n, 8), up to 63, times code (n, 256) - 7.5: levels around zero."""
    scale = _bounded(scale, FP16_MAX / 7.5)  # so that the minimum is fp16 too
    first, last = multiples[:, :4], multiples[:, 4:]
    above, low = first | last >> 4 << 6, last & 15
    minima = 7.5 * scale  # of the same multiples
    planes = codes.reshape(-1, 4, 2, 32)
    quants = (planes[:, :, 0] | planes[:, :, 1] << 4).reshape(-1, 128)
    parts = [as_half(scale), as_half(minima), above, above, low | low << 4, quants]
    return np.concatenate(parts, axis=1)


def write_q6_k(scale: Floats, multiples: npt.NDArray[np.int8], codes: Bytes) -> Bytes:
    """Scale (n, 1) times multiple (n, 16) times code (n, 256) - 32."""
    planes = codes.reshape(-1, 2, 4, 32)
    low = planes & 15
    nibbles = (low[:, :, :2] | low[:, :, 2:] << 4).reshape(-1, 128)
    high = planes >> 4 << np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    pairs = (high[:, :, 0] | high[:, :, 1] | high[:, :, 2] | high[:, :, 3]).reshape(-1, 64)
    return np.concatenate([nibbles, pairs, multiples.view(np.uint8), as_half(scale)], axis=1)


def _halves(codes: Bytes) -> Bytes:
    """Two codes of 4 bits in a byte, 16 apart: (n, 32) to (n, 16)."""
    return codes[:, :16] | codes[:, 16:] << np.uint8(4)
