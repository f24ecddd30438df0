"""The focus ring: one overlay per window that follows the keyboard focus. GUI thread.

A style sheet cannot draw outside a widget, and a ring inside one would move its content.
"""

from typing import cast

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, QRectF, Qt
from PySide6.QtGui import QFocusEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QApplication, QWidget
from shiboken6 import isValid

from ui.look.painting import paint_rounded
from ui.look.theme import Theme

_GAP = 2
KEYBOARD_REASONS = (
    Qt.FocusReason.TabFocusReason,
    Qt.FocusReason.BacktabFocusReason,
    Qt.FocusReason.ShortcutFocusReason,
)
_FOLLOWED_EVENTS = (
    QEvent.Type.Move,
    QEvent.Type.Resize,
    QEvent.Type.Show,
    QEvent.Type.Hide,
)


class FocusRing(QWidget):
    """Shows a ring around the focused control when the keyboard brought the focus there.

    A control that wants a ring has the property "focusRadius" (its corner radius).
    """

    def __init__(self, theme: Theme, window: QWidget) -> None:
        super().__init__(window)
        self._theme = theme
        self._target: QWidget | None = None
        self._followed: list[QWidget] = []
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.hide()
        application = cast(QApplication, QApplication.instance())
        application.focusChanged.connect(self._focus_changed)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Qt override: keep to the target when it, or a widget around it, moves."""
        if event.type() == QEvent.Type.FocusIn and watched is self._target:
            reason = cast(QFocusEvent, event).reason()
            self.setVisible(reason in KEYBOARD_REASONS and self._place())
        elif event.type() in _FOLLOWED_EVENTS and self.isVisible():
            self.setVisible(self._place())
        return False

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        if self._target is None or not isValid(self._target):
            return
        width = self._theme.palette.focus_width
        radius = float(self._target.property("focusRadius") or 8) + _GAP + width
        painter = QPainter(self)
        paint_rounded(
            painter,
            QRectF(self.rect()),
            radius,
            outline=self._theme.palette.ring,
            width=width,
        )

    def show_for(self, target: QWidget, reason: Qt.FocusReason) -> None:
        """Follow `target` if the keyboard moved the focus there; else hide."""
        self._follow(target)
        self.setVisible(reason in KEYBOARD_REASONS and self._place())

    def _focus_changed(self, old: QWidget | None, new: QWidget | None) -> None:
        if new is None or new.property("focusRadius") is None or new.window() != self.window():
            self._follow(None)
            self.hide()
            return
        reason = new.property("focusReason")
        self._follow(new)
        self.setVisible(bool(reason in KEYBOARD_REASONS) and self._place())

    def _follow(self, target: QWidget | None) -> None:
        for widget in self._followed:
            if isValid(widget):  # a deleted control loses the focus after it is gone
                widget.removeEventFilter(self)
        self._followed = []
        self._target = target
        if target is None:
            return
        around: QWidget | None = target
        while around is not None and around is not self.window():
            around.installEventFilter(self)
            self._followed.append(around)
            around = around.parentWidget()

    def _place(self) -> bool:
        target = self._target
        if target is None or not isValid(target) or not target.isVisible():
            return False
        reach = _GAP + self._theme.palette.focus_width
        corner = target.mapTo(self.window(), QPoint(0, 0))
        self.setGeometry(QRect(corner, target.size()).adjusted(-reach, -reach, reach, reach))
        self.raise_()
        self.update()
        return True
