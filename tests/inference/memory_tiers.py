"""A mover and a disk that keep what lies in each row, so that a wrong row is caught.

A row is (token id, position, chain): chain stands for all tokens up to this one, as keys and values
do. Loads are done only when a test says so, and copy then, so that a source or target that was
given to somebody else meanwhile is caught too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from inference.kv_cache.block import BlockHash, hash_block
from inference.kv_cache.manager import KvCacheManager
from inference.kv_cache.tiers import (
    BlockLoad,
    DiskSource,
    HeldBlock,
    Piece,
    RamSource,
)

Row = tuple[int, int, int]


def rows_of(token_ids: Sequence[int]) -> list[Row]:
    """What a model writes for each token."""
    rows = []
    chain = 0
    for position, token_id in enumerate(token_ids):
        chain = hash((chain, token_id))
        rows.append((token_id, position, chain))
    return rows


@dataclass(eq=False)
class FakeTicket:
    """Ends when it is told to."""

    loads: tuple[BlockLoad, ...]
    succeeded: list[bool] = field(default_factory=list)
    is_done: bool = False
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeDisk:
    """Pieces by the rules of the real tier, and their rows. Damaged ones fail once."""

    def __init__(self) -> None:
        self.pieces: dict[BlockHash, tuple[BlockHash, tuple[int, ...], Piece, list[Row]]] = {}
        self.damaged: set[BlockHash] = set()
        self.asked = 0

    def cover(self, base_key: BlockHash, token_ids: Sequence[int]) -> tuple[DiskSource, ...]:
        self.asked += 1
        sources: list[DiskSource] = []
        end = 0
        while end < len(token_ids):
            found = [
                (min(piece.end, _num_equal(ids, token_ids)), piece)
                for base, ids, piece, _ in self.pieces.values()
                if base == base_key and piece.start <= end
            ]
            reach, best = max(found, key=lambda pair: pair[0], default=(0, None))
            if best is None or reach <= end:
                break
            sources.append(DiskSource(best, end, reach))
            end = reach
        return tuple(sources)

    def was_damaged(self, base_key: BlockHash) -> bool:
        return False

    def save(self, held: Sequence[HeldBlock], device: "FakeMover") -> None:
        """Write the rows that no piece holds yet, as the end of a turn does."""
        for block in held:
            covered = self.cover(block.base_key, block.token_ids)
            start = covered[-1].end if covered else 0
            if start < len(block.token_ids):
                ids = block.token_ids
                key = hash_block(b"disk", block.base_key, ids)
                piece = Piece(key, start, len(ids))
                rows = [device.row(block.block_id, i) for i in range(start, len(ids))]
                self.pieces[key] = (block.base_key, ids, piece, rows)

    def read(self, source: DiskSource) -> list[Row] | None:
        held = self.pieces.get(source.piece.key)
        if held is None or source.piece.key in self.damaged:
            self.pieces.pop(source.piece.key, None)
            return None
        return held[3][source.start - source.piece.start : source.end - source.piece.start]


class FakeMover:
    """Rows of device blocks and RAM slots."""

    def __init__(self, block_size: int, disk: FakeDisk | None = None) -> None:
        self.block_size = block_size
        self.disk = disk
        self.rows: dict[tuple[int, int], Row] = {}
        self.slots: dict[int, dict[int, Row]] = {}
        self.tickets: list[FakeTicket] = []
        self.copied: list[tuple[int, int, int]] = []
        self.spilled: list[tuple[int, int]] = []
        self.discarded: list[int] = []

    def row(self, block_id: int, index: int) -> Row:
        return self.rows[block_id, index]

    def copy_rows(self, source: int, target: int, num_rows: int) -> None:
        self.copied.append((source, target, num_rows))
        for index in range(num_rows):
            self.rows[target, index] = self.rows[source, index]

    def spill(self, block_id: int, slot: int) -> None:
        self.spilled.append((block_id, slot))
        self.slots[slot] = {
            index: self.rows[block_id, index]
            for index in range(self.block_size)
            if (block_id, index) in self.rows
        }

    def load(self, loads: Sequence[BlockLoad]) -> FakeTicket:
        ticket = FakeTicket(tuple(loads))
        self.tickets.append(ticket)
        return ticket

    def discard(self, block_ids: Sequence[int]) -> None:
        held = {block_id for block_id, _ in self.rows}
        for block_id in sorted(held.intersection(block_ids)):
            self.discarded.append(block_id)
            self.wipe(block_id)

    def wipe(self, block_id: int) -> None:
        for index in range(self.block_size):
            self.rows.pop((block_id, index), None)

    def finish(self, ticket: FakeTicket, *, failing: Sequence[int] = ()) -> None:
        """Do what a ticket stands for; the loads in `failing` bring nothing."""
        self.tickets.remove(ticket)
        for number, load in enumerate(ticket.loads):
            rows: list[Row] | None = []
            for source in load.sources:
                part = self._read(source)
                rows = None if rows is None or part is None else rows + part
            if number in failing:
                rows = None
            for index, row in enumerate(rows or []):
                self.rows[load.block_id, index] = row
            ticket.succeeded.append(rows is not None)
        ticket.is_done = True

    def finish_all(self) -> None:
        for ticket in list(self.tickets):
            self.finish(ticket)

    def compute(self, block_table: Sequence[int], token_ids: Sequence[int], start: int) -> None:
        """Write rows start ... as a model would; the rows before must be there and right."""
        self.check(block_table, token_ids, start)
        for index, row in enumerate(rows_of(token_ids)[start:], start):
            self.rows[block_table[index // self.block_size], index % self.block_size] = row

    def check(self, block_table: Sequence[int], token_ids: Sequence[int], end: int) -> None:
        """The first rows of a table are those of these tokens."""
        size = self.block_size
        for index, row in enumerate(rows_of(token_ids)[:end]):
            held = self.rows.get((block_table[index // size], index % size))
            assert held == row, f"row {index} is {held} and not {row}"

    def _read(self, source: RamSource | DiskSource) -> list[Row] | None:
        if isinstance(source, DiskSource):
            assert self.disk is not None
            return self.disk.read(source)
        return [self.slots[source.slot][index] for index in range(source.start, source.end)]


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def compute(
    kv: KvCacheManager, mover: FakeMover, token_ids: list[int], owner: str = ""
) -> list[int]:
    """Run a sequence through the cache as a scheduler would, up to its end; it is not released."""
    hit = kv.attach(token_ids, owner)
    assert hit is not None
    table = list(hit.block_ids)
    num_computed = hit.num_tokens
    if hit.loads:
        ticket = mover.load(hit.loads)
        mover.finish(ticket)
        num_computed = kv.finish_load(table, token_ids, hit, ticket.succeeded, owner)
    assert num_computed < len(token_ids)
    assert kv.grow(table, len(token_ids))
    assert kv.is_writable(table, num_computed, len(token_ids) - num_computed)
    mover.compute(table, token_ids, num_computed)
    kv.publish(table, token_ids, len(token_ids), owner)
    return table
