"""The chat that a question on the command line belongs to. Pure Python; main thread."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from app.conversation import ChatSettings, Conversation, ConversationId, Message, MessageId
from app.errors import StorageError
from app.prompting import title_from
from app.storage import ConversationStore
from inference.request import PromptPart

logger = logging.getLogger(__name__)

# Of messages that are not stored: no stored one has these.
_QUESTION_ID, _REPLY_ID = MessageId(0), MessageId(-1)


class AskedChat:
    """A stored chat, found or made by its title, or one that only lives for this call.

    Args:
        database: Where chats are kept; only opened when there is a title.
        title: One line; None keeps nothing.

    Attributes:
        follows_unfinished: Whether the question follows a reply that another process had not finished.

    Raises:
        StorageError: The database cannot be used.
    """

    def __init__(self, database: Path, title: str | None) -> None:
        self.follows_unfinished = False
        self._store: ConversationStore | None = None
        self._title = title or ""
        self._question = ""
        self._system_prompt: str | None = None
        self._reply_id: MessageId | None = None  # None until it is stored
        now = time.time()
        self._new = Conversation(
            ConversationId(uuid.uuid4().hex), self._title, created_at=now, updated_at=now
        )
        self._conversation = self._new
        if title is not None:
            self._store = ConversationStore(database)
            self._conversation = self._found(self._store) or self._new

    @property
    def is_kept(self) -> bool:
        """Whether the chat outlives this call."""
        return self._store is not None

    @property
    def is_deleted(self) -> bool:
        """Whether somebody has deleted the chat since the question was stored.

        Raises:
            StorageError: The database cannot be read.
        """
        if self._store is None or self._reply_id is None:
            return False
        return self._store.end_of(self._conversation.id) is None

    @property
    def settings(self) -> ChatSettings:
        """The chat's own settings."""
        return self._conversation.settings

    @property
    def history(self) -> list[Message]:
        """The path that ends with the question, oldest message first."""
        return self._conversation.path()

    def begin(
        self,
        question: str,
        *,
        system_prompt: str | None = None,
        is_too_long: Callable[[Conversation], bool] = lambda asked: False,
    ) -> Message:
        """Keep a question, its reply, and the chat's system prompt if one is given.

        They follow the newest message that is there now. What the store refuses comes with `save`.

        Args:
            question: Not empty.
            system_prompt: None leaves the chat's as it is.
            is_too_long: Whether the engine will refuse the chat with the question. Nothing is kept
                then, from here on: as in the window, what does not fit is not sent.

        Returns:
            The reply's message, still empty.
        """
        self._question, self._system_prompt = question, system_prompt
        if self._store is not None:
            try:
                self._conversation = self._newest(self._store) or self._new
                if not is_too_long(self._asked()):
                    return self._store_turn(self._store)
                self._store.close()
                self._store = None
            except StorageError as error:
                logger.warning("A question could not be stored yet: %s", error)
        self._conversation = chat = self._asked()
        return Message(_REPLY_ID, chat.id, chat.leaf_id, "assistant", "", time.time(), "streaming")

    def save(self, message: Message) -> None:
        """Keep the reply as it stands, and the question if it is not stored yet.

        Raises:
            StorageError: It was refused; it may be tried again.
        """
        if self._store is None:
            return
        reply_id = self._reply_id or self._store_turn(self._store).id
        self._store.update_message(replace(message, id=reply_id))

    def set_parts(self, parts: Mapping[MessageId, PromptPart], model_key: str) -> None:
        """Keep ids of the prompt with the messages of the chat."""
        if self._store is not None:
            self._store.set_parts(parts, model_key)

    def close(self) -> None:
        """Close the database."""
        if self._store is not None:
            self._store.close()

    def _found(self, store: ConversationStore) -> Conversation | None:
        # A chat of the window is called by its first message, cut where that is long.
        found = store.find_by_title(self._title) or store.find_by_title(title_from(self._title))
        return None if found is None else store.load(found)

    def _newest(self, store: ConversationStore) -> Conversation | None:
        """The chat as it is stored now; another process may have gone on in it."""
        # By its id: it may have another title by now.
        return store.load(self._conversation.id) or self._found(store)

    def _asked(self) -> Conversation:
        """The chat with the question, not stored."""
        chat = self._prompted(self._conversation)
        question = Message(_QUESTION_ID, chat.id, chat.leaf_id, "user", self._question, time.time())
        return chat.with_message(question, as_leaf=True)

    def _prompted(self, chat: Conversation) -> Conversation:
        if self._system_prompt is None:
            return chat
        settings = replace(chat.settings, system_prompt=self._system_prompt)
        return replace(chat, settings=settings)

    def _store_turn(self, store: ConversationStore) -> Message:
        """Store question and empty reply, or nothing; another process may have gone on in the chat meanwhile."""
        with store.transaction():
            found = self._newest(store)
            if found is None:
                chat = self._prompted(self._new)
                store.add_conversation(chat)
            else:
                chat = self._prompted(self._settled(store, found))
                if chat.settings != found.settings:
                    store.set_settings(chat.id, chat.settings)
            question = store.add_message(
                chat.id, parent_id=chat.leaf_id, role="user", content=self._question
            )
            reply = store.add_message(
                chat.id, parent_id=question.id, role="assistant", content="", status="streaming"
            )
        self.follows_unfinished = found is not None and chat.leaf_id in {
            message.id for message in found.unfinished()
        }
        self._conversation = chat.with_message(question, as_leaf=True)
        self._reply_id = reply.id
        return reply

    def _settled(self, store: ConversationStore, chat: Conversation) -> Conversation:
        """The chat with replies as stopped that a program was killed in the middle of.

        If another process makes one of them still, it stores how that ended later.
        """
        stopped = [replace(message, status="stopped") for message in chat.unfinished()]
        for message in stopped:
            store.update_message(message)
        return chat.with_messages(stopped)
