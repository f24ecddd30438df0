"""One step of a model: chunks of several sequences, laid side by side in one row. Engine thread only."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from inference.attention.base import Span, extents_of
from inference.kv_cache.tensors import KvTensors


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


@dataclass(slots=True)
class Step:
    """All rows of a step.

    Attributes:
        token_ids: (T,)
        positions: Each token's place in its own sequence, (T,).
        slots: Where its keys and values go, (T,).
        keep: Rows whose logits are wanted, rising.
        spans: One for each chunk.
    """

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    keep: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


def lay_out(chunks: Sequence[Chunk], kv: KvTensors) -> Step:
    """Lay chunks side by side; the blocks that they write to count as touched from here on.

    Args:
        chunks: At least one; no two may share a block that either writes to.
        kv: The memory of the blocks.
    """
    step = Step()
    for chunk in chunks:
        row, end = len(step.token_ids), chunk.start + len(chunk.token_ids)
        extents = extents_of(chunk.block_table, kv.block_size, end)
        step.spans.append(Span(row, len(chunk.token_ids), chunk.start, extents))
        step.token_ids += chunk.token_ids
        step.positions += range(chunk.start, end)
        step.slots += _new_slots(chunk, kv)
        if chunk.needs_all_logits:
            step.keep += range(row, len(step.token_ids))
        elif chunk.needs_logits:
            step.keep.append(len(step.token_ids) - 1)
    return step


def _new_slots(chunk: Chunk, kv: KvTensors) -> list[int]:
    size, end = kv.block_size, chunk.start + len(chunk.token_ids)
    first_block = chunk.start // size
    written = chunk.block_table[first_block : -(-end // size)]
    kv.touch(written)
    slots: list[int] = []
    for index, block_id in enumerate(written, start=first_block):
        low, high = max(chunk.start - index * size, 0), min(end - index * size, size)
        slots += range(block_id * size + low, block_id * size + high)
    return slots
