"""Ctrl+C and the like, kept until a step has ended. No Qt; main thread."""

import signal
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows lacks the last one
_SIGNAL_BASE = 128  # what shells add to the number of a signal


class Interrupts:
    """While it is entered, the first signal only asks to stop; the next one ends everything at once.

    So what was computed until then can be kept: an exception in the middle of a step leaves it in parts.

    Attributes:
        exit_code: What the shell expects of a program that a signal ended; 0 until one came.
    """

    def __init__(self) -> None:
        self.exit_code = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        """Take the signals, but for those that this program was told to ignore."""
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give them back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as it was given to us

    def let_through(self) -> None:
        """Do what the signal that came would have done; after it was given back."""
        if self.exit_code:
            signal.raise_signal(self.exit_code - _SIGNAL_BASE)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.exit_code:
            raise KeyboardInterrupt
        self.exit_code = _SIGNAL_BASE + number
