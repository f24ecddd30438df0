"""Tells the person when a slot raised what nobody expected. GUI thread.

The log has the traceback (see `app.logs`); a person learns once that something went wrong, and
where the log is, instead of a button that does nothing.
"""

import sys
from collections.abc import Callable
from types import TracebackType

from PySide6.QtCore import QObject, QTimer


class UncaughtErrors(QObject):
    """While it lives, an exception that reaches the interpreter's edge is told, the first one only.

    Args:
        tell: Takes the exception's type name, in the event loop.
        parent: Owner.
    """

    def __init__(self, tell: Callable[[str], object], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._tell = tell
        self._is_told = False
        self._previous = sys.excepthook
        sys.excepthook = self._caught

    def close(self) -> None:
        """Give the hook back."""
        sys.excepthook = self._previous

    def _caught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._previous(kind, error, trace)
        if not self._is_told and issubclass(kind, Exception):
            self._is_told = True
            QTimer.singleShot(0, lambda: self._tell(kind.__name__))
