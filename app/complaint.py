"""What goes wrong, on the terminal. Pure Python; any thread."""

import contextlib
import os
import sys
from typing import TextIO

from app.texts import without_controls


def complain(message: str) -> None:
    """One line on stderr; into nothing if nobody reads that any more: the terminal was closed, say."""
    line = without_controls(" ".join(message.split()))
    encoding = sys.stderr.encoding or "utf-8"
    try:
        sys.stderr.write(f"quire: {line.encode(encoding, 'replace').decode(encoding)}\n")
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Let what is written there from now on go nowhere; else the interpreter fails when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())
