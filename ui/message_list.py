"""The chat: all messages of the visible path in one scrolling column. GUI thread.

Views are made, filled and laid out in slices of a few milliseconds: first those on screen, then
the others from the end upwards. Until a view is ready, an estimate of its height holds its place.
"""

import time
from collections.abc import Mapping, Sequence

from PySide6.QtCore import QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QMouseEvent, QPaintEvent, QPainter, QResizeEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QWidget

from app.conversation import Message, MessageId
from ui.fade_edge import FADE_HEIGHT, FadeEdge
from ui.menus import Menu
from ui.message_view import MessageView, OwnMessageView
from ui.reply_buttons import ToEndButton, copy_to_clipboard
from ui.reply_footer import BLEED
from ui.reply_leaf import Leaf
from ui.reply_selection import TextSelection
from ui.reply_view import ReplyView
from ui.smooth_stream import FramePacer
from ui.theme import Theme

COLUMN_WIDTH = 680
MARGIN, NARROW_MARGIN = 28, 16
NARROW_BELOW = 640
SLICE_S = 0.004
_TOP, _BOTTOM = 14, 14
_REPLY_GAP, _QUESTION_GAP = 14, 20
_AT_END = 4
_CHARS_PER_LINE = 85


class MessageList(QScrollArea):
    """All messages of the visible path.

    Signals:
        regenerate_requested: Id of a reply of which another version is wanted.
        edit_requested: Id of an own message, and its new text.
        version_requested: Id of the version to show.
        link_activated: Address of a link; nothing is opened here.
        action_requested: Name of an action of an error card, and the message's id.
        scrolled: Whether something lies above the visible part.
    """

    regenerate_requested = Signal(int)
    edit_requested = Signal(int, str)
    version_requested = Signal(int)
    link_activated = Signal(str)
    action_requested = Signal(str, int)
    scrolled = Signal(bool)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._messages: list[Message] = []
        self._versions: dict[MessageId, list[MessageId]] = {}
        self._views: dict[MessageId, MessageView] = {}
        self._heights: dict[MessageId, int] = {}
        self._tops: dict[MessageId, int] = {}
        self._busy: set[MessageId] = set()  # views with work left, and messages without a view
        self._stale: set[MessageId] = set()  # views to lay out again
        self._column = COLUMN_WIDTH
        self._follows_end = True
        self._is_placing = False
        self._canvas = QWidget()
        self._canvas.setAccessibleName("Messages")
        self.setWidget(self._canvas)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.viewport().setAutoFillBackground(False)
        self._canvas.setAutoFillBackground(False)
        self._selection = TextSelection(self._all_leaves)
        self._fade = FadeEdge(theme, "surface", fades_down=True, parent=self)
        self._to_end = ToEndButton(theme, self)
        self._to_end.clicked.connect(self.go_to_end)
        self._to_end.hide()
        self._pacer = FramePacer(self._work, self)
        self._scroll_timer = QTimer(self)
        self._scroll_timer.setInterval(30)
        self._scroll_timer.timeout.connect(self._drag_on)
        self._drag: QPoint | None = None
        self.verticalScrollBar().valueChanged.connect(self._scrolled_to)
        self.verticalScrollBar().setSingleStep(40)
        theme.changed.connect(self._restyle)
        self.setAccessibleName("Chat")

    # ------------------------------------------------------------ content

    def show_path(
        self, messages: Sequence[Message], versions: Mapping[MessageId, Sequence[MessageId]]
    ) -> None:
        """Show these messages, oldest first; views of messages that stay are kept."""
        is_same_chat = (
            bool(self._messages)
            and bool(messages)
            and (self._messages[0].conversation_id == messages[0].conversation_id)
        )
        kept = {message.id for message in messages}
        for message_id in [known for known in self._views if known not in kept]:
            self._drop_view(message_id)
        self._messages = list(messages)
        self._versions = {key: list(ids) for key, ids in versions.items()}
        self._busy = {message.id for message in messages if message.id not in self._views}
        for message in messages:
            view = self._views.get(message.id)
            if view is not None:
                view.show_message(message, self._versions_of(message))
                self._busy.add(message.id)
        if not is_same_chat:
            self._follows_end = True
        self._selection.clear()
        self._pacer.flush()

    def begin_reply(self, message: Message) -> None:
        """A reply starts: it follows the last message, and the view goes to the end."""
        self._follows_end = True
        self.update_message(message, self._versions_of(message))

    def append_text(self, message_id: MessageId, text: str) -> None:
        """Text came for a reply; it is shown with the next frame."""
        view = self._views.get(message_id)
        if isinstance(view, ReplyView):
            view.append_text(text)

    def set_prefill(self, message_id: MessageId, done_tokens: int, total_tokens: int) -> None:
        """So much of the prompt is read."""
        view = self._views.get(message_id)
        if isinstance(view, ReplyView):
            view.set_prefill(done_tokens, total_tokens)

    def update_message(self, message: Message, versions: Sequence[MessageId]) -> None:
        """A message has a new state, or is new: then it follows the last one."""
        self._versions[message.id] = list(versions)
        for index, known in enumerate(self._messages):
            if known.id == message.id:
                self._messages[index] = message
                break
        else:
            self._messages.append(message)
            self._make_view(message)
        view = self._views.get(message.id)
        if view is not None:
            view.show_message(message, versions)
        self._busy.add(message.id)
        self._pacer.request()

    def go_to_end(self) -> None:
        """Show the newest text and follow it."""
        self._follows_end = True
        self._scroll_to(self.verticalScrollBar().maximum())

    @property
    def follows_end(self) -> bool:
        """Whether new text keeps the view at the end."""
        return self._follows_end

    @property
    def is_settled(self) -> bool:
        """Whether every message has its view and nothing is left to do."""
        return not self._busy and not self._stale

    def view_of(self, message_id: MessageId) -> MessageView | None:
        """The view of a message, once it is made."""
        return self._views.get(message_id)

    def _versions_of(self, message: Message) -> list[MessageId]:
        return self._versions.get(message.id, [message.id])

    # ------------------------------------------------------------ views

    def _make_view(self, message: Message) -> MessageView:
        versions = self._versions_of(message)
        message_id = message.id
        view: MessageView
        if message.role == "assistant":
            reply = ReplyView(message, versions, self._theme, self._canvas)
            reply.again_requested.connect(lambda: self.regenerate_requested.emit(message_id))
            reply.more_requested.connect(lambda: self._open_more(reply))
            reply.action_requested.connect(
                lambda name: self.action_requested.emit(name, message_id)
            )
            view = reply
        else:
            own = OwnMessageView(message, versions, self._theme, self._canvas)
            own.edit_requested.connect(lambda text: self.edit_requested.emit(message_id, text))
            view = own
        view.link_activated.connect(self.link_activated)
        view.version_requested.connect(self.version_requested)
        view.height_changed.connect(lambda: self._mark_stale(message_id))
        view.work_added.connect(lambda: self._mark_busy(message_id))
        view.selection_lost.connect(self._selection.clear)
        self._views[message_id] = view
        self._mark_busy(message_id)
        self._mark_stale(message_id)
        return view

    def _drop_view(self, message_id: MessageId) -> None:
        self._selection.clear()
        view = self._views.pop(message_id)
        for known in (self._busy, self._stale):
            known.discard(message_id)
        self._heights.pop(message_id, None)
        view.hide()
        view.deleteLater()

    def _mark_stale(self, message_id: MessageId) -> None:
        self._stale.add(message_id)
        if not self._is_placing:
            self._pacer.request()

    def _mark_busy(self, message_id: MessageId) -> None:
        self._busy.add(message_id)
        self._pacer.request()

    # ------------------------------------------------------------ work in slices

    def _work(self) -> None:
        """One frame: a slice of work, then one layout."""
        deadline = time.perf_counter() + SLICE_S
        for message in self._by_urgency():
            if self._advance(message, deadline):
                self._busy.discard(message.id)
            if time.perf_counter() > deadline:
                break
        self._place(deadline)
        if self._busy or self._stale:
            self._pacer.request()

    def _advance(self, message: Message, deadline: float) -> bool:
        view = self._views.get(message.id) or self._make_view(message)
        return view.advance(deadline)

    def _by_urgency(self) -> list[Message]:
        """Messages with work left: those on screen, then the others from the end."""
        waiting = [message for message in reversed(self._messages) if message.id in self._busy]
        return sorted(waiting, key=lambda message: not self._is_on_screen(message.id))

    def _is_on_screen(self, message_id: MessageId) -> bool:
        top = self._tops.get(message_id)
        if top is None:
            return self._follows_end and message_id == self._messages[-1].id
        start = self.verticalScrollBar().value()
        bottom = top + self._heights.get(message_id, 0)
        return bottom >= start and top <= start + self.viewport().height()

    # ------------------------------------------------------------ layout

    def _place(self, deadline: float) -> None:
        """Give every view its place; what is on screen stays where it is."""
        self._is_placing = True
        anchor, offset = self._anchor()
        if self._stale:
            order = [m.id for m in reversed(self._messages) if m.id in self._stale]
            order.sort(key=lambda message_id: not self._is_on_screen(message_id))
            for message_id in order:
                self._stale.discard(message_id)
                view = self._views[message_id]
                self._heights[message_id] = view.layout_to(self._column)
                if time.perf_counter() > deadline:
                    break
        y = _TOP
        left = (self.width() - self._column) // 2 - BLEED
        for index, message in enumerate(self._messages):
            if index:
                y += _REPLY_GAP if message.role == "assistant" else _QUESTION_GAP
            self._tops[message.id] = y
            height = self._heights.get(message.id) or self._estimate(message)
            view = self._views.get(message.id)
            if view is not None:
                view.setGeometry(left, y, self._column + 2 * BLEED, height)
                if view.isHidden() and message.id in self._heights:
                    view.show()
            y += height
        self._canvas.resize(self.viewport().width(), y + _BOTTOM)
        self._restore(anchor, offset)
        self._is_placing = False
        self._show_edges()

    def _estimate(self, message: Message) -> int:
        """A height for a message without a view, so that the scroll bar is about right."""
        lines = len(message.content) // _CHARS_PER_LINE + 1
        return lines * self._theme.line_height("body") + 40

    def _anchor(self) -> tuple[MessageId | None, int]:
        """The topmost message on screen and where it stands."""
        if self._follows_end:
            return None, 0
        value = self.verticalScrollBar().value()
        for message in self._messages:
            top = self._tops.get(message.id)
            if top is not None and top + self._heights.get(message.id, 0) > value:
                return message.id, value - top
        return None, 0

    def _restore(self, anchor: MessageId | None, offset: int) -> None:
        if self._follows_end:
            self._scroll_to(self.verticalScrollBar().maximum())
        elif anchor is not None and anchor in self._tops:
            self._scroll_to(self._tops[anchor] + offset)

    def _scroll_to(self, value: int) -> None:
        was_placing, self._is_placing = self._is_placing, True
        self.verticalScrollBar().setValue(value)
        self._is_placing = was_placing
        self._show_edges()

    def _scrolled_to(self, value: int) -> None:
        if not self._is_placing:
            self._follows_end = value >= self.verticalScrollBar().maximum() - _AT_END
            if self._busy or self._stale:
                self._pacer.request()
        self._show_edges()

    def _show_edges(self) -> None:
        bar = self.verticalScrollBar()
        is_scrolled = bar.value() > 0
        if is_scrolled == self._fade.isHidden():
            self._fade.setVisible(is_scrolled)
            self.scrolled.emit(is_scrolled)
        is_away = not self._follows_end and bar.maximum() - bar.value() > _AT_END
        self._to_end.setVisible(is_away)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        super().resizeEvent(event)
        margin = NARROW_MARGIN if self.width() < NARROW_BELOW else MARGIN
        column = min(COLUMN_WIDTH, self.width() - 2 * margin)
        if column != self._column:
            self._column = max(column, 120)
            self._stale |= set(self._views)
        self._fade.setGeometry(0, 0, self.viewport().width(), FADE_HEIGHT)
        x = (self.width() - self._to_end.width()) // 2
        self._to_end.move(x, self.height() - self._to_end.height() + self._to_end.reach - 12)
        self._pacer.flush()

    def _restyle(self) -> None:
        for message_id, view in self._views.items():
            view.restyle()
            self._stale.add(message_id)
        self.viewport().update()
        self._pacer.flush()

    # ------------------------------------------------------------ selection and keys

    def _all_leaves(self) -> list[Leaf]:
        found: list[Leaf] = []
        for message in self._messages:
            view = self._views.get(message.id)
            if view is not None:
                found += view.leaves()
        return found

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Qt override: presses in blocks come here too, because no block takes them."""
        if event.button() == Qt.MouseButton.LeftButton:
            self._selection.begin(event.globalPosition().toPoint())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Qt override."""
        if event.buttons() & Qt.MouseButton.LeftButton:
            self._drag = event.globalPosition().toPoint()
            self._selection.extend(self._drag)
            self._scroll_timer.start()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """Qt override."""
        self._drag = None
        self._scroll_timer.stop()

    def _drag_on(self) -> None:
        """While a selection is dragged beyond the edge, the chat scrolls along."""
        if self._drag is None:
            return
        y = self.mapFromGlobal(self._drag).y()
        beyond = min(y, 0) + max(y - self.height(), 0)
        if beyond:
            bar = self.verticalScrollBar()
            bar.setValue(bar.value() + beyond)
            self._selection.extend(self._drag)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Qt override: copy, select all, Home and End, and Ctrl+Up/Down from message to message."""
        if event.matches(QKeySequence.StandardKey.Copy):
            self.copy_selection()
        elif event.matches(QKeySequence.StandardKey.SelectAll):
            self._selection.select_all()
        elif event.key() == Qt.Key.Key_End:
            self.go_to_end()
        elif event.key() == Qt.Key.Key_Home:
            self.verticalScrollBar().setValue(0)
        elif event.modifiers() & Qt.KeyboardModifier.ControlModifier and event.key() in (
            Qt.Key.Key_Up,
            Qt.Key.Key_Down,
        ):
            self._focus_message(-1 if event.key() == Qt.Key.Key_Up else 1)
        else:
            super().keyPressEvent(event)

    def copy_selection(self) -> None:
        """Put the selected text on the clipboard, if there is any."""
        if not self._selection.is_empty:
            copy_to_clipboard(self._selection.text())

    def _focus_message(self, step: int) -> None:
        ids = [message.id for message in self._messages if message.id in self._views]
        if not ids:
            return
        focused = next((i for i, key in enumerate(ids) if self._views[key].has_focus_inside), None)
        index = len(ids) - 1 if focused is None else min(max(focused + step, 0), len(ids) - 1)
        view = self._views[ids[index]]
        view.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.ensureVisible(view.x() + view.width() // 2, view.y(), 0, _TOP)

    # ------------------------------------------------------------ menus

    def _open_more(self, reply: ReplyView) -> None:
        menu = Menu(self._theme, "Reply", self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.add("Copy as Markdown", lambda: copy_to_clipboard(reply.text), icon_name="copy")
        menu.add("Copy as plain text", lambda: copy_to_clipboard(reply.plain_text()))
        menu.add(
            "Reply again",
            lambda: self.regenerate_requested.emit(reply.message.id),
            icon_name="refresh-cw",
        )
        menu.open_below(reply.more_button)

    def contextMenuEvent(self, event: object) -> None:
        """Qt override: copy what is selected, or the message under the pointer."""
        place = event.globalPos()  # type: ignore[attr-defined]  # QContextMenuEvent
        menu = Menu(self._theme, "Message", self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        has_selection = not self._selection.is_empty
        menu.add("Copy", self.copy_selection, icon_name="copy", is_enabled=has_selection)
        view = self._view_at(self._canvas.mapFromGlobal(place).y())
        if view is not None:
            content = view.message.content
            menu.add("Copy message", lambda: copy_to_clipboard(content))
        menu.add("Select all", self._selection.select_all)
        menu.open_at(place)

    def _view_at(self, y: int) -> MessageView | None:
        for view in self._views.values():
            if view.y() <= y < view.y() + view.height():
                return view
        return None

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override: the chat's own background, whatever lies behind."""
        QPainter(self.viewport()).fillRect(event.rect(), self._theme.color("surface"))
