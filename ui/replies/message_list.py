"""The chat: all messages of the visible path in one scrolling column. GUI thread."""

from collections.abc import Callable, Mapping, Sequence

from PySide6.QtCore import QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QContextMenuEvent, QKeyEvent, QKeySequence, QMouseEvent
from PySide6.QtWidgets import QWidget

from app.conversation import Message, MessageId
from app.session_changes import WaitReason
from ui.controls.menus import Menu
from ui.look.theme import Theme
from ui.replies.found_words import SoughtWords
from ui.replies.kept_place import Anchor
from ui.replies.message_view import MessageView, OwnMessageView
from ui.replies.reply_buttons import copy_to_clipboard
from ui.replies.reply_column import MessageColumn
from ui.replies.reply_leaf import Leaf
from ui.replies.reply_menu import reply_menu
from ui.replies.reply_selection import TextSelection
from ui.replies.reply_view import ReplyView
from ui.replies.version_focus import focus_step, focused_step

_DRAG_MS = 30


class MessageList(MessageColumn):
    """All messages of the visible path.

    Signals:
        regenerate_requested: Id of a reply of which another version is wanted, or of a message that
            has no reply.
        several_requested: The same for several versions at once.
        stop_all_requested: Id of a message of which all versions in the making are to end.
        edit_requested: Id of an own message, and its new text.
        version_requested: Id of the version to show.
        link_activated: Address of a link; nothing is opened here.
        action_requested: Name of an action of an error card, and the message's id.

    Attributes:
        alike_reason: Says why several answers would be the same; "" if they would differ.
    """

    regenerate_requested = Signal(int)
    several_requested = Signal(int)
    stop_all_requested = Signal(int)
    edit_requested = Signal(int, str)
    version_requested = Signal(int)
    link_activated = Signal(str)
    action_requested = Signal(str, int)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, parent)
        self.alike_reason: Callable[[], str] = lambda: ""
        self._versions: dict[MessageId, list[MessageId]] = {}
        self._running: Mapping[MessageId, int] = {}
        self._step: tuple[MessageId, str] | None = (
            None  # where the keyboard left a version, and how
        )
        self._answers = QTimer(self)  # mostly a reply follows its question at once
        self._answers.setSingleShot(True)
        self._answers.setInterval(0)
        self._answers.timeout.connect(self._show_unanswered)
        self._selection = TextSelection(self._all_leaves)
        self._selects_later = self._copies_later = False
        self._drag: QPoint | None = None
        self._drag_timer = QTimer(self)
        self._drag_timer.setInterval(_DRAG_MS)
        self._drag_timer.timeout.connect(self._drag_on)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
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
        self._selection.clear()
        for message_id in [known for known in self._views if known not in kept]:
            if step := focused_step(self._views[message_id]):
                self._step = (message_id, step)
            self._drop_view(message_id)
        self._messages = list(messages)
        self._tops = {key: top for key, top in self._tops.items() if key in kept and is_same_chat}
        self._versions = {key: list(ids) for key, ids in versions.items()}
        self._busy = {message.id for message in messages if message.id not in self._views}
        for message in messages:
            view = self._views.get(message.id)
            if view is not None:
                view.show_message(message, self._versions_of(message))
                self._busy.add(message.id)
        if not is_same_chat:
            self.follow_end()
        elif self._sought is not None and self._sought.message_id not in kept:
            self._sought = None
        self._answers.start()
        self._pacer.flush()

    def begin_reply(self, message: Message, versions: Sequence[MessageId] = ()) -> None:
        """A reply starts: it follows the last message, and the view goes to the end."""
        self.follow_end()
        self.update_message(message, versions or [message.id])

    def set_running(self, running: Mapping[MessageId, int]) -> None:
        """How many versions of which message are in the making, itself counted."""
        self._running = running
        for message_id, view in self._views.items():
            if isinstance(view, ReplyView):
                view.set_running(running.get(message_id, 0))

    def append_text(self, message_id: MessageId, text: str) -> None:
        """Text came for a reply; it is shown with the next frame."""
        view = self._views.get(message_id)
        if view is None:  # text for a view that is not made yet would be lost
            waiting = (message for message in self._messages if message.id == message_id)
            view = next(map(self._make_view, waiting), None)
        if isinstance(view, ReplyView):
            view.append_text(text)

    def set_prefill(self, message_id: MessageId, done_tokens: int, total_tokens: int) -> None:
        """So much of the prompt is read."""
        view = self._views.get(message_id)
        if isinstance(view, ReplyView):
            view.set_prefill(done_tokens, total_tokens)

    def set_waiting(self, message_id: MessageId, reason: WaitReason) -> None:
        """The model does not come to a reply yet."""
        view = self._views.get(message_id)
        if isinstance(view, ReplyView):
            view.set_waiting(reason)

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
        self._answers.start()
        self._pacer.request()

    def view_of(self, message_id: MessageId) -> MessageView | None:
        """The view of a message, once it is made."""
        return self._views.get(message_id)

    def edits_beyond(self, messages: Sequence[Message]) -> list[str]:
        """What is being written in the editors of messages that are not among these."""
        kept = {message.id for message in messages}
        found: list[str] = []
        for message_id, view in self._views.items():
            text = view.edited_text if isinstance(view, OwnMessageView) else None
            if message_id not in kept and text and text != view.message.content:
                found.append(text)
        return found

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
            reply.several_requested.connect(lambda: self.several_requested.emit(message_id))
            reply.stop_all_requested.connect(lambda: self.stop_all_requested.emit(message_id))
            reply.set_running(self._running.get(message_id, 0))
            reply.more_requested.connect(lambda: self._open_more(reply))
            reply.action_requested.connect(
                lambda name: self.action_requested.emit(name, message_id)
            )
            view = reply
        else:
            own = OwnMessageView(message, versions, self._theme, self._canvas)
            own.edit_requested.connect(lambda text: self.edit_requested.emit(message_id, text))
            own.reply_requested.connect(lambda: self.regenerate_requested.emit(message_id))
            own.several_requested.connect(lambda: self.several_requested.emit(message_id))
            self._answers.start()
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

    def seek(self, message_id: MessageId, words: Sequence[str]) -> None:
        """See `MessageColumn`; the words are selected too."""
        self._selection.clear()
        super().seek(message_id, words)

    def _restore(self, anchor: Anchor | None) -> None:
        if self._sought is not None and not self._sought.is_marked:
            self._mark(self._sought)
        super()._restore(anchor)

    def _mark(self, sought: SoughtWords) -> None:
        """Select the words, once all of their message is laid out."""
        view = self._views.get(sought.message_id)
        if view is None or sought.message_id in self._busy or sought.message_id in self._stale:
            return
        sought.is_marked = True
        leaf = sought.leaf_in(view.leaves())
        place = sought.place_in(leaf) if leaf is not None else None
        if leaf is not None and place is not None:
            self._selection.select(leaf, *place)

    def _work(self) -> None:
        super()._work()
        if self._selects_later and self._is_filled:
            self._selects_later = False
            if self._selection.is_all:  # still: then also what was not there yet
                self._selection.select_all()
                if self._copies_later:
                    self.copy_selection()

    def _place(self, deadline: float) -> None:
        super()._place(deadline)
        if self._step is not None:
            self._go_on_stepping(*self._step)

    def _go_on_stepping(self, left_id: MessageId, step: str) -> None:
        """The focus was on an arrow of a version that has gone: it belongs on the one that came."""
        versions = [it.id for it in self._messages if left_id in self._versions_of(it)]
        view = self._views.get(versions[0]) if versions else None
        if not versions or (view is not None and not view.isHidden()):
            self._step = None
        if view is not None and not view.isHidden():
            focus_step(view, step)

    def _show_unanswered(self) -> None:
        """Offer a reply to a message that ends the chat."""
        last_id = self._messages[-1].id if self._messages else None
        for message_id, view in self._views.items():
            if isinstance(view, OwnMessageView):
                view.set_unanswered(message_id == last_id)

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

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Qt override: the word under the pointer."""
        if event.button() == Qt.MouseButton.LeftButton:
            self._selection.select_word(event.globalPosition().toPoint())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Qt override."""
        if event.buttons() & Qt.MouseButton.LeftButton:
            self._drag = event.globalPosition().toPoint()
            self._selection.extend(self._drag)
            self._drag_timer.start()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """Qt override."""
        self._drag = None
        self._drag_timer.stop()

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
            self._select_all()
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
        """Put the selected text on the clipboard, if there is any; all of it once it is all there."""
        self._copies_later = self._selection.is_all and not self._is_filled
        if self._copies_later:
            self._selects_later = True
        elif not self._selection.is_empty:
            copy_to_clipboard(self._selection.text())

    def _select_all(self) -> None:
        self._selection.select_all()
        self._selects_later = not self._is_filled

    def _focus_message(self, step: int) -> None:
        ids = [message.id for message in self._messages if message.id in self._views]
        if not ids:
            return
        focused = next((i for i, key in enumerate(ids) if self._views[key].has_focus_inside), None)
        index = len(ids) - 1 if focused is None else min(max(focused + step, 0), len(ids) - 1)
        view = self._views[ids[index]]
        view.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.ensureVisible(view.x() + view.width() // 2, view.y(), 0, 14)

    # ------------------------------------------------------------ menus

    def _open_more(self, reply: ReplyView) -> None:
        menu = reply_menu(self._theme, reply, alike_reason=self.alike_reason(), parent=self)
        menu.open_below(reply.more_button)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Qt override: copy what is selected, or the message under the pointer."""
        place = event.globalPos()
        menu = Menu(self._theme, "Message", self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        has_selection = not self._selection.is_empty
        menu.add("Copy", self.copy_selection, icon_name="copy", is_enabled=has_selection)
        view = self._view_at(self._canvas.mapFromGlobal(place).y())
        if view is not None:
            content = view.message.content
            menu.add("Copy message", lambda: copy_to_clipboard(content))
        menu.add("Select all", self._select_all)
        menu.open_at(place)

    def _view_at(self, y: int) -> MessageView | None:
        for view in self._views.values():
            if view.y() <= y < view.y() + view.height():
                return view
        return None
