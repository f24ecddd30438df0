"""All chats, and what is done with them without opening one. Pure Python, GUI thread."""

from collections.abc import Callable

from app.conversation import MAX_TITLE_CHARS, ConversationId, ConversationSummary
from app.errors import StorageError
from app.messages import ForgetChat, KeepOnlyChats
from app.search import SearchHit
from app.session_changes import ConversationsChanged
from app.shown_chat import ShownChat
from app.surroundings import Surroundings
from app.texts import as_line, is_blank, storable


class ChatList:
    """The chats of one profile. A failure to store never raises: listeners get StorageFailed.

    Args:
        shown: The chat that is shown.
        around: What the session works with.
        show_new: Shows an empty chat.
        show: Shows this chat.
    """

    def __init__(
        self,
        shown: ShownChat,
        around: Surroundings,
        *,
        show_new: Callable[[], None],
        show: Callable[[ConversationId], None],
    ) -> None:
        self._shown = shown
        self._store = around.store
        self._post = around.post
        self._announcer = around.announcer
        self._show_new = show_new
        self._show = show
        self._deleted: ConversationId | None = None
        self._deleted_was_shown = False

    def all(self) -> list[ConversationSummary]:
        """All chats, the last used first."""
        return self._announcer.stored(self._store.conversations) or []

    def notice_others(self) -> bool:
        """Tell that the list differs if another process, `ask`, has changed it.

        Returns:
            Whether another process may have stored anything.
        """
        try:
            if not self._store.was_changed_elsewhere():
                return False
            has_changed = self._store.list_was_changed()
        except StorageError:
            return False  # it is told when a person wants something of the store
        if has_changed:
            self._announcer.notify(ConversationsChanged())
        return True

    def search(self, text: str) -> list[SearchHit]:
        """Chats whose title or messages hold all words, the last used first."""
        return self._announcer.stored(lambda: self._store.search(storable(text))) or []

    def rename(self, conversation_id: ConversationId, title: str) -> None:
        """Give a chat another title; an empty one is ignored."""
        title = storable(as_line(title)[:MAX_TITLE_CHARS])
        if is_blank(title) or not self._announcer.done(
            lambda: self._store.rename(conversation_id, title)
        ):
            return
        if self._shown.id == conversation_id:
            self._shown.rename(title)
        self._announcer.notify(ConversationsChanged())

    def delete(self, conversation_id: ConversationId) -> bool:
        """Take a chat off the list and end its replies; `forget_deleted` comes later.

        Returns:
            Whether it is off the list; if not, the listeners were told why.
        """
        if not self._announcer.done(lambda: self._store.delete(conversation_id)):
            return False
        self.give_up_undo()  # of the one before
        self._deleted = conversation_id
        self._deleted_was_shown = self._shown.id == conversation_id
        if self._deleted_was_shown:
            self._show_new()
        for live in self._shown.desk.replies_of(conversation_id):
            self._shown.desk.abandon(live)
        self._announcer.notify(ConversationsChanged())
        return True

    def undo_delete(self) -> None:
        """Bring the last deleted chat back; show it if it was shown then."""
        deleted = self._deleted
        if deleted is None or not self._announcer.done(lambda: self._store.restore(deleted)):
            return
        self._deleted = None
        self._announcer.notify(ConversationsChanged())
        if self._deleted_was_shown:
            self._show(deleted)

    def forget_deleted(self, conversation_id: ConversationId) -> None:
        """Forget what models have read of a chat, if it is the last deleted one: nobody will bring it back."""
        if self._deleted == conversation_id:
            self._deleted = None
            self._post(ForgetChat(conversation_id, is_deleted=True))

    def give_up_undo(self) -> None:
        """Let the last deleted chat not be brought back any more, if there is one."""
        if self._deleted is not None:
            self.forget_deleted(self._deleted)

    def forget_lost(self) -> None:
        """Remove what is cached of chats that are not there any more."""
        known = self._announcer.stored(self._store.conversations)
        if known is not None:
            self._post(KeepOnlyChats(tuple(chat.id for chat in known)))
