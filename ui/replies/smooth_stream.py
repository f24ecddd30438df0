"""Drawing at the display's pace, however fast text comes. GUI thread.

Deltas are only collected; the work that shows them runs at most once per frame, and less often
when it is slow, so that it never takes more than a quarter of the GUI thread's time.
"""

import time
from collections.abc import Callable

from PySide6.QtCore import QObject, Qt, QTimer

FRAME_MS = 16
MAX_WAIT_MS = 250
_SHARE = 4
"""The work may take one part in this many of the time."""


class FramePacer(QObject):
    """Calls `work` once per frame while somebody asks for it.

    Args:
        work: Shows everything that is new.
        clock: Seconds that only grow; tests bring their own.
    """

    def __init__(
        self,
        work: Callable[[], None],
        parent: QObject | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(parent)
        self._work = work
        self._clock = clock
        self._wait_ms = float(FRAME_MS)
        self._last_end = float("-inf")
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self.flush)

    @property
    def is_waiting(self) -> bool:
        """Whether work is due."""
        return self._timer.isActive()

    @property
    def wait_ms(self) -> float:
        """Least time between two runs, from what the last one took."""
        return self._wait_ms

    def request(self) -> None:
        """Something is new; it is shown with the next frame."""
        if not self._timer.isActive():
            since_last_ms = (self._clock() - self._last_end) * 1000
            is_due = since_last_ms >= self._wait_ms
            self._timer.start(0 if is_due else round(self._wait_ms - since_last_ms))

    def flush(self) -> None:
        """Do the work now."""
        self._timer.stop()
        start = self._clock()
        self._work()
        self._last_end = self._clock()
        took_ms = (self._last_end - start) * 1000
        self._wait_ms = min(max(FRAME_MS, took_ms * (_SHARE - 1)), MAX_WAIT_MS)
