"""A strip that lets content fade out towards an edge. GUI thread."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QLinearGradient, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.look.theme import Theme

FADE_HEIGHT = 18


class FadeEdge(QWidget):
    """Lies over scrolling content; from its background colour to nothing.

    Args:
        theme: Colours.
        role: The colour of the content's background, a field of `Palette`.
        fades_down: The solid side is the upper one.
        parent: What it lies in.
    """

    def __init__(self, theme: Theme, role: str, *, fades_down: bool, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._role = role
        self._fades_down = fades_down
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setFixedHeight(FADE_HEIGHT)
        theme.changed.connect(self.update)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        solid = QColor(self._theme.color(self._role))
        clear = QColor(solid)
        clear.setAlpha(0)
        gradient = QLinearGradient(0, 0, 0, self.height())
        gradient.setColorAt(0, solid if self._fades_down else clear)
        gradient.setColorAt(1, clear if self._fades_down else solid)
        QPainter(self).fillRect(self.rect(), gradient)
