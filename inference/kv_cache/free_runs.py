"""Free block ids as runs of neighbours. Pure Python; owned by the block pool.

CPU attention reads a run of consecutive blocks as one piece of memory, so a table should be few
long runs. All operations take constant time but for a search over about 20 size classes.

    ids    0 1 2 3 4 5 6 7 8 9
           u u . . . u . . u .        u = not free
    runs       [2,5)   [6,8)  [9,10)      classes by bit length: 1 -> {9}, 2 -> {2, 6}
"""

MIN_SLACK_TO_SHARE = 32
"""Blocks; in a shorter run room to grow is not worth a further run."""


class FreeRuns:
    """A set of block ids that hands out neighbours. Starts with all of 0 ... num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        self._end_of: dict[int, int] = {}  # first id -> id after the last
        self._start_of: dict[int, int] = {}  # id after the last -> first id
        self._classes: list[dict[int, None]] = [{} for _ in range(num_blocks.bit_length() + 1)]
        self._count = 0
        self._insert(0, num_blocks)

    def __len__(self) -> int:
        """How many ids are free."""
        return self._count

    def runs(self) -> list[tuple[int, int]]:
        """All runs as (first id, id after the last), in order of ids."""
        return sorted(self._end_of.items())

    def add(self, block_id: int) -> None:
        """Make one id free, joined with free neighbours. It must not be free."""
        start, end = block_id, block_id + 1
        if block_id in self._start_of:
            start = self._start_of[block_id]
            self._remove(start)
        if end in self._end_of:
            joined = self._end_of[end]
            self._remove(end)
            end = joined
        self._insert(start, end)

    def take_after(self, block_id: int, count: int) -> list[int]:
        """Take up to `count` ids that follow `block_id`, itself not free, without a gap."""
        if block_id + 1 not in self._end_of:
            return []
        return self._take(block_id + 1, block_id + 1, count)

    def take_new(self, count: int) -> list[int]:
        """Take up to `count` neighbours from one of the longest runs; there must be a free id.

        What lies before the run may be a chat that grows again, now or at its next turn. So half of
        a long run's slack is left to it, and neither chat has to jump soon.
        """
        start = self._longest_run()
        slack = self._end_of[start] - start - count
        leaves_room = start > 0 and slack >= MIN_SLACK_TO_SHARE
        return self._take(start, start + slack // 2 if leaves_room else start, count)

    def _longest_run(self) -> int:
        # Of the highest size class; among equals the one made first.
        return next(iter(next(runs for runs in reversed(self._classes) if runs)))

    def _take(self, start: int, first: int, count: int) -> list[int]:
        # The run is [start, end); [first, last) is taken out of it.
        end = self._end_of[start]
        last = min(first + count, end)
        self._remove(start)
        self._insert(start, first)
        self._insert(last, end)
        return list(range(first, last))

    def _insert(self, start: int, end: int) -> None:
        if start < end:
            self._end_of[start] = end
            self._start_of[end] = start
            self._classes[(end - start).bit_length()][start] = None
            self._count += end - start

    def _remove(self, start: int) -> None:
        end = self._end_of.pop(start)
        del self._start_of[end]
        del self._classes[(end - start).bit_length()][start]
        self._count -= end - start
