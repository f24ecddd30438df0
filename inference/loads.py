"""Sequences whose blocks are on their way from RAM or disk. Pure Python; owned by the scheduler.

While a load is under way its blocks belong to the mover, even if nobody wants them any more. So the
blocks of a sequence that is removed meanwhile are kept, and released when the load has ended.
"""

from collections.abc import Callable
from dataclasses import dataclass

from inference.kv_cache.attach import PrefixHit, count_rows
from inference.kv_cache.manager import KvCacheManager
from inference.kv_cache.tiers import BlockMover, LoadTicket
from inference.sequence import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """One load under way.

    Attributes:
        sequence: For whom it was begun.
        block_table: The blocks in question, and what else the sequence holds.
        hit: What is loaded.
        ticket: Says when it has ended.
        began: Seconds, in the clock.
        is_first_time: Whether the sequence had not run before.
    """

    sequence: Sequence
    block_table: list[int]
    hit: PrefixHit
    ticket: LoadTicket
    began: float
    is_first_time: bool


class Loads:
    """Begins loads, and sees them through to their end."""

    def __init__(
        self, kv: KvCacheManager, mover: BlockMover | None, clock: Callable[[], float]
    ) -> None:
        self._kv = kv
        self._mover = mover
        self._clock = clock
        self._wanted: list[_Load] = []
        self._draining: list[_Load] = []

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """Those that wait for their blocks, in the order in which their loads began."""
        return tuple(load.sequence for load in self._wanted)

    @property
    def is_under_way(self) -> bool:
        """Whether any load is not ended yet, or not noticed."""
        return bool(self._wanted or self._draining)

    @property
    def tables(self) -> list[list[int]]:
        """The block tables of all loads."""
        return [load.block_table for load in self._wanted + self._draining]

    def begin(self, sequence: Sequence, hit: PrefixHit, *, is_first_time: bool) -> None:
        """Begin to fill a sequence's blocks.

        Args:
            sequence: With the hit's blocks in its table.
            hit: With loads.
            is_first_time: Whether to note in the sequence what came of it.
        """
        assert self._mover is not None, "whoever has lower tiers has a mover"
        ticket = self._mover.load(hit.loads)
        table = sequence.block_table
        load = _Load(sequence, table, hit, ticket, self._clock(), is_first_time)
        self._wanted.append(load)

    def poll(self) -> list[Sequence]:
        """Take what is loaded into use.

        Returns:
            The sequences that can run now.
        """
        done = [load for load in self._wanted if load.ticket.is_done]
        for load in done:
            self._wanted.remove(load)
            self._finish(load)
        return [load.sequence for load in done]

    def abandon(self, sequence: Sequence) -> bool:
        """Take the blocks from a sequence that is not wanted any more.

        Returns:
            Whether it was loading.
        """
        load = next((load for load in self._wanted if load.sequence is sequence), None)
        if load is None:
            return False
        self._wanted.remove(load)
        self._draining.append(load)
        load.ticket.cancel()
        sequence.block_table = []
        return True

    def drain(self) -> bool:
        """Release the blocks of abandoned loads that have ended; whether others have not."""
        for load in [load for load in self._draining if load.ticket.is_done]:
            self._draining.remove(load)
            self._kv.abandon_load(load.block_table, load.hit)
        return bool(self._draining)

    def _finish(self, load: _Load) -> None:
        sequence, succeeded = load.sequence, load.ticket.succeeded
        sequence.num_computed = self._kv.finish_load(
            load.block_table, sequence.token_ids, load.hit, succeeded, sequence.conversation_id
        )
        if load.is_first_time:
            num_good = next((i for i, is_there in enumerate(succeeded) if not is_there), None)
            num_ram, num_disk = count_rows(load.hit.loads[:num_good])
            sequence.num_reused_ram, sequence.num_reused_disk = num_ram, num_disk
            sequence.num_reused = sequence.num_computed
            sequence.num_lost = load.hit.num_tokens - sequence.num_computed
            sequence.restore_s = self._clock() - load.began
