"""Runs one step of the model: chunks of several sequences in, logits out. Engine thread only."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.attention.base import AttentionBackend, Span, extents_of
from inference.kv_cache.tensors import KvTensors
from inference.model.bridge import BlockCache, TransformersBridge
from inference.model.step_threads import StepThreads


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence to compute in a step.

    Attributes:
        token_ids: The new tokens, at least one.
        start: Tokens before them, already in the blocks.
        block_table: Block ids of the sequence, enough for start + len(token_ids) tokens.
        needs_logits: Whether the logits after the last of them are wanted.
        needs_all_logits: Whether those after each of them are.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    needs_logits: bool
    needs_all_logits: bool = False


class ModelRunner:
    """One model with its KV memory.

    Attributes:
        kv: The memory of the blocks.
        device: Where the model and that memory are.
    """

    def __init__(
        self,
        bridge: TransformersBridge,
        kv: KvTensors,
        attention: AttentionBackend,
        *,
        device: torch.device,
        has_fast_rows: bool = False,
    ) -> None:
        """Join the parts.

        Args:
            bridge: The model.
            kv: Memory of the bridge's geometry, on `device`.
            attention: How to read it.
            device: Where the model is.
            has_fast_rows: Whether a step of one token may run on any number of threads, as with
                `FastLinear`; else all steps run on as many as torch is set to.
        """
        self.kv = kv
        self._bridge = bridge
        self._attention = attention
        self.device = device
        self._cache = BlockCache(kv, attention)
        self._num_threads = torch.get_num_threads()
        self._one_row_threads = StepThreads(self._num_threads) if has_fast_rows else None

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Compute the chunks in one pass and store their keys and values.

        Args:
            chunks: At least one; no two may share a block that either writes to.

        Returns:
            (number of tokens whose logits are wanted, V), float32, in the order of the tokens.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        keep: list[int] = []
        spans: list[Span] = []
        for chunk in chunks:
            span = self._span(chunk, row=len(token_ids))
            spans.append(span)
            token_ids += chunk.token_ids
            positions += range(chunk.start, chunk.start + span.num_rows)
            slots += self._new_slots(chunk)
            if chunk.needs_all_logits:
                keep += range(span.row, len(token_ids))
            elif chunk.needs_logits:
                keep.append(len(token_ids) - 1)
        if len(token_ids) > 1 or self._one_row_threads is None:
            torch.set_num_threads(self._num_threads)
            return self._forward(token_ids, positions, slots, keep, spans)
        torch.set_num_threads(self._one_row_threads.choose())
        began = time.perf_counter()
        logits = self._forward(token_ids, positions, slots, keep, spans)
        self._one_row_threads.record(time.perf_counter() - began)
        return logits

    def _forward(
        self,
        token_ids: list[int],
        positions: list[int],
        slots: list[int],
        keep: list[int],
        spans: list[Span],
    ) -> Tensor:
        with torch.inference_mode():
            self._attention.begin_step(spans)
            self._cache.slots = self._tensor(slots)
            ids, places = self._tensor(token_ids)[None], self._tensor(positions)[None]
            return self._bridge.forward(ids, places, self._tensor(keep), self._cache)

    def _span(self, chunk: Chunk, *, row: int) -> Span:
        num_rows = len(chunk.token_ids)
        extents = extents_of(chunk.block_table, self.kv.block_size, chunk.start + num_rows)
        return Span(row, num_rows, chunk.start, extents)

    def _new_slots(self, chunk: Chunk) -> list[int]:
        """The slots of the chunk's tokens; their blocks count as touched from here on."""
        size, end = self.kv.block_size, chunk.start + len(chunk.token_ids)
        first_block = chunk.start // size
        written = chunk.block_table[first_block : -(-end // size)]
        self.kv.touch(written)
        slots: list[int] = []
        for index, block_id in enumerate(written, start=first_block):
            low, high = max(chunk.start - index * size, 0), min(end - index * size, size)
            slots += range(block_id * size + low, block_id * size + high)
        return slots

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)
