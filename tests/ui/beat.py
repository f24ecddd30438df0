"""How long the GUI thread is busy at a stretch.

Busy means processor time of this thread between two beats of a timer, so that other programs on the
machine do not count. A beat can only come between two events, so this is the longest event.
"""

import time

from PySide6.QtCore import QTimer


class Beat:
    """Collects how long the GUI thread was busy between two beats, in milliseconds."""

    def __init__(self) -> None:
        self.busy_ms: list[float] = []
        self._last = time.thread_time()
        self._timer = QTimer()
        self._timer.timeout.connect(self._beat)
        self._timer.start(1)

    def _beat(self) -> None:
        now = time.thread_time()
        self.busy_ms.append((now - self._last) * 1000)
        self._last = now

    def stop(self) -> None:
        self._timer.stop()

    def share(self, fraction: float) -> float:
        """The time that this fraction of the beats stayed below."""
        ordered = sorted(self.busy_ms)
        return ordered[min(int(len(ordered) * fraction), len(ordered) - 1)]
