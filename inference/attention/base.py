"""What attention over KV blocks must do, whoever does it. Engine thread only.

All new tokens of one step lie in one row, sequence after sequence. A `Span` says where one
sequence's part is and where its keys and values are:

    row of the step    | span A: 3 tokens | span B: 1 | span C: 2 |
    keys of span C     [0 ------------- start)[start, start + 2)
                        earlier steps          this step, causal among themselves

The keys and values of this step are in the blocks already when a backend is called.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from inference.kv_cache.layer_memory import KeyValues, LayerMemory

# On average half of a chat's last block is empty: of a chat of 400 tokens 98 % is used at 16 per block,
# at 32 only from 780 tokens on. Decode takes the same time with either while blocks lie in one run.
SMALL_BLOCK_SIZE = 16


class Extent(NamedTuple):
    """A run of slots that follow each other in memory."""

    first_slot: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's new tokens in a step.

    Attributes:
        row: Index of its first token in the step.
        num_rows: New tokens, >= 1.
        start: Tokens before them, all in the blocks.
        extents: Slots of the tokens [0, start + num_rows), in order.
    """

    row: int
    num_rows: int
    start: int
    extents: tuple[Extent, ...]


class LayerCall(NamedTuple):
    """How one layer attends.

    Attributes:
        scaling: Factor on the scores.
        window: A token sees itself and the window - 1 tokens before it; None sees all.
        softcap: Scores become softcap * tanh(score / softcap); None leaves them.
        sinks: A score for each head that joins its softmax and has no value, (H,), float32; None for
            none. Not for backends with a kernel of their own.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


class AttentionBackend(Protocol):
    """Attends from new tokens to everything before them, straight from the blocks."""

    @property
    def name(self) -> str:
        """The backend's word in the configuration."""

    @property
    def block_size(self) -> int:
        """P, slots per KV block, that it works best with, or the only one that it can read."""

    def begin_step(self, spans: Sequence[Span]) -> None:
        """Take the spans of the step whose layers come next; anything planned before is dropped."""

    def attend(self, query: Tensor, new: KeyValues, past: LayerMemory, call: LayerCall) -> Tensor:
        """Attend in one layer.

        Args:
            query: (1, H, T, D), T over all spans.
            new: Keys and values of this step's tokens, (1, KH, T, D), rounded to what the blocks
                hold but of the query's type. H is a multiple of KH; query head h reads h * KH // H.
            past: The layer's slots, this step's tokens included. If they are rotated, so are query
                and new, and the result.
            call: How this layer attends.

        Returns:
            (1, T, H, D), of the query's type.
        """


def extents_of(block_table: Sequence[int], block_size: int, num_tokens: int) -> tuple[Extent, ...]:
    """The slots of a sequence's first tokens, as few runs as there are.

    Blocks with consecutive ids are one run, because the slots lie in the order of the ids.

    Args:
        block_table: Block ids in the order of the tokens.
        block_size: P.
        num_tokens: At most len(block_table) * P.
    """
    if num_tokens <= 0:
        return ()
    num_blocks = -(-num_tokens // block_size)
    table = list(block_table[:num_blocks])
    if table == list(range(table[0], table[0] + num_blocks)):  # the usual case, and told fast
        return (Extent(table[0] * block_size, num_tokens),)
    extents: list[Extent] = []
    first = 0
    for index in range(1, num_blocks + 1):  # numpy takes longer for all but very long tables
        if index == num_blocks or table[index] != table[index - 1] + 1:
            extents.append(Extent(table[first] * block_size, (index - first) * block_size))
            first = index
    first_slot, num_slots = extents[-1]
    extents[-1] = Extent(first_slot, num_slots - num_blocks * block_size + num_tokens)
    return tuple(extents)


def cut_extents(extents: Sequence[Extent], begin: int, end: int) -> list[Extent]:
    """The part of a sequence's slots that holds the tokens [begin, end)."""
    cut: list[Extent] = []
    position = 0
    for first_slot, num_slots in extents:
        low, high = max(begin, position), min(end, position + num_slots)
        if low < high:
            cut.append(Extent(first_slot + low - position, high - low))
        position += num_slots
    return cut
