"""Slows down what would change too often to be read. GUI thread."""

from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer


class Throttle(QObject):
    """Runs the first call at once, then at most one per interval; the last call wins."""

    def __init__(self, interval_ms: int, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._next: Callable[[], object] | None = None
        self._timer = QTimer(self)
        self._timer.setInterval(interval_ms)
        self._timer.timeout.connect(self._tick)

    def call(self, run: Callable[[], object]) -> None:
        """Run this now or when the interval is over, unless a later call replaces it."""
        if self._timer.isActive():
            self._next = run
        else:
            self._timer.start()
            run()

    def cancel(self) -> None:
        """Forget the call that waits."""
        self._next = None
        self._timer.stop()

    def _tick(self) -> None:
        run, self._next = self._next, None
        if run is None:
            self._timer.stop()
        else:
            run()
