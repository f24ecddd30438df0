"""Loads and saves under way: what the engine thread asks while other threads work. See `transfers`."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from inference.kv_cache.tiers import HeldBlock


class Loading:
    """Loads under way: the ticket that the scheduler asks."""

    def __init__(self, num_loads: int) -> None:
        self._succeeded = [False] * num_loads
        self._first_failure = num_loads
        self._futures: list[Future[None]] = []

    @property
    def is_done(self) -> bool:
        """See `LoadTicket`."""
        return all(future.done() for future in self._futures)

    @property
    def succeeded(self) -> Sequence[bool]:
        """See `LoadTicket`."""
        return self._succeeded

    def begin(self, futures: list[Future[None]]) -> None:
        """Take the work that fills the blocks."""
        self._futures = futures

    def is_wanted(self, index: int) -> bool:
        """Whether a load is of any use: not after one that failed."""
        return index < self._first_failure

    def note(self, index: int, *, is_good: bool) -> None:
        """Take the outcome of one load; from any loader thread."""
        if is_good:
            self._succeeded[index] = True
        else:
            # Two threads may come at once: the worst is a load too many.
            self._first_failure = min(self._first_failure, index)

    def wait(self, timeout_s: float) -> None:
        """Wait until it is done, or for so long."""
        wait(self._futures, timeout_s)

    def cancel(self) -> None:
        """See `LoadTicket`."""
        self._first_failure = -1


@dataclass(slots=True, eq=False)
class Saving:
    """One turn on its way to the disk; its blocks are pinned until it is done.

    Attributes:
        conversation_id: Whose.
        blocks: The whole chain, oldest first.
        trail: Ids of all computed tokens.
    """

    conversation_id: str
    blocks: Sequence[HeldBlock]
    trail: Sequence[int]
    _is_cancelled: threading.Event = field(default_factory=threading.Event)
    _is_done: threading.Event = field(default_factory=threading.Event)

    @property
    def is_done(self) -> bool:
        """Whether nobody reads the blocks any more."""
        return self._is_done.is_set()

    def is_wanted(self) -> bool:
        """Whether what is not written yet is still to be written."""
        return not self._is_cancelled.is_set()

    def wait(self, timeout_s: float) -> None:
        """Wait until it is done, or for so long."""
        self._is_done.wait(timeout_s)

    def cancel(self) -> None:
        """Write nothing more."""
        self._is_cancelled.set()

    def end(self) -> None:
        """Let go of the blocks."""
        self._is_done.set()
