"""What another process, `ask`, writes in the chat that is shown comes on the screen. Pure Python, GUI thread."""

from dataclasses import replace

from app.context_room import left_out_mark
from app.conversation import Conversation, MessageId
from app.errors import StorageError
from app.session_changes import MessageAdded, MessageChanged
from app.shown_chat import ShownChat
from app.storage import NO_MESSAGE, StoredEnd
from app.surroundings import Surroundings

QUIET_S = 30.0
"""A reply of another process that does not grow for so long is shown as stopped, until it grows again:
nobody says that the process was killed."""


class ChatWatch:
    """Looks at the stored chat when something was stored that this process did not store.

    Args:
        shown: The chat that is shown.
        around: What the session works with.
    """

    def __init__(self, shown: ShownChat, around: Surroundings) -> None:
        self._shown = shown
        self._store = around.store
        self._announcer = around.announcer
        self._clock = around.clock
        self._is_due = False
        self._grew_at = 0.0
        self._growing: MessageId | None = (
            None  # the reply that another process was seen to make last
        )

    def note(self) -> None:
        """Another process has stored something, in whatever chat."""
        self._is_due = True

    def look(self) -> None:
        """Show what came; while a reply of this process is made there, later."""
        chat = self._shown.conversation
        if chat is None or self._shown.desk.replies_of(chat.id):
            return
        if self._is_due:
            self._is_due = False
            self._follow(chat)
        elif self._shown.grows_elsewhere and self._clock() - self._grew_at >= QUIET_S:
            self._show(chat, self._shown.desk.as_it_is(chat))

    def _follow(self, chat: Conversation) -> None:
        try:
            end = self._store.end_of(chat.id)
            if end is None or _is_known(chat, end):
                self._follow_earlier(chat)
                return
            new = self._store.messages_from(chat.id, chat.leaf_id or NO_MESSAGE)
        except StorageError:
            return  # it is told when a person wants something of the store
        now = self._shown.desk.as_it_is(chat.with_messages(new))
        last = now.messages[end.message_id]
        if end.status == "streaming":
            self._grew_at, self._growing = self._clock(), last.id
            last = replace(last, status="streaming")
        self._show(chat, now.with_message(last, as_leaf=True))

    def _follow_earlier(self, chat: Conversation) -> None:
        """Show what came of a reply that is not the end any more, as somebody went on here meanwhile."""
        growing = self._growing
        if growing is None or growing not in chat.messages or growing == chat.leaf_id:
            return
        found = [each for each in self._store.messages_from(chat.id, growing) if each.id == growing]
        self._show(chat, self._shown.desk.as_it_is(chat.with_messages(found)))
        if all(message.status != "streaming" for message in found):
            self._growing = None

    def _show(self, before: Conversation, now: Conversation) -> None:
        """Messages that stay keep their places, selections and editors."""
        old, path = before.path(), now.path()
        if [message.id for message in path[: len(old)]] != [message.id for message in old]:
            self._shown.show(now)
            return
        self._shown.take(now)
        for message, known in zip(path, old, strict=False):
            if message != known:
                self._announcer.notify(MessageChanged(message, None, left_out_mark(path)))
        for message in path[len(old) :]:
            self._announcer.notify(MessageAdded(message))


def _is_known(chat: Conversation, end: StoredEnd) -> bool:
    """Whether the chat ends as it is stored; another branch of it is somebody's choice."""
    known = chat.messages.get(end.message_id)
    if known is None:
        return False
    # What nobody makes any more is stored as it was left, and shown as stopped.
    is_left = end.status == "streaming" and known.status == "stopped"
    is_same = (end.status == known.status or is_left) and end.num_chars == len(known.content)
    return is_same or end.message_id != chat.leaf_id
