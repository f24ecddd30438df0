"""What moves between the tiers of the KV memory, and who moves it. Pure Python; any thread.

    device      blocks of the KV tensors                        a hit moves up, asynchronously
      │ ▲       evicted: one block is copied down at once
    RAM slots   whole blocks, put aside                         both lose the least recently used,
      │ ▲                                                       tails before what they need
    disk        written at the end of each turn, read on a hit

A *row* is one token's place in a block: rows 0 ... P - 1. What lies in a block is named by the key of
the block before it (the *base*) and the ids of its first rows. On disk a block is one or more
*pieces*: each turn writes only the rows that are new, so no row is ever written twice:

    block     | 0 ........ 19 | 20 .... 31 |        turn 1 ended after row 19, turn 2 filled the block
    pieces    [0, 20)          [20, 32)

A piece [start, end) is named by H(namespace, base key, ids of rows 0 ... end - 1), so of two pieces
with the same text before them both fit, whoever wrote them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inference.kv_cache.block import BlockHash


@dataclass(frozen=True, slots=True)
class RamSource:
    """Rows [start, end) of a block, in a RAM slot.

    Attributes:
        slot: Index of the slot; it holds a whole block's rows, of which the first are of worth.
    """

    slot: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A file of the disk tier: rows [start, end) of one block.

    Attributes:
        key: H(namespace, base key, ids of the rows [0, end)).
        start: First row in the file, below `end`.
        end: One past the last row, at most P.
    """

    key: BlockHash
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class DiskSource:
    """Rows [start, end) of a block, within the piece's own rows."""

    piece: Piece
    start: int
    end: int


Source = RamSource | DiskSource


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """One block to fill from lower tiers.

    Attributes:
        block_id: Where the rows go; used by one table, not published.
        base_key: Key of the block before it; `ROOT_KEY` for the first.
        token_ids: Of the rows [0, n) that are wanted, 1 <= n <= P.
        sources: Where they are: consecutive, from row 0 to row n.
    """

    block_id: int
    base_key: BlockHash
    token_ids: tuple[int, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block on the device and what it holds.

    Attributes:
        block_id: Its id.
        base_key: Key of the block before it; `ROOT_KEY` for the first.
        token_ids: Of its computed rows, 1 to P of them.
    """

    block_id: int
    base_key: BlockHash
    token_ids: tuple[int, ...]


class LoadTicket(Protocol):
    """Loads under way; asked on the engine thread."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is written to the blocks any more."""

    @property
    def succeeded(self) -> Sequence[bool]:
        """Per load, in order, whether its rows are there and verified; only when done."""

    def cancel(self) -> None:
        """Bring nothing more than what is on its way; it is done soon."""


class BlockMover(Protocol):
    """Moves rows for the block manager; implemented beside the tensors."""

    def copy_rows(self, source: int, target: int, num_rows: int) -> None:
        """Copy the first rows of one device block into another, at once."""

    def spill(self, block_id: int, slot: int) -> None:
        """Copy a device block into a RAM slot, at once."""

    def load(self, loads: Sequence[BlockLoad]) -> LoadTicket:
        """Begin to fill blocks; they and the RAM slots belong to the mover until it is done."""

    def discard(self, block_ids: Sequence[int]) -> None:
        """Give the memory of free device blocks back to the system, where that is possible."""


class DiskIndex(Protocol):
    """What the block manager asks the disk tier; returns at once."""

    def cover(self, base_key: BlockHash, token_ids: Sequence[int]) -> tuple[DiskSource, ...]:
        """Sources of as many rows of one block as the disk holds.

        Args:
            base_key: Key of the block before it.
            token_ids: Ids of the wanted rows [0, n), n <= P.

        Returns:
            Consecutive from row 0 on; empty if there is nothing. Whether the files can be read and
            verified only loading tells.
        """

    def was_damaged(self, base_key: BlockHash) -> bool:
        """Whether rows of the block after `base_key` were in a file that was at fault.

        True until something is written there anew. A piece of which only a part is wanted is found to
        be damaged when it is looked for, before anything is loaded.
        """
