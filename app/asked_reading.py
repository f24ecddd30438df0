"""How far a long prompt is read, on a line of the terminal that is gone before the first word. No Qt."""

import contextlib
import shutil
import sys
import time
from collections.abc import Callable

PATIENCE_S = 1.0
"""So long nobody wonders what is going on."""


class ReadingLine:
    """One line on stderr, if that is a terminal; it is written anew as reading goes on.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._width = 0

    def show(self, done_tokens: int, total_tokens: int) -> None:
        """Say that so much of the prompt is read."""
        is_early = self._clock() - self._began < PATIENCE_S
        if is_early or not total_tokens or not sys.stderr.isatty():
            return
        room = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be taken back
        line = f"quire: reading, {done_tokens:,} of {total_tokens:,} tokens"[:room]
        self._write("\r" + line.ljust(self._width))
        self._width = len(line)

    def clear(self) -> None:
        """Take it away, if it is there."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
        self._width = 0

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            sys.stderr.write(text)
            sys.stderr.flush()
