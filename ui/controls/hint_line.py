"""A small sentence above the composer that only tells. GUI thread."""

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QWidget

from ui.controls.labels import Label
from ui.look.icons import paint_icon
from ui.look.theme import Theme

_ICON = 14


class HintLine(QWidget):
    """An icon and a sentence, which wraps where there is little room."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._label = Label(theme, style="small", role="text_2")
        self._label.setWordWrap(True)
        row = QHBoxLayout(self)
        row.addWidget(self._label)
        self._row = row
        theme.changed.connect(self._fit)
        self._fit()
        self.hide()

    @property
    def text(self) -> str:
        """What it says."""
        return self._label.text()

    def show_text(self, text: str, *, tip: str = "") -> None:
        """Say this."""
        self._label.setText(text)
        self.setToolTip(tip)
        self.setAccessibleName(text)
        self.setAccessibleDescription(tip)
        self.show()

    def wanted_height(self, width: int) -> int:
        """Height at this width."""
        return self.heightForWidth(width) if self.hasHeightForWidth() else self.sizeHint().height()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        middle = self._theme.line_height("small") / 2
        edge = self._theme.px(_ICON)
        place = QRectF(4, middle - edge / 2, edge, edge)
        paint_icon(QPainter(self), "info", self._theme.palette.text_2, place)

    def _fit(self) -> None:
        self._row.setContentsMargins(self._theme.px(_ICON) + 8 + 4, 0, 4, 0)
        self.update()
