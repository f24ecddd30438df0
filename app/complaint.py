"""What goes wrong, on the terminal. Pure Python; any thread."""

import sys

from app.texts import without_controls


def complain(message: str) -> None:
    """One line on stderr."""
    line = without_controls(" ".join(message.split()))
    encoding = sys.stderr.encoding or "utf-8"
    sys.stderr.write(f"quire: {line.encode(encoding, 'replace').decode(encoding)}\n")
