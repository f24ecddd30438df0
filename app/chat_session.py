"""What a person does with chats, and what comes of it: the one place between window and engine.

Pure Python, GUI thread. Reads and writes the store, sends commands to the engine thread through
`post`, takes its events through `handle_event`, and tells its listeners. What a person wrote is
stored before the engine sees it; a reply goes on in the background when another chat is opened.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import replace

from app.announcer import Announcer
from app.conversation import (
    ChatSettings,
    Conversation,
    ConversationId,
    ConversationSummary,
    Message,
    MessageId,
)
from app.messages import Command, Event, Failure
from app.prompting import title_from
from app.reply_desk import ReplyDesk
from app.search import SearchHit
from app.session_changes import (
    ConversationsChanged,
    ConversationShown,
    MessageAdded,
    MessageChanged,
    ModelChanged,
    ModelState,
    ReplyGrew,
    ReplyPrefilling,
    ReplyStarted,
    SessionChange,
    StatsChanged,
    StorageFailed,
)
from app.settings import SettingsStore
from app.storage import ConversationStore
from app.texts import storable

__all__ = [
    "ChatSession",
    "ConversationShown",
    "ConversationsChanged",
    "MessageAdded",
    "MessageChanged",
    "ModelChanged",
    "ModelState",
    "ReplyGrew",
    "ReplyPrefilling",
    "ReplyStarted",
    "SessionChange",
    "StatsChanged",
    "StorageFailed",
]

MAX_TITLE_CHARS = 200


class ChatSession:
    """The chats of one profile, one of them shown, and the replies in the making.

    A failure to store never raises out of here: listeners get StorageFailed, and what could not be
    stored did not happen.

    Args:
        store: The chats.
        settings: The general settings.
        post: Sends a command to the engine thread.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        store: ConversationStore,
        settings: SettingsStore,
        post: Callable[[Command], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._announcer = Announcer()
        self._conversation: Conversation | None = None
        self._draft_settings = ChatSettings()
        self._deleted: ConversationId | None = None
        self._deleted_was_shown = False
        self._is_closed = False
        self._plain_text_chats: set[ConversationId] = set()
        self._desk = ReplyDesk(
            store,
            settings,
            post=post,
            announcer=self._announcer,
            settled=self._reply_settled,
            is_shown=self._is_shown,
            clock=clock,
        )

    def subscribe(self, listener: Callable[[SessionChange], None]) -> Callable[[], None]:
        """Tell `listener` of every change from now on; call the result to end that."""
        return self._announcer.subscribe(listener)

    # ------------------------------------------------------------------ what is there

    @property
    def conversation(self) -> Conversation | None:
        """The chat that is shown, with all text that has come; None is a new, empty one."""
        if self._conversation is not None:
            for live in self._desk.replies_of(self._conversation.id):
                if self._conversation.messages.get(live.message_id) is not live.message:
                    self._conversation = self._conversation.with_message(live.message)
        return self._conversation

    @property
    def model(self) -> ModelState:
        """Which model is there, or on its way."""
        return self._desk.model

    @property
    def is_replying(self) -> bool:
        """Whether the reply at the end of the visible path is still in the making."""
        conversation = self._conversation
        return conversation is not None and self._desk.reply_of(conversation.leaf_id) is not None

    @property
    def chat_settings(self) -> ChatSettings:
        """The own settings of the chat that is shown."""
        return self._conversation.settings if self._conversation else self._draft_settings

    def conversations(self) -> list[ConversationSummary]:
        """All chats, the last used first."""
        return self._announcer.stored(self._store.conversations) or []

    def search(self, text: str) -> list[SearchHit]:
        """Chats whose title or messages hold all words, the last used first."""
        return self._announcer.stored(lambda: self._store.search(storable(text))) or []

    # ------------------------------------------------------------------ chats

    def new_chat(self) -> None:
        """Show an empty chat; it is stored with its first message."""
        self._draft_settings = ChatSettings()
        self._show(None)

    def open_chat(self, conversation_id: ConversationId) -> None:
        """Show a chat; a reply of the one before goes on in the background."""
        conversation = self._announcer.stored(lambda: self._store.load(conversation_id))
        if conversation is None:
            self._announcer.notify(ConversationsChanged())
            return
        for message in list(conversation.messages.values()):
            if message.status == "streaming":
                live = self._desk.reply_of(message.id)
                # Nobody makes this reply any more: the program ended in the middle of it.
                known = live.message if live else replace(message, status="stopped")
                conversation = conversation.with_message(known)
        self._show(conversation)

    def rename_chat(self, conversation_id: ConversationId, title: str) -> None:
        """Give a chat another title; an empty one is ignored."""
        title = storable(" ".join(title.split())[:MAX_TITLE_CHARS])
        if not title or not self._announcer.done(
            lambda: self._store.rename(conversation_id, title)
        ):
            return
        if self._conversation is not None and self._conversation.id == conversation_id:
            self._conversation = replace(self._conversation, title=title)
        self._announcer.notify(ConversationsChanged())

    def delete_chat(self, conversation_id: ConversationId) -> bool:
        """Take a chat off the list and end its replies; `undo_delete` brings it back.

        Returns:
            Whether it is off the list; if not, the listeners were told why.
        """
        if not self._announcer.done(lambda: self._store.delete(conversation_id)):
            return False
        self._deleted = conversation_id
        self._deleted_was_shown = (
            self._conversation is not None and self._conversation.id == conversation_id
        )
        if self._deleted_was_shown:
            self.new_chat()
        for live in self._desk.replies_of(conversation_id):
            self._desk.abandon(live)
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
            self.open_chat(deleted)

    def set_chat_settings(self, settings: ChatSettings) -> None:
        """Set the own settings of the chat that is shown; they hold from the next reply on."""
        settings = replace(settings, system_prompt=storable(settings.system_prompt))
        conversation = self._conversation
        if conversation is None:
            self._draft_settings = settings
        elif self._announcer.done(lambda: self._store.set_settings(conversation.id, settings)):
            self._conversation = replace(conversation, settings=settings)

    # ------------------------------------------------------------------ messages

    def send(self, text: str) -> bool:
        """Say something in the chat that is shown and ask for a reply.

        Returns:
            Whether it was stored; if not, the caller keeps the text.
        """
        if not text.strip():
            return False
        conversation = self._current(self._interrupted())
        return self._say(text, conversation, conversation.leaf_id if conversation else None)

    def edit(self, message_id: MessageId, text: str) -> bool:
        """Say something else in place of an own message; what followed stays as a branch."""
        conversation = self.conversation
        message = conversation.messages.get(message_id) if conversation else None
        if conversation is None or message is None or message.role != "user" or not text.strip():
            return False
        conversation = self._interrupted()
        return self._say(text, conversation, message.parent_id, is_edit=True)

    def regenerate(self, message_id: MessageId) -> None:
        """Ask for another version of a reply, or for the reply that a question lacks."""
        conversation = self.conversation
        message = conversation.messages.get(message_id) if conversation else None
        if conversation is None or message is None:
            return
        question_id = message.id if message.role == "user" else message.parent_id
        if question_id is None:
            return
        self._interrupted()
        self._show_branch(question_id)
        self._ask_for_reply(question_id)

    def show_version(self, message_id: MessageId) -> None:
        """Show the branch through this message, down to its newest end."""
        conversation = self.conversation
        if conversation is None or message_id not in conversation.messages:
            return
        leaf_id = conversation.newest_leaf_below(message_id)
        if self._announcer.done(lambda: self._store.set_leaf(conversation.id, leaf_id)):
            self._show_branch(leaf_id)

    def stop(self) -> None:
        """End the reply at the end of the visible path; its text so far is kept."""
        conversation = self._conversation
        live = self._desk.reply_of(conversation.leaf_id) if conversation else None
        if live is not None:
            self._desk.stop(live)

    def continue_as_plain_text(self) -> None:
        """Make the failed reply without a chat template, and all later ones of this chat."""
        conversation = self.conversation
        if conversation is None or conversation.leaf_id is None or self.is_replying:
            return
        message = conversation.messages[conversation.leaf_id]
        if message.role != "assistant" or message.status != "error":
            return
        self._plain_text_chats.add(conversation.id)
        empty = replace(message, status="streaming", content="", metrics=None)
        self._begin(replace(empty, error=None, failure_kind=None))

    # ------------------------------------------------------------------ engine

    def load_model(self, path: str) -> None:
        """Open this model; replies that run end as stopped, new ones wait for it."""
        self._desk.load_model(path)

    def handle_event(self, event: Event) -> None:
        """Take an event of the engine thread, on the GUI thread."""
        if not self._is_closed:
            self._desk.handle(event)

    def close(self) -> None:
        """End all replies, store everything, forget deleted chats for good."""
        self._is_closed = True
        self._desk.abandon_all()
        self._settings.flush()
        self._announcer.done(self._store.purge_deleted)
        self._store.close()

    # ------------------------------------------------------------------ inside

    def _say(
        self,
        text: str,
        conversation: Conversation | None,
        parent_id: MessageId | None,
        *,
        is_edit: bool = False,
    ) -> bool:
        text = storable(text)
        chat = conversation or self._new_conversation(text)

        def store() -> Message:
            with self._store.transaction():
                if conversation is None:
                    self._store.add_conversation(chat)
                return self._store.add_message(
                    chat.id, parent_id=parent_id, role="user", content=text
                )

        message = self._announcer.stored(store)
        if message is None:
            return False
        chat = chat.with_message(message, as_leaf=True)
        if conversation is None or is_edit:
            self._show(chat)
        else:
            self._conversation = chat
            self._announcer.notify(MessageAdded(message))
        self._announcer.notify(ConversationsChanged())
        self._ask_for_reply(message.id)
        return True

    def _new_conversation(self, text: str) -> Conversation:
        now = self._clock()
        return Conversation(
            ConversationId(uuid.uuid4().hex),
            title_from(text),
            created_at=now,
            updated_at=now,
            settings=self._draft_settings,
        )

    def _ask_for_reply(self, question_id: MessageId) -> None:
        conversation = self._conversation
        assert conversation is not None, "a reply belongs to the chat that is shown"
        reply = self._announcer.stored(
            lambda: self._store.add_message(
                conversation.id,
                parent_id=question_id,
                role="assistant",
                content="",
                status="streaming",
            )
        )
        if reply is not None:
            self._begin(reply)

    def _begin(self, reply: Message) -> None:
        assert self._conversation is not None, "a reply belongs to the chat that is shown"
        self._conversation = self._conversation.with_message(reply, as_leaf=True)
        self._announcer.notify(ReplyStarted(reply))
        self._desk.start(
            reply,
            self._conversation,
            as_plain_text=self._conversation.id in self._plain_text_chats,
        )

    def _interrupted(self) -> Conversation | None:
        """The shown chat after the reply at its end, if one is in the making, was ended."""
        conversation = self._conversation
        live = self._desk.reply_of(conversation.leaf_id) if conversation else None
        if live is not None:
            self._desk.abandon(live)
        return self.conversation

    def _current(self, conversation: Conversation | None) -> Conversation | None:
        """The chat as it is stored, shown anew if `ask` went on with it in another process."""
        if conversation is None:
            return None
        leaf_id = self._announcer.stored(lambda: self._store.leaf_of(conversation.id))
        if leaf_id is None or leaf_id in conversation.messages:
            return conversation
        stored = self._announcer.stored(lambda: self._store.load(conversation.id))
        if stored is None:
            return conversation
        self._show(stored)
        return stored

    def _show(self, conversation: Conversation | None) -> None:
        self._conversation = conversation
        self._announcer.notify(ConversationShown(conversation))

    def _show_branch(self, leaf_id: MessageId) -> None:
        conversation = self.conversation
        assert conversation is not None, "a branch belongs to the chat that is shown"
        self._show(replace(conversation, leaf_id=leaf_id))

    def _is_shown(self, message_id: MessageId) -> bool:
        return self._conversation is not None and self._conversation.leaf_id == message_id

    def _reply_settled(self, message: Message, failure: Failure | None) -> None:
        conversation = self._conversation
        if conversation is not None and conversation.id == message.conversation_id:
            self._conversation = conversation.with_message(message)
            self._announcer.notify(MessageChanged(message, failure))
