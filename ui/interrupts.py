"""Ends the event loop when the terminal or the system asks for it. Main thread.

Qt's loop runs no Python code while it waits, so a signal handler alone would wait too: Python
writes the signal's number to a socket, and that wakes the loop.
"""

import contextlib
import signal
import socket
from collections.abc import Callable

from PySide6.QtCore import QObject, QSocketNotifier

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupts(QObject):
    """While it lives, Ctrl+C and the like call `end` in the event loop."""

    def __init__(self, end: Callable[[], object], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._end = end
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._notifier = QSocketNotifier(self._reader.fileno(), QSocketNotifier.Type.Read, self)
        self._notifier.activated.connect(self._woken)
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._old_handlers = {
            getattr(signal, name): signal.signal(getattr(signal, name), self._noted)
            for name in _SIGNALS
            if hasattr(signal, name)
            and signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN  # by nohup, say
        }

    def close(self) -> None:
        """Give the signals back."""
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        self._notifier.setEnabled(False)
        self._reader.close()
        self._writer.close()

    def _noted(self, number: int, frame: object) -> None:
        """The wake-up does the work; without a handler the signal would end the process."""

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(64)
        self._end()
