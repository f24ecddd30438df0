"""How a sequence's history is cut into pieces, by what a kind of device is good at. Engine thread only."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from inference.attention.base import Extent
from inference.kv_cache.layer_memory import LayerMemory


class Sizes(NamedTuple):
    """How pieces are cut on a kind of device.

    Attributes:
        scratch_elements: The most numbers of keys, and as many of values, in a piece that is copied.
        min_view_tokens: Below, a call on its own costs more than the copy.
        window_rows: The most rows that share the edge of a window.
        max_scores: The most of a piece, over all heads and rows; None where they are never all in memory.
    """

    scratch_elements: int
    min_view_tokens: int
    window_rows: int
    max_scores: int | None


# Two megabytes each of keys and values in float32, for 8 heads of 128: more fell out of the cache
# and took 1.3 times as long; at a quarter, with 3 heads of 64, the many calls took 1.5 times as long.
_ON_CPU = Sizes(512 * 8 * 128, min_view_tokens=256, window_rows=128, max_scores=None)

# Each piece is a dozen launches, some 50 us: time to copy several thousand tokens. But there is no kernel
# that keeps its scores to itself: these are 128 MB in float32.
_ON_GPU = Sizes(32 * 512 * 8 * 128, min_view_tokens=8192, window_rows=512, max_scores=2**25)


def sizes_on(device: torch.device) -> Sizes:
    """What is good on a device."""
    return _ON_CPU if device.type == "cpu" else _ON_GPU


def scratch_tokens(past: LayerMemory) -> int:
    """The most tokens that the scratch ever holds, for layers of this shape."""
    sizes, KH, D = sizes_on(past.device), past.geometry.num_kv_heads, past.geometry.head_dim
    return max(sizes.window_rows, sizes.scratch_elements // (KH * D))


def piece_tokens(past: LayerMemory, query: Tensor) -> int:
    """The most tokens of a piece that is copied; of any piece where scores lie in memory."""
    most, max_scores = scratch_tokens(past), sizes_on(past.device).max_scores
    if max_scores is None:
        return most
    return max(1, min(most, max_scores // (query.shape[1] * query.shape[2])))


def _shortened(extents: Sequence[Extent], limit: int) -> list[Extent]:
    """The same slots in runs of at most so many."""
    return [
        Extent(first_slot + skipped, min(limit, num_slots - skipped))
        for first_slot, num_slots in extents
        for skipped in range(0, num_slots, limit)
    ]


def split(extents: Sequence[Extent], limit: int, sizes: Sizes | None) -> list[tuple[Extent, ...]]:
    """Split runs of slots into pieces: long runs as they lie, the rest in handfuls to be copied.

    Args:
        extents: The runs.
        limit: The most tokens of a piece that is copied; of any piece where scores lie in memory.
        sizes: How long a run must be to be read where it lies; None if none can be.
    """
    min_view = None if sizes is None else sizes.min_view_tokens
    if sizes is not None and sizes.max_scores is not None:
        extents, min_view = _shortened(extents, limit), min(sizes.min_view_tokens, limit)
    if min_view is not None and len(extents) == 1:
        return [tuple(extents)]
    pieces: list[tuple[Extent, ...]] = []
    handful: list[Extent] = []
    held = 0
    for extent in extents:
        if min_view is not None and extent.num_slots >= min_view:
            pieces.append((extent,))
            continue
        first, remaining = extent
        while remaining:
            count = min(remaining, limit - held)
            handful.append(Extent(first, count))
            first, remaining, held = first + count, remaining - count, held + count
            if held == limit:
                pieces.append(tuple(handful))
                handful, held = [], 0
    if handful:
        pieces.append(tuple(handful))
    return pieces
