"""Buttons: with words, and with an icon alone. GUI thread.

One look for all states: a veil on hover, a stronger one while pressed, no movement.
"""

from typing import Literal

from PySide6.QtCore import QEvent, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QEnterEvent,
    QFocusEvent,
    QFontMetrics,
    QKeySequence,
    QPainter,
    QPaintEvent,
)
from PySide6.QtWidgets import QAbstractButton, QSizePolicy, QWidget

from ui.look.icons import paint_icon
from ui.look.painting import paint_rounded
from ui.look.theme import Theme

ButtonKind = Literal["primary", "secondary", "quiet", "danger"]

BUTTON_HEIGHT = 34
BUTTON_RADIUS = 8
ICON_BUTTON_SIZE = 32
_PADDING = 14
_ICON = 16
_ICON_GAP = 8


def tooltip_text(name: str, shortcut: str = "") -> str:
    """A tooltip: the control's name, then its shortcut a little apart."""
    return f"{name}  ({native_keys(shortcut)})" if shortcut else name


def native_keys(shortcut: str) -> str:
    """A shortcut such as "Ctrl+N" in the way of this system."""
    return QKeySequence(shortcut).toString(QKeySequence.SequenceFormat.NativeText)


class HoverButton(QAbstractButton):
    """Base of our buttons: repaints on hover, knows why it has the focus, follows the theme."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.theme = theme
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        self.setProperty("focusRadius", BUTTON_RADIUS)
        theme.changed.connect(self._theme_changed)

    def name_it(self, name: str, shortcut: str = "") -> None:
        """Set the accessible name and the tooltip."""
        self.setAccessibleName(name)
        self.setToolTip(tooltip_text(name, shortcut))

    def veil(self) -> str | None:
        """The veil to lay over the button now, or none."""
        if not self.isEnabled():
            return None
        if self.isDown():
            return self.theme.palette.pressed
        return self.theme.palette.hover if self.underMouse() else None

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Qt override: keep the reason, for the ring of `ui.look.focus_ring`."""
        self.setProperty("focusReason", event.reason())
        super().focusInEvent(event)

    def enterEvent(self, event: QEnterEvent) -> None:
        """Qt override."""
        self.update()
        super().enterEvent(event)

    def leaveEvent(self, event: QEvent) -> None:
        """Qt override."""
        self.update()
        super().leaveEvent(event)

    def _theme_changed(self) -> None:
        self.updateGeometry()
        self.update()


class Button(HoverButton):
    """A button with words, and an icon before them if it has one.

    Attributes:
        kind: "primary" (one per view), "secondary", "quiet", or "danger" (in confirmations).
    """

    def __init__(
        self,
        theme: Theme,
        text: str,
        kind: ButtonKind = "secondary",
        *,
        icon_name: str = "",
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(theme, parent)
        self.kind: ButtonKind = kind
        self.icon_name = icon_name
        self.setText(text)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    def sizeHint(self) -> QSize:
        """Qt override."""
        metrics = QFontMetrics(self.theme.font("button"))
        width = metrics.horizontalAdvance(self._label()) + 2 * _PADDING
        if self.icon_name:
            width += self.theme.px(_ICON) + _ICON_GAP
        return QSize(width, self.theme.px(BUTTON_HEIGHT))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        rect = QRectF(self.rect())
        fill, outline, color = self._colors()
        paint_rounded(painter, rect, BUTTON_RADIUS, fill=fill, outline=outline)
        veil = self.veil()
        if veil is not None and self.kind != "primary":
            paint_rounded(painter, rect, BUTTON_RADIUS, fill=veil)
        font = self.theme.font("button")
        painter.setFont(font)
        painter.setPen(QColor(color))
        text_width = QFontMetrics(font).horizontalAdvance(self._label())
        left = (self.width() - text_width) / 2
        if self.icon_name:
            edge = self.theme.px(_ICON)
            left += (edge + _ICON_GAP) / 2
            place = QRectF(left - edge - _ICON_GAP, (self.height() - edge) / 2, edge, edge)
            paint_icon(painter, self.icon_name, color, place)
        place = QRectF(left, 0, text_width + 2, self.height())
        painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, self._label())

    def _label(self) -> str:
        return self.text().replace("&", "")

    def _colors(self) -> tuple[str | None, str | None, str]:
        """Fill, outline and text colour of the state the button is in."""
        palette = self.theme.palette
        if not self.isEnabled():
            return (None if self.kind == "quiet" else palette.track), None, palette.disabled
        if self.kind == "primary":
            fill = palette.accent_hover if self.underMouse() else palette.accent
            return (palette.accent_pressed if self.isDown() else fill), None, palette.on_accent
        if self.kind == "danger":
            is_hovered = self.underMouse() or self.isDown()
            fill = palette.danger_fill_hover if is_hovered else palette.danger_fill
            return fill, None, palette.on_danger
        if self.kind == "quiet":
            return None, None, palette.accent_text
        return palette.raised, palette.border_2, palette.text


class IconButton(HoverButton):
    """A square button with an icon; its name and shortcut are in the tooltip. Grows with the text.

    Args:
        theme: Colours.
        icon_name: A drawing of `ui.look.icons`.
        name: Accessible name, and the tooltip's text.
        shortcut: Shown in the tooltip only.
        icon_size: 18 in buttons and rows, 16 in footers; at a text size of 100 %.
        size: Edge of the button at that text size.
    """

    def __init__(
        self,
        theme: Theme,
        icon_name: str,
        name: str,
        *,
        shortcut: str = "",
        icon_size: int = 18,
        size: int = ICON_BUTTON_SIZE,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(theme, parent)
        self._icon_name = icon_name
        self._icon_size = icon_size
        self._edge = size
        self._color_role = "text_2"
        self._fit()
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.name_it(name, shortcut)

    @property
    def edge(self) -> int:
        """Its width and height at the text size in force, of which it may hear a moment later."""
        return self.theme.px(self._edge)

    def set_color_role(self, role: str) -> None:
        """Rest colour of the icon, a field of `Palette`: "text_2", or "text_3" in footers."""
        self._color_role = role
        self.update()

    def sizeHint(self) -> QSize:
        """Qt override."""
        return self.minimumSize()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        rect = QRectF(self.rect())
        if self.isChecked():
            paint_rounded(painter, rect, BUTTON_RADIUS, fill=self.theme.palette.accent_soft)
        veil = self.veil()
        if veil is not None:
            paint_rounded(painter, rect, BUTTON_RADIUS, fill=veil)
        place = centred(self.rect(), self.theme.px(self._icon_size))
        paint_icon(painter, self._icon_name, self._icon_color(), place)

    def _fit(self) -> None:
        self.setFixedSize(self.edge, self.edge)

    def _theme_changed(self) -> None:
        self._fit()
        super()._theme_changed()

    def _icon_color(self) -> str:
        palette = self.theme.palette
        if not self.isEnabled():
            return palette.disabled
        if self.isChecked():
            return palette.accent_text
        if self.underMouse() or self.isDown():
            return palette.text
        return str(getattr(palette, self._color_role))


def centred(rect: QRect, edge: int) -> QRectF:
    """A square of this edge in the middle of `rect`."""
    middle = QPointF(rect.x() + rect.width() / 2, rect.y() + rect.height() / 2)
    return QRectF(middle.x() - edge / 2, middle.y() - edge / 2, edge, edge)
