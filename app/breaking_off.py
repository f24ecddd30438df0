"""Ctrl+C and the like: kept until a step has ended, or obeyed where nothing can be lost. No Qt; main thread."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows lacks the last one
_SIGNAL_BASE = 128  # what shells add to the number of a signal

_Handlers = dict[int, object]


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """While it is entered, a signal ends the program there and then.

    For a time in which nothing is computed and no transaction is open. What is raised would not do:
    libraries that are being imported catch it.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(_SIGNAL_BASE + number)

    before = _take(end)
    try:
        yield
    finally:
        _give_back(before)


class Interrupts:
    """While it is entered, the first signal only asks to stop; the next one ends everything at once.

    So what was computed until then can be kept: an exception in the middle of a step leaves it in parts.

    Attributes:
        exit_code: What the shell expects of a program that a signal ended; 0 until one came.
    """

    def __init__(self) -> None:
        self.exit_code = 0
        self._before: _Handlers = {}

    def __enter__(self) -> Self:
        """Take the signals."""
        self._before = _take(self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give them back."""
        _give_back(self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.exit_code:
            raise KeyboardInterrupt
        self.exit_code = _SIGNAL_BASE + number


def _take(handler: Callable[[int, FrameType | None], None]) -> _Handlers:
    """Take the signals, but for those that this program was told to ignore; gives what had them before."""
    before: _Handlers = {}
    for name in _SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    return before


def _give_back(before: _Handlers) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)  # type: ignore[arg-type]  # as it was given to us
