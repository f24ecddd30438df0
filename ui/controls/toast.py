"""A short notice above the composer, with one thing to do about it. GUI thread."""

from collections.abc import Callable

from PySide6.QtCore import (
    QEasingCurve,
    QEvent,
    QPoint,
    QPropertyAnimation,
    QRectF,
    QSize,
    QTimer,
    Signal,
)
from PySide6.QtGui import QEnterEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QWidget

from ui.controls.buttons import Button, IconButton
from ui.controls.focus_guest import FocusGuest
from ui.controls.labels import Label
from ui.look.icons import paint_icon
from ui.look.painting import paint_rounded, paint_shadow, shadow_margins
from ui.look.theme import Theme

SHADOW_LEVEL = 3
SHOWN_MS = 6000
_MS_PER_CHAR = 60  # of a long text
_RADIUS = 12
_ICON = 18
_ICON_LEFT = 14
_HEIGHT = 46
_EDGE_GAP = 12
_SLIDE_MS = 160


class Toast(FocusGuest):
    """One at a time; goes after six seconds, a long text later, but stays while hovered or focused.

    Signals:
        resized: It says something else, and wants to be placed anew.
    """

    resized = Signal()

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._icon_name = "info"
        self._icon_role = "text_2"
        self._run: Callable[[], object] | None = None
        self._gone: Callable[[], object] | None = None
        self._label = Label(theme, style="label")
        self._action = Button(theme, "Undo", "quiet")
        self._close = IconButton(theme, "x", "Close", icon_size=16, size=28)
        row = QHBoxLayout(self)
        self._row = row
        row.setSpacing(4)
        row.addWidget(self._label)
        row.addSpacing(8)
        row.addWidget(self._action)
        row.addWidget(self._close)
        self._action.clicked.connect(self._act)
        self._close.clicked.connect(self.hide)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(SHOWN_MS)
        self._timer.timeout.connect(self._time_over)
        self._slide = QPropertyAnimation(self, b"pos", self)
        self._slide.setEasingCurve(QEasingCurve.Type.OutCubic)
        theme.changed.connect(self._fit)
        self._fit()
        self.hide()

    @property
    def text(self) -> str:
        """What it says."""
        return self._label.text()

    def show_text(
        self,
        text: str,
        *,
        icon_name: str = "circle-check",
        icon_role: str = "success",
        action: str = "",
        run: Callable[[], object] | None = None,
        gone: Callable[[], object] | None = None,
    ) -> None:
        """Say this, in place of what was there.

        Args:
            text: What to say.
            icon_name: See `ui.look.icons`.
            icon_role: Colour of the icon.
            action: Word on the button; empty for none.
            run: What the button does; it closes the toast.
            gone: Called when the toast goes and the button was not used.
        """
        self._let_go()
        self._gone = gone
        self._icon_name = icon_name
        self._icon_role = icon_role
        self._run = run
        self._label.setText(text)
        self._action.setText(action)
        self._action.setAccessibleName(action)
        self._action.setVisible(bool(action))
        self._action.updateGeometry()
        self.setAccessibleName(text)
        self._row.activate()
        self._timer.setInterval(max(SHOWN_MS, _MS_PER_CHAR * len(text)))
        self._timer.start()
        self.show()
        self.raise_()
        self.resized.emit()

    def act(self) -> None:
        """Do what the button does, if there is one."""
        if self.isVisible() and self._run is not None:
            self._act()

    def place(self, center_x: int, bottom: int) -> None:
        """Stand with the middle of the surface at `center_x` and its lower edge at `bottom`.

        It is never wider than twice `center_x`.
        """
        margins = shadow_margins(SHADOW_LEVEL)
        size = self._size_within(2 * center_x - 2 * _EDGE_GAP + margins.left() + margins.right())
        self.resize(size)
        target = QPoint(center_x - size.width() // 2, bottom - size.height() + margins.bottom())
        duration = self._theme.duration_ms(_SLIDE_MS)
        if self.isVisible() and duration and self.pos() != target:
            self._slide.stop()
            self._slide.setDuration(duration)
            self._slide.setStartValue(target + QPoint(0, 8))
            self._slide.setEndValue(target)
            self._slide.start()
        else:
            self.move(target)

    def _size_within(self, room: int) -> QSize:
        """One line of text if the width allows it, else as many as it takes."""
        self._wrap(False)
        size = self.sizeHint()
        if size.width() <= room:
            return size
        self._wrap(True)
        return QSize(room, max(size.height(), self._row.totalHeightForWidth(room)))

    def _wrap(self, is_wrapped: bool) -> None:
        if self._label.wordWrap() != is_wrapped:
            self._label.setWordWrap(is_wrapped)
            self._row.invalidate()

    def sizeHint(self) -> QSize:
        """Qt override."""
        margins = shadow_margins(SHADOW_LEVEL)
        height = self._theme.px(_HEIGHT) + margins.top() + margins.bottom()
        return QSize(self._row.sizeHint().width(), height)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self._theme.palette
        surface = self.rect().marginsRemoved(shadow_margins(SHADOW_LEVEL))
        paint_shadow(painter, surface, _RADIUS, SHADOW_LEVEL, palette)
        paint_rounded(
            painter, QRectF(surface), _RADIUS, fill=palette.raised, outline=palette.border_2
        )
        middle = surface.top() + surface.height() / 2
        edge = self._theme.px(_ICON)
        place = QRectF(surface.left() + _ICON_LEFT, middle - edge / 2, edge, edge)
        paint_icon(painter, self._icon_name, getattr(palette, self._icon_role), place)

    def _fit(self) -> None:
        margins = shadow_margins(SHADOW_LEVEL)
        left = margins.left() + _ICON_LEFT + self._theme.px(_ICON) + 10
        self._row.setContentsMargins(
            left, margins.top() + 6, margins.right() + 8, margins.bottom() + 6
        )
        self.update()

    def enterEvent(self, event: QEnterEvent) -> None:
        """Qt override."""
        self._timer.stop()
        super().enterEvent(event)

    def leaveEvent(self, event: QEvent) -> None:
        """Qt override."""
        self._timer.start()
        super().leaveEvent(event)

    def _time_over(self) -> None:
        if self._action.hasFocus() or self._close.hasFocus():
            self._timer.start()
        else:
            self.hide()

    def setVisible(self, visible: bool) -> None:
        """Qt override; not called when its window goes, which comes back with all in it."""
        super().setVisible(visible)
        if not visible:
            self._let_go()

    def _let_go(self) -> None:
        gone, self._gone = self._gone, None
        if gone is not None:
            gone()

    def _act(self) -> None:
        run, self._gone = self._run, None
        self.hide()
        if run is not None:
            run()
