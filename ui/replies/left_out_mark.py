"""A thin labelled line in the chat: what stands above it the model does not see. GUI thread."""

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.look.theme import Theme

TEXT = "Messages above are left out"
_TIP = "The chat was full: the model does not see the messages above this line"
_GAP = 12
_LEAST_LINE = 16


class LeftOutMark(QWidget):
    """Stands between two messages; the column says where."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self.setAccessibleName(TEXT)
        self.setAccessibleDescription(_TIP)
        self.setToolTip(_TIP)
        theme.changed.connect(self.update)
        self.hide()

    def wanted_height(self) -> int:
        """Height of the line with its label."""
        return self._theme.line_height("small")

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override: the label in the middle, a line at each side of it."""
        painter = QPainter(self)
        font = self._theme.font("small")
        metrics = QFontMetrics(font)
        text = metrics.elidedText(TEXT, Qt.TextElideMode.ElideRight, self.width())
        width = metrics.horizontalAdvance(text)
        left = (self.width() - width) // 2
        middle = self.height() // 2
        color = self._theme.color("control")
        if left - _GAP >= _LEAST_LINE:
            painter.fillRect(QRect(0, middle, left - _GAP, 1), color)
            start = left + width + _GAP
            painter.fillRect(QRect(start, middle, self.width() - start, 1), color)
        painter.setFont(font)
        painter.setPen(self._theme.color("text_2"))
        painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, text)
