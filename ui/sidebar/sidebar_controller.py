"""Between the session and the list of chats. GUI thread."""

from datetime import date

from PySide6.QtCore import QObject, QTimer, Signal

from app.chat_session import ChatSession
from app.conversation import ConversationId
from app.session_changes import (
    ConversationsChanged,
    ConversationShown,
    RepliesChanged,
    SessionChange,
)
from ui.controls.toast import Toast
from ui.sidebar.chat_rows import ChatRow
from ui.sidebar.sidebar import Sidebar

SEARCH_DELAY_MS = 120
NOTICE_MS = 1000


class SidebarController(QObject):
    """Lists, finds, opens, renames and deletes chats.

    Signals:
        found: A found chat was opened, and is to be shown where it matches: the message's id, the words.
    """

    found = Signal(int, list)

    def __init__(
        self, session: ChatSession, sidebar: Sidebar, toast: Toast, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._sidebar = sidebar
        self._toast = toast
        self._search = QTimer(sidebar)  # not later than the list, as the other one
        self._search.setSingleShot(True)
        self._search.setInterval(SEARCH_DELAY_MS)
        self._search.timeout.connect(self._list)
        self._notice = QTimer(sidebar)
        self._notice.setInterval(NOTICE_MS)
        self._notice.timeout.connect(self._notice_others)
        self._notice.start()
        sidebar.search_changed.connect(lambda _text: self._search.start())
        sidebar.chat_chosen.connect(self._open)
        sidebar.rename_requested.connect(
            lambda key, title: session.rename_chat(ConversationId(key), title)
        )
        sidebar.delete_requested.connect(self.delete)
        session.subscribe(self._follow)
        self._list()

    def delete(self, chat_id: str) -> None:
        """Delete a chat, and offer to bring it back."""
        key = ConversationId(chat_id)
        if not self._session.delete_chat(key):
            return  # the toast says why
        self._toast.show_text(
            "Chat deleted",
            icon_name="trash-2",
            icon_role="text_2",
            action="Undo",
            run=self._session.undo_delete,
            gone=lambda: self._session.forget_deleted(
                key
            ),  # another may be the last deleted one by then
        )

    def _open(self, row: ChatRow) -> None:
        self._session.open_chat(row.id, row.message_id)
        if row.message_id is not None and self._session.shows(row.message_id):
            self.found.emit(row.message_id, self._words().split())

    def _words(self) -> str:
        return self._sidebar.search_field.text().strip()

    def _follow(self, change: SessionChange) -> None:
        match change:
            case ConversationsChanged():
                self._list()
            case ConversationShown():
                self._mark()
            case RepliesChanged():
                self._mark_replying()
            case _:
                pass

    def _notice_others(self) -> None:
        """List what `ask` stored meanwhile, unless a row is about to be clicked."""
        if not self._sidebar.chat_list.is_aimed_at:
            self._session.notice_others()

    def _list(self) -> None:
        words = self._words()
        if words:
            self._sidebar.show_hits(self._session.search(words))
        else:
            self._sidebar.show_chats(self._session.conversations(), date.today())
        self._mark()

    def _mark(self) -> None:
        conversation = self._session.conversation
        self._sidebar.chat_list.set_open(conversation.id if conversation else None)
        self._mark_replying()

    def _mark_replying(self) -> None:
        self._sidebar.chat_list.set_replying(frozenset(self._session.replying_chats()))
