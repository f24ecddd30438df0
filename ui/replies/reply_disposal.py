"""Destroys what is out of sight, a few widgets at a time. GUI thread.

A chat of a thousand messages has ten thousand widgets: destroyed all at once when another chat is
opened, they would hold up the window for a second.
"""

import time

import shiboken6
from PySide6.QtCore import QObject
from PySide6.QtWidgets import QWidget

from ui.replies.smooth_stream import FramePacer

_SLICE_S = 0.002


class Disposal(QObject):
    """Widgets that nobody uses any more; the last one that came goes first."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._widgets: list[QWidget] = []
        self._pacer = FramePacer(self._work, self)

    @property
    def num_left(self) -> int:
        """How many are still to be destroyed."""
        return len(self._widgets)

    def add(self, widget: QWidget) -> None:
        """Take a hidden widget; it is destroyed soon."""
        self._widgets.append(widget)
        self._pacer.request()

    def _work(self) -> None:
        deadline = time.perf_counter() + _SLICE_S
        while self._widgets:
            widget = self._widgets.pop()
            if shiboken6.isValid(widget):
                shiboken6.delete(widget)
            if time.perf_counter() > deadline:
                break
        if self._widgets:
            self._pacer.request()
