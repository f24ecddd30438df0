"""The window: sidebar, chat, status bar; folding, shortcuts, moving between areas. GUI thread.

It knows how things lie and which keys exist, not what they do: that is `ui.controller`.
"""

import itertools
from collections.abc import Callable

from PySide6.QtCore import QEasingCurve, QPoint, QRect, QSize, Qt, QTimer, QVariantAnimation, Signal
from PySide6.QtGui import (
    QCloseEvent,
    QColor,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QShortcut,
)
from PySide6.QtWidgets import QWidget

from ui.chat.chat_pane import ChatPane
from ui.look.focus_ring import FocusRing
from ui.look.icons import icon
from ui.look.theme import Theme
from ui.sidebar.sidebar import MAX_SIDEBAR_WIDTH, MIN_SIDEBAR_WIDTH, SIDEBAR_WIDTH, Sidebar
from ui.status_bar import StatusBar

DEFAULT_SIZE = (1280, 800)
LEAST_SIZE = (640, 480)
NARROW_WIDTH = 900
_SYSTEM_FRAME = (16, 48)
"""Room for the title bar and edges that the system puts around a window, which Qt knows only later."""

_FOLD_MS = 200
_HANDLE_WIDTH = 6
_SCRIM_OPACITY = 0.35


class _Scrim(QWidget):
    """Darkens the chat under an opened sidebar; a click closes it."""

    clicked = Signal()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Qt override."""
        self.clicked.emit()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        black = QColor("black")
        black.setAlphaF(_SCRIM_OPACITY)
        QPainter(self).fillRect(self.rect(), black)


class _Handle(QWidget):
    """The edge of the sidebar that can be dragged."""

    dragged = Signal(int)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setCursor(Qt.CursorShape.SplitHCursor)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Qt override."""
        self.dragged.emit(self.mapToParent(event.position().toPoint()).x())


