"""Reports how far a load has come, without flooding the receiver. Thread of the load."""

from collections.abc import Callable

from inference.request import LoadProgress

ProgressCallback = Callable[[LoadProgress], None]
_SMALLEST_STEP = 0.01


class LoadReporter:
    """Turns the stages of one load into a single fraction that never falls.

    A stage covers a part of the whole; `advance` moves inside it.
    """

    def __init__(self, callback: ProgressCallback | None) -> None:
        self._callback = callback
        self._stage = ""
        self._start = self._end = self._reported = 0.0
        self._item = (0.0, 0.0)

    def begin(self, stage: str, *, until: float) -> None:
        """Enter a stage, which ends at the fraction `until` of the whole load."""
        self._stage = stage
        self._start, self._end = self._end, max(self._end, min(until, 1.0))
        self._item = (self._start, self._start)
        self._report(self._start)

    def advance(self, done: float, total: float) -> None:
        """Say how much of the stage is done; small steps are not reported."""
        self._move(self._fraction(done, total))

    def begin_item(self, done: float, size: float, total: float) -> None:
        """Enter a part of the stage, which may tell how far it is by itself.

        Args:
            done: How much of the stage was done before.
            size: How much of it this is.
            total: Of the stage.
        """
        self._item = (self._fraction(done, total), self._fraction(done + size, total))

    def advance_item(self, done: float, total: float) -> None:
        """Say how much of that part is done."""
        start, end = self._item
        self._move(start + _share(done, total) * (end - start))

    def finish(self) -> None:
        """Report the end of the load."""
        self._stage = "Ready"
        self._report(1.0)

    def _fraction(self, done: float, total: float) -> float:
        return self._start + _share(done, total) * (self._end - self._start)

    def _move(self, fraction: float) -> None:
        if fraction >= self._reported + _SMALLEST_STEP:
            self._report(fraction)

    def _report(self, fraction: float) -> None:
        self._reported = max(self._reported, fraction)
        if self._callback is not None:
            self._callback(LoadProgress(self._stage, self._reported))


def _share(done: float, total: float) -> float:
    return min(1.0, done / total) if total > 0 else 1.0
