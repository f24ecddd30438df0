"""A slider with a thin track and a round knob. GUI thread."""

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFocusEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSlider

from ui.look.painting import paint_rounded
from ui.look.theme import Theme

_KNOB = 16
_TRACK = 4


class Slider(QSlider):
    """Horizontal; a click on the track goes there."""

    def __init__(self, theme: Theme, name: str, *, low: int, high: int, step: int) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self._theme = theme
        self.setRange(low, high)
        self.setSingleStep(step)
        self.setPageStep(step * 2)
        self.setAccessibleName(name)
        self.setProperty("focusRadius", _KNOB // 2)
        theme.changed.connect(self.update)

    def sizeHint(self) -> QSize:
        """Qt override."""
        return QSize(160, 24)

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Qt override."""
        self.setProperty("focusReason", event.reason())
        super().focusInEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Qt override."""
        self._go_to(event.position().x())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Qt override."""
        self._go_to(event.position().x())

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self._theme.palette
        middle = self.height() / 2
        share = (self.value() - self.minimum()) / max(1, self.maximum() - self.minimum())
        knob_x = _KNOB / 2 + share * (self.width() - _KNOB)
        track = QRectF(0, middle - _TRACK / 2, self.width(), _TRACK)
        paint_rounded(painter, track, _TRACK / 2, fill=palette.track)
        track.setWidth(knob_x)
        paint_rounded(painter, track, _TRACK / 2, fill=palette.accent_text)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(palette.control), 1))
        painter.setBrush(QColor(palette.raised))
        painter.drawEllipse(QPointF(knob_x, middle), _KNOB / 2 - 0.5, _KNOB / 2 - 0.5)

    def _go_to(self, x: float) -> None:
        share = min(max((x - _KNOB / 2) / max(1, self.width() - _KNOB), 0.0), 1.0)
        value = self.minimum() + share * (self.maximum() - self.minimum())
        step = self.singleStep()
        self.setValue(round(value / step) * step)