class MainWindow(QWidget):
    """The parts and their places.

    Attributes:
        sidebar, chat, status: The parts.
        was_painted: Whether the window has been on the screen.
        may_close: Asked before it closes.

    Signals:
        closed: The window was closed.
        fold_changed: The person folded (False) or unfolded (True) the sidebar in a wide window.
        width_dragged: The person gave the sidebar this width.
        first_painted: The window is on the screen for the first time.
        escaped: Escape, where nothing else had a use for it.
    """

    closed = Signal()
    fold_changed = Signal(bool)
    width_dragged = Signal(int)
    escaped = Signal()
    first_painted = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.was_painted = False
        self.may_close: Callable[[], bool] = lambda: True
        self._wants_sidebar = True
        self._is_drawer_open = False
        self._sidebar_width = SIDEBAR_WIDTH
        self._shift = 0.0  # how much of the sidebar is out of sight: 0 none, 1 all
        self.setWindowTitle("Quire")
        room = self.screen().availableSize() - QSize(*_SYSTEM_FRAME)
        self.setMinimumSize(QSize(*LEAST_SIZE).boundedTo(room))
        self.resize(QSize(*DEFAULT_SIZE).boundedTo(room))
        self.chat = ChatPane(theme, self)
        self.status = StatusBar(theme, self)
        self._scrim = _Scrim(self)
        self._scrim.hide()
        self.sidebar = Sidebar(theme, self)
        self._handle = _Handle(self)
        self._ring = FocusRing(theme, self)
        # Wherever the focus is: the composer, say, has a use for Escape of its own.
        self._escape = QShortcut(QKeySequence(Qt.Key.Key_Escape), self)
        self._escape.setEnabled(False)
        self._escape.activated.connect(self.close_drawer)
        self._fold = QVariantAnimation(self)
        self._fold.setEasingCurve(QEasingCurve.Type.OutCubic)
        self._fold.valueChanged.connect(self._set_shift)
        self._scrim.clicked.connect(self.close_drawer)
        self._handle.dragged.connect(self._drag)
        self.sidebar.fold_requested.connect(self.toggle_sidebar)
        self.chat.header.sidebar_button.clicked.connect(self.toggle_sidebar)
        theme.changed.connect(self._theme_changed)
        self._theme_changed()
        self._tab_order()

    @property
    def is_narrow(self) -> bool:
        """Whether the sidebar lies over the chat instead of beside it."""
        return self.width() < NARROW_WIDTH

    @property
    def is_sidebar_open(self) -> bool:
        """Whether the sidebar is, or is about to be, in sight."""
        return self._is_drawer_open if self.is_narrow else self._wants_sidebar

    def set_sidebar(self, *, is_open: bool, width: int) -> None:
        """Take the state of the last session, without motion."""
        self._wants_sidebar = is_open
        self._sidebar_width = min(max(width, MIN_SIDEBAR_WIDTH), MAX_SIDEBAR_WIDTH)
        self._settle()

    def toggle_sidebar(self) -> None:
        """Fold or unfold the sidebar; in a narrow window, open or close it over the chat."""
        if self.is_narrow:
            self._is_drawer_open = not self._is_drawer_open
        else:
            self._wants_sidebar = not self._wants_sidebar
            self.fold_changed.emit(self._wants_sidebar)
        self._move_sidebar()

    def close_drawer(self) -> None:
        """Close the sidebar if it lies over the chat; the focus does not stay behind in it."""
        if self.is_narrow and self._is_drawer_open:
            if _holds(self.sidebar, self.focusWidget()):
                self.chat.composer.setFocus(Qt.FocusReason.OtherFocusReason)
            self.toggle_sidebar()

    def open_sidebar(self) -> None:
        """Bring the sidebar into sight."""
        if not self.is_sidebar_open:
            self.toggle_sidebar()

    def add_shortcut(self, keys: str, run: Callable[[], object]) -> QShortcut:
        """Call `run` on these keys, anywhere in the window."""
        shortcut = QShortcut(QKeySequence(keys), self)
        shortcut.activated.connect(lambda: run())
        return shortcut

    def go_to_next_area(self) -> None:
        """Move the focus: chats, then messages, then composer, then the chats again."""
        areas: list[QWidget] = [self.chat.composer.input]
        if self.is_sidebar_open:
            areas.insert(0, self.sidebar.chat_list)
        if self.chat.messages.isVisible():
            areas.insert(-1, self.chat.messages)
        focused = self.focusWidget()
        inside = [number for number, area in enumerate(areas) if _holds(area, focused)]
        number = (inside[0] + 1) % len(areas) if inside else 0
        areas[number].setFocus(Qt.FocusReason.ShortcutFocusReason)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        was_narrow = event.oldSize().isValid() and event.oldSize().width() < NARROW_WIDTH
        if was_narrow != self.is_narrow:
            self._is_drawer_open = False
        self._settle()
        super().resizeEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Qt override."""
        if event.key() == Qt.Key.Key_Escape:
            self.escaped.emit()
        else:
            super().keyPressEvent(event)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Qt override."""
        if not self.may_close():
            event.ignore()
            return
        self.closed.emit()
        super().closeEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        QPainter(self).fillRect(self.rect(), self._theme.color("surface"))
        if not self.was_painted:
            self.was_painted = True
            QTimer.singleShot(0, self.first_painted.emit)  # after this frame went out

    def _settle(self) -> None:
        """Go to the final place of the sidebar at once."""
        self._fold.stop()
        self._escape.setEnabled(self.is_narrow and self._is_drawer_open)
        self._set_shift(0.0 if self.is_sidebar_open else 1.0)

    def _move_sidebar(self) -> None:
        self._escape.setEnabled(self.is_narrow and self._is_drawer_open)
        target = 0.0 if self.is_sidebar_open else 1.0
        duration = self._theme.duration_ms(_FOLD_MS)
        if not self.isVisible() or duration == 0:
            self._settle()
            return
        self._fold.stop()
        self._fold.setDuration(duration)
        self._fold.setStartValue(self._shift)
        self._fold.setEndValue(target)
        self._fold.start()

    def _set_shift(self, shift: float) -> None:
        self._shift = shift
        self._place()

    def _place(self) -> None:
        status = self.status.height()
        height = self.height() - status
        hidden = round(self._sidebar_width * self._shift)
        self.sidebar.setGeometry(-hidden, 0, self._sidebar_width, height)
        self.sidebar.setVisible(hidden < self._sidebar_width)
        left = 0 if self.is_narrow else self._sidebar_width - hidden
        self.chat.setGeometry(left, 0, self.width() - left, height)
        self.status.setGeometry(0, height, self.width(), status)
        self._scrim.setGeometry(0, 0, self.width(), height)
        self._scrim.setVisible(self.is_narrow and self._shift < 1.0)
        edge = self._sidebar_width - hidden - _HANDLE_WIDTH // 2
        self._handle.setGeometry(QRect(QPoint(edge, 0), QPoint(edge + _HANDLE_WIDTH - 1, height)))
        self._handle.setVisible(not self.is_narrow and self._shift == 0.0)
        self.chat.header.set_folded(self.is_narrow or not self._wants_sidebar)

    def _drag(self, x: int) -> None:
        self._sidebar_width = min(max(x, MIN_SIDEBAR_WIDTH), MAX_SIDEBAR_WIDTH)
        self.width_dragged.emit(self._sidebar_width)
        self._place()

    def _theme_changed(self) -> None:
        self.setWindowIcon(icon("quire-mark", self._theme.palette.accent, 64))
        self._place()
        self.update()

    def _tab_order(self) -> None:
        chain = [
            self.sidebar.fold_button,
            self.sidebar.new_chat_button,
            self.sidebar.search_field,
            self.sidebar.chat_list,
            self.sidebar.settings_button,
            self.chat.header.sidebar_button,
            self.chat.header.new_chat_button,
            self.chat.header.model_button,
            self.chat.header.menu_button,
            self.chat.messages,
            *self.chat.empty.cards,
            self.chat.composer.input,
            self.chat.composer.button,
            self.status.private_button,
        ]
        for before, after in itertools.pairwise(chain):
            QWidget.setTabOrder(before, after)


def _holds(area: QWidget, widget: QWidget | None) -> bool:
    return widget is not None and (area is widget or area.isAncestorOf(widget))
