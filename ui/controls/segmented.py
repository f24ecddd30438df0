"""A row of two to four choices, one of them taken. GUI thread."""

from collections.abc import Sequence

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QFontMetrics,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.controls.buttons import BUTTON_RADIUS
from ui.look.painting import paint_rounded
from ui.look.theme import Theme

_HEIGHT = 34


class Segmented(QWidget):
    """Choices side by side; arrows move between them.

    Args:
        theme: Colours and fonts.
        name: Accessible name.
        choices: (key, label) in their order.

    Signals:
        chosen: The key of a choice that the person took.
    """

    chosen = Signal(str)

    def __init__(self, theme: Theme, name: str, choices: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._theme = theme
        self._name = name
        self._choices = list(choices)
        self._index = 0
        self._widths: list[int] = []  # of the labels; layouts ask often
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setProperty("focusRadius", BUTTON_RADIUS)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme.changed.connect(self._theme_changed)
        self._tell()

    @property
    def key(self) -> str:
        """The choice that is taken."""
        return self._choices[self._index][0]

    def set_key(self, key: str) -> None:
        """Take this choice without telling."""
        self._index = [choice for choice, _ in self._choices].index(key)
        self._tell()

    def sizeHint(self) -> QSize:
        """Qt override."""
        widest = max(self._label_widths())
        return QSize((widest + 24) * len(self._choices), self._theme.px(_HEIGHT))

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Qt override."""
        self.setProperty("focusReason", event.reason())
        super().focusInEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Qt override."""
        steps = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1, Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1}
        step = steps.get(Qt.Key(event.key()))
        if step is None:
            super().keyPressEvent(event)
            return
        self._take((self._index + step) % len(self._choices))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Qt override."""
        for number, cell in enumerate(self._cells()):
            if cell.contains(event.position()):
                self._take(number)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self._theme.palette
        paint_rounded(
            painter,
            QRectF(self.rect()),
            BUTTON_RADIUS,
            fill=palette.sunken,
            outline=palette.border_2,
        )
        painter.setFont(self._theme.font("button"))
        cells = self._cells()
        for number, (_, label) in enumerate(self._choices):
            cell = cells[number].adjusted(2, 2, -2, -2)
            is_taken = number == self._index
            if is_taken:
                fill = palette.select if palette.is_contrast else palette.raised
                paint_rounded(painter, cell, 6, fill=fill, outline=palette.border_2)
            painter.setPen(QColor(palette.text if is_taken else palette.text_2))
            painter.drawText(cell, Qt.AlignmentFlag.AlignCenter, label)

    def _theme_changed(self) -> None:
        self._widths = []
        self.update()

    def _label_widths(self) -> list[int]:
        if not self._widths:
            metrics = QFontMetrics(self._theme.font("button"))
            self._widths = [metrics.horizontalAdvance(label) for _, label in self._choices]
        return self._widths

    def _cells(self) -> list[QRectF]:
        """Where the choices are; the room that the labels leave is shared evenly."""
        widths = self._label_widths()
        spare = (self.width() - sum(widths)) / len(widths)
        cells: list[QRectF] = []
        left = 0.0
        for width in widths:
            cells.append(QRectF(left, 0, width + spare, self.height()))
            left += width + spare
        return cells

    def _take(self, index: int) -> None:
        if index != self._index:
            self._index = index
            self._tell()
            self.chosen.emit(self.key)

    def _tell(self) -> None:
        self.setAccessibleName(f"{self._name}: {self._choices[self._index][1]}")
        self.update()
