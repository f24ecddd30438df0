"""The fields of ggml's weight blocks, for those who unpack them. Any thread, any device.

Blocks are (n, block_bytes) uint8. Source of the layouts: ggml-org/ggml, src/ggml-common.h.
"""

import torch
from torch import Tensor


def half(blocks: Tensor, start: int) -> Tensor:
    """Read the fp16 number at byte `start` of each block: (n, 1) float32."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def unpack_nibbles(quants: Tensor, out: Tensor) -> None:
    """Low halves of the bytes first, then the high halves: (n, 16) to (n, 32)."""
    middle = quants.shape[-1]
    out[..., :middle] = quants & 15
    out[..., middle:] = quants >> 4


def add_fifth_bits(bits: Tensor, out: Tensor) -> None:
    """Add 16 where the element's bit is set: bits (n, 4) uint8, bit j of the word is element j."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    high = (bits[:, :, None] >> shifts) & 1
    out.add_(high.reshape(out.shape), alpha=16)


def add_fifth_bits_k(bits: Tensor, out: Tensor) -> None:
    """The same for Q5_K: bits (n, 32) uint8, bit j of byte i is element 32 * j + i; out (n, 256)."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)[:, None]
    high = (bits[:, None, :] >> shifts) & 1
    out.add_(high.reshape(out.shape), alpha=16)


def six_bit_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack the 8 scales and 8 minima of Q4_K and Q5_K: (n, 12) bytes to twice (n, 8)."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, (rest & 15) | (first >> 6 << 4)], dim=1)
    minima = torch.cat([second & 63, (rest >> 4) | (second >> 6 << 4)], dim=1)
    return scales, minima
