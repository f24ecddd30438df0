"""The program's mark. GUI thread."""

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.look.icons import paint_icon
from ui.look.theme import Theme


class Mark(QWidget):
    """The program's mark, painted in the accent colour; `size` is that at a text size of 100 %."""

    def __init__(self, theme: Theme, size: int) -> None:
        super().__init__()
        self._theme = theme
        self._size = size
        theme.changed.connect(self._fit)
        self._fit()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        color = self._theme.palette.accent_text
        paint_icon(QPainter(self), "quire-mark", color, QRectF(self.rect()))

    def _fit(self) -> None:
        edge = self._theme.px(self._size)
        self.setFixedSize(edge, edge)
        self.update()
