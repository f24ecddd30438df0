"""A thin bar that is filled by a share. GUI thread."""

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.look.painting import paint_rounded
from ui.look.theme import Theme

_HEIGHT = 6
_RADIUS = 3


class Meter(QWidget):
    """Shows what the words beside it say; a screen reader reads those and not the bar."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._fraction = 0.0
        self.setFixedHeight(_HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme.changed.connect(self.update)

    @property
    def fraction(self) -> float:
        """How much is filled, 0 to 1."""
        return self._fraction

    def set_fraction(self, fraction: float) -> None:
        """Fill so much of it; kept between 0 and 1."""
        self._fraction = min(max(fraction, 0.0), 1.0)
        self.update()

    def sizeHint(self) -> QSize:
        """Qt override."""
        return QSize(80, _HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self._theme.palette
        bar = QRectF(self.rect())
        paint_rounded(painter, bar, _RADIUS, fill=palette.track)
        if self._fraction > 0:
            bar.setWidth(max(float(_HEIGHT), bar.width() * self._fraction))
            paint_rounded(painter, bar, _RADIUS, fill=palette.data.kv)
