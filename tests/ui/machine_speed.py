"""How slow this machine is at what the window does, so that a bound in milliseconds means the same on
all of them: the reference work is Python and text layout, timed in the test's own process."""

import time

from PySide6.QtCore import QSizeF
from PySide6.QtGui import QTextDocument

REFERENCE_MS = 3.0
"""What the work takes on the machine for which the bounds were set."""

_TEXT = "\n\n".join(f"{n}. Words **and** words, `code` and more of it, again." for n in range(60))


def slowness() -> float:
    """How many times longer the reference work takes here; at least 1, so that no bound gets tighter."""
    return max(1.0, min(_work_ms() for _ in range(5)) / REFERENCE_MS)


def _work_ms() -> float:
    began = time.perf_counter()
    document = QTextDocument()
    document.setMarkdown(_TEXT)
    document.setPageSize(QSizeF(400.0, 10_000.0))
    height = document.size().height()
    assert height > 0
    assert sum(n * n % 7 for n in range(30_000)) > 0
    return (time.perf_counter() - began) * 1000
