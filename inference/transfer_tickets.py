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
        self._is_cancelled = False
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

    def is_wanted(self) -> bool:
        """Whether to go on.

        Also after a load that failed: so what else is damaged is found and removed, and this turn
        writes it anew.
        """
        return not self._is_cancelled

    def note(self, index: int, *, is_good: bool) -> None:
        """Take the outcome of one load; from any loader thread."""
        self._succeeded[index] = is_good

    def wait(self, timeout_s: float) -> None:
        """Wait until it is done, or for so long."""
        wait(self._futures, timeout_s)

    def cancel(self) -> None:
        """See `LoadTicket`."""
        self._is_cancelled = True


@dataclass(slots=True, eq=False)
class Saving:
    """One turn on its way to the disk; its blocks are pinned until it is done.

    Attributes:
        conversation_id: Whose.
        blocks: The whole chain, oldest first.
        trail: Ids of all computed tokens.
        due: When it should be on disk, on the monotonic clock; it may take until then.
    """

    conversation_id: str
    blocks: Sequence[HeldBlock]
    trail: Sequence[int]
    due: float
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
