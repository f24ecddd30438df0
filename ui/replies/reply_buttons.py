"""Buttons that only messages have: with a small word, Copy with its answer, the way to the end. GUI thread."""

from collections.abc import Callable

from PySide6.QtCore import QRectF, QSize, Qt, QTimer
from PySide6.QtGui import QColor, QFontMetrics, QGuiApplication, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.controls.buttons import HoverButton, IconButton, centred
from ui.look.focus_ring import KEYBOARD_REASONS
from ui.look.icons import paint_icon
from ui.look.painting import paint_rounded, paint_shadow, shadow_margins
from ui.look.theme import Theme

COPIED_MS = 1500
_HEIGHT = 26
_PADDING = 8
_ICON = 16
_GAP = 6
_STOP_GLYPH = 10
_TO_END = 36
_SHADOW_LEVEL = 2


class CopyButton(HoverButton):
    """Icon and word; says for a moment that it was done.

    Args:
        text: Gives what to copy when the button is pressed.
    """

    def __init__(self, theme: Theme, text: Callable[[], str], parent: QWidget) -> None:
        super().__init__(theme, parent)
        self._copied_text = text
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self.update)
        self.setAccessibleName("Copy code")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.ArrowCursor)
        self.clicked.connect(self._copy)

    @property
    def label(self) -> str:
        """The word shown now."""
        return "Copied" if self._timer.isActive() else "Copy"

    def sizeHint(self) -> QSize:
        """Qt override: wide enough for both words."""
        metrics = QFontMetrics(self.theme.font("small_strong"))
        width = max(metrics.horizontalAdvance(word) for word in ("Copied", "Copy"))
        width += 2 * _PADDING + self.theme.px(_ICON) + _GAP
        return QSize(width, self.theme.px(_HEIGHT))

    def _copy(self) -> None:
        copy_to_clipboard(self._copied_text())
        self._timer.start(COPIED_MS)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        metrics = QFontMetrics(self.theme.font("small_strong"))
        text_width = metrics.horizontalAdvance(self.label)
        edge = self.theme.px(_ICON)
        left = self.width() - _PADDING - text_width - _GAP - edge
        veil = self.veil()
        if veil is not None:
            box = QRectF(left - _PADDING, 0, self.width() - left + _PADDING, self.height())
            paint_rounded(painter, box, 6, fill=veil)
        color = self.theme.palette.text if self.underMouse() else self.theme.palette.text_2
        name = "check" if self._timer.isActive() else "copy"
        paint_icon(painter, name, color, QRectF(left, (self.height() - edge) / 2, edge, edge))
        painter.setFont(self.theme.font("small_strong"))
        painter.setPen(QColor(color))
        place = QRectF(left + edge + _GAP, 0, text_width + 2, self.height())
        painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, self.label)


class WordButton(HoverButton):
    """A small icon and a word, in a row below a message."""

    PADDING = _PADDING

    def __init__(self, theme: Theme, icon_name: str, text: str, parent: QWidget) -> None:
        super().__init__(theme, parent)
        self._icon_name = icon_name
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.ArrowCursor)
        self.set_words(text)

    def set_words(self, text: str, tip: str = "") -> None:
        """Say this; `tip` says more on hover."""
        self.setText(text)
        self.setAccessibleName(text)
        self.setToolTip(tip)
        self.update()

    def sizeHint(self) -> QSize:
        """Qt override."""
        metrics = QFontMetrics(self.theme.font("small_strong"))
        edge = self.theme.px(_ICON)
        width = 2 * _PADDING + edge + _GAP + metrics.horizontalAdvance(self.text())
        return QSize(width, self.theme.px(_HEIGHT))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        veil = self.veil()
        if veil is not None:
            paint_rounded(painter, QRectF(self.rect()), 6, fill=veil)
        color = self.theme.palette.text if self.underMouse() else self.theme.palette.text_2
        edge = self.theme.px(_ICON)
        self._paint_icon(painter, color, QRectF(_PADDING, (self.height() - edge) / 2, edge, edge))
        painter.setFont(self.theme.font("small_strong"))
        painter.setPen(QColor(color))
        words = self.rect().adjusted(_PADDING + edge + _GAP, 0, 0, 0)
        painter.drawText(words, Qt.AlignmentFlag.AlignVCenter, self.text())

    def _paint_icon(self, painter: QPainter, color: str, place: QRectF) -> None:
        paint_icon(painter, self._icon_name, color, place)


class StopWordButton(WordButton):
    """Stops replies: it has the glyph of the composer's stop button, as an outline reads as a box to tick."""

    def __init__(self, theme: Theme, text: str, parent: QWidget) -> None:
        super().__init__(theme, "", text, parent)

    def _paint_icon(self, painter: QPainter, color: str, place: QRectF) -> None:
        inset = (place.width() - self.theme.px(_STOP_GLYPH)) / 2
        paint_rounded(painter, place.adjusted(inset, inset, -inset, -inset), 2, fill=color)


class RevealedButton(IconButton):
    """Seen only while the pointer is over its message or the keyboard is on it."""

    def __init__(self, theme: Theme, icon_name: str, name: str, *, parent: QWidget) -> None:
        super().__init__(theme, icon_name, name, icon_size=_ICON, size=28, parent=parent)
        self._is_revealed = False
        self.set_color_role("text_3")

    @property
    def is_seen(self) -> bool:
        """Whether it is painted."""
        by_keyboard = self.hasFocus() and self.property("focusReason") in KEYBOARD_REASONS
        return self._is_revealed or by_keyboard

    def set_revealed(self, is_revealed: bool) -> None:
        """Whether the pointer is over the message."""
        self._is_revealed = is_revealed
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        if self.is_seen:
            super().paintEvent(event)


class ToEndButton(IconButton):
    """Round, over the end of the list while the view is elsewhere."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(theme, "arrow-down", "Go to the end", size=_TO_END, parent=parent)

    def _fit(self) -> None:
        margins, edge = shadow_margins(_SHADOW_LEVEL), self.theme.px(_TO_END)
        self.setFixedSize(
            edge + margins.left() + margins.right(), edge + margins.top() + margins.bottom()
        )
        self.setProperty("focusRadius", self.width() / 2)

    @property
    def reach(self) -> int:
        """How far the shadow lies below the round surface."""
        return shadow_margins(_SHADOW_LEVEL).bottom()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        surface = self.rect().marginsRemoved(shadow_margins(_SHADOW_LEVEL))
        colors = self.theme.palette
        radius = surface.width() // 2
        paint_shadow(painter, surface, radius, _SHADOW_LEVEL, colors)
        box = QRectF(surface)
        paint_rounded(painter, box, radius, fill=colors.raised, outline=colors.border_2)
        veil = self.veil()
        if veil is not None:
            paint_rounded(painter, box, radius, fill=veil)
        color = colors.text if self.underMouse() else colors.text_2
        paint_icon(painter, "arrow-down", color, centred(surface, self.theme.px(18)))


def copy_to_clipboard(text: str) -> None:
    """Put plain text on the clipboard."""
    QGuiApplication.clipboard().setText(text)
