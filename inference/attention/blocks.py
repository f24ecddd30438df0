"""Attention that walks the blocks: the CPU backend in plain torch. Engine thread only.

Nothing gathers a whole history and nothing builds a mask over it. For one sequence:

    keys    [0 ................ start)[start ... start + T)
            earlier steps              this step
            pieces, no mask            causal
            └── each gives (out, lse); merged at the end ──┘

A *piece* is a run of consecutive blocks, read where it lies. If blocks are scattered, or are stored
otherwise than the query's type, a handful is copied into one scratch that all layers share; it must
stay in the processor's cache.

With a window W the rows go in groups of at most min(W, 128), and the keys of a group are

    [start - W + 1 ... start - W + T)[ .......... start)[start ... start + T)
     the edge, leaves row by row       seen by all rows   causal

Decode (T = 1) is one unmasked read of everything the token sees, itself included.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from inference.attention.base import SMALL_BLOCK_SIZE, Extent, LayerCall, Span, cut_extents
from inference.attention.cutting import piece_tokens, scratch_tokens, sizes_on, split
from inference.attention.partial import Partial, attend_all, attend_causal, attend_edge, merge
from inference.kv_cache.layer_memory import KeyValues, LayerMemory

# Up to here runs are copied one by one; more are gathered slot by slot, at one call's cost. With 16
# blocks of 32 in 3 heads of 64 that took 19 us instead of 93.
_MAX_COPIED_RUNS = 2


class _Piece(NamedTuple):
    """Runs of slots that are read together.

    Attributes:
        runs: In the order of the tokens.
        slots: Every slot of them, (S,), int64, if the runs are many; else None.
    """

    runs: tuple[Extent, ...]
    slots: Tensor | None


class BlocksAttention:
    """Piecewise attention over block tables."""

    name = "blocks"
    block_size = SMALL_BLOCK_SIZE

    def __init__(self) -> None:
        self._spans: Sequence[Span] = ()
        self._plans: dict[tuple[int, int, int, int], list[_Piece]] = {}
        self._scratch: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def begin_step(self, spans: Sequence[Span]) -> None:
        """See `AttentionBackend`."""
        self._spans = spans
        self._plans.clear()

    def attend(self, query: Tensor, new: KeyValues, past: LayerMemory, call: LayerCall) -> Tensor:
        """See `AttentionBackend`."""
        if len(self._spans) == 1:
            return self._attend_span(0, query, new, past, call).transpose(1, 2)
        parts = []
        for index, span in enumerate(self._spans):
            rows = slice(span.row, span.row + span.num_rows)
            own = KeyValues(new.keys[:, :, rows], new.values[:, :, rows])
            parts.append(self._attend_span(index, query[:, :, rows], own, past, call))
        return torch.cat(parts, dim=2).transpose(1, 2)

    def _attend_span(
        self, index: int, query: Tensor, new: KeyValues, past: LayerMemory, call: LayerCall
    ) -> Tensor:
        span = self._spans[index]
        if span.num_rows == 1:
            end = span.start + 1
            begin = 0 if call.window is None else max(0, end - call.window)
            with _one_thread() if query.device.type == "cpu" else nullcontext():
                return merge(self._attend_pieces(index, (begin, end), query, past, call), call)
        if call.window is None or call.window >= span.start + span.num_rows:
            parts = self._attend_pieces(index, (0, span.start), query, past, call)
            return merge([*parts, attend_causal(query, new, call)], call)
        return self._attend_window(index, query, new, past, call)

    def _attend_window(
        self, index: int, query: Tensor, new: KeyValues, past: LayerMemory, call: LayerCall
    ) -> Tensor:
        """Several rows of which some no longer see the beginning."""
        assert call.window is not None, "layers without a window do not come here"
        span, window = self._spans[index], call.window
        group = min(window, sizes_on(past.device).window_rows)
        outs = []
        for row in range(0, span.num_rows, group):
            num_rows = min(group, span.num_rows - row)
            start = span.start + row
            rows = slice(row, row + num_rows)
            # [edge_begin, edge_end) leaves row by row; [edge_end, start) is seen by every row.
            edge_begin, edge_end = max(0, start - window + 1), max(0, start - window + num_rows)
            part = query[:, :, rows]
            own = KeyValues(new.keys[:, :, rows], new.values[:, :, rows])
            parts = [
                attend_edge(part, self._read(piece, past, query.dtype), call)
                for piece in self._plan(index, (edge_begin, edge_end), past, part, one=True)
            ]
            parts += self._attend_pieces(index, (edge_end, start), part, past, call)
            outs.append(merge([*parts, attend_causal(part, own, call)], call))
        return torch.cat(outs, dim=2)

    def _attend_pieces(
        self, index: int, tokens: tuple[int, int], query: Tensor, past: LayerMemory, call: LayerCall
    ) -> list[Partial]:
        """Attend to the tokens [begin, end) of a sequence, all of them visible to every row."""
        return [
            attend_all(query, self._read(piece, past, query.dtype), call)
            for piece in self._plan(index, tokens, past, query)
        ]

    def _plan(
        self,
        index: int,
        tokens: tuple[int, int],
        past: LayerMemory,
        query: Tensor,
        *,
        one: bool = False,
    ) -> list[_Piece]:
        """How to read [begin, end): the same for all layers of a step, so worked out once.

        Args:
            index: The span's.
            tokens: begin and end, in tokens of the sequence.
            past: Of it only scheme and shape count: what cannot be viewed must be copied.
            query: Only its shape and type count.
            one: Never split; only for fewer tokens than the scratch holds.
        """
        limit = tokens[1] if one else piece_tokens(past, query)
        key = (index, *tokens, limit)
        pieces = self._plans.get(key)
        if pieces is None:
            extents = cut_extents(self._spans[index].extents, *tokens)
            sizes = sizes_on(past.device) if past.can_view(query.dtype) and not one else None
            pieces = [_piece(runs, past) for runs in split(extents, limit, sizes)]
            self._plans[key] = pieces
        return pieces

    def _read(self, piece: _Piece, past: LayerMemory, dtype: torch.dtype) -> KeyValues:
        """The keys and values of one piece, (1, KH, S, D); valid until the next read."""
        if len(piece.runs) == 1 and past.can_view(dtype):
            keys, values = past.view(*piece.runs[0])
        else:
            keys, values = self._copy(piece, past, dtype).chunk(2)
        return KeyValues(keys.unsqueeze(0), values.unsqueeze(0))

    def _copy(self, piece: _Piece, past: LayerMemory, dtype: torch.dtype) -> Tensor:
        """Keys and values behind each other, (2 * KH, S, D)."""
        # NOTE: into memory that is there, never a new tensor: allocating costs ten times the copy.
        heads, D = 2 * past.geometry.num_kv_heads, past.geometry.head_dim
        num_slots = sum(count for _, count in piece.runs)
        scratch = self._scratch_for(past, dtype)
        copied = scratch[: heads * num_slots * D].view(heads, num_slots, D)
        if piece.slots is not None:
            past.read_slots(piece.slots, copied)
            return copied
        used = 0
        for first, count in piece.runs:
            past.read_run(first, count, copied.narrow(1, used, count))
            used += count
        return copied

    def _scratch_for(self, past: LayerMemory, dtype: torch.dtype) -> Tensor:
        """A flat buffer that all layers of this shape share."""
        KH, D = past.geometry.num_kv_heads, past.geometry.head_dim
        scratch = self._scratch.get((KH, D, dtype))
        if scratch is None:
            size = 2 * KH * scratch_tokens(past) * D
            scratch = torch.empty(size, dtype=dtype, device=past.device)
            self._scratch[KH, D, dtype] = scratch
        return scratch


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread inside.

    For a single row the kernel's last digits depend on how many threads share the keys, and decode
    steps run on a number that is found out by a clock. Switching costs less than a microsecond.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _piece(runs: tuple[Extent, ...], past: LayerMemory) -> _Piece:
    if len(runs) <= _MAX_COPIED_RUNS:
        return _Piece(runs, None)
    slots = [slot for first, count in runs for slot in range(first, first + count)]
    return _Piece(runs, torch.tensor(slots, device=past.device))
