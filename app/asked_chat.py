"""The chat that a question on the command line belongs to. Pure Python; main thread."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from app.conversation import ChatSettings, Conversation, ConversationId, Message, MessageId
from app.prompting import title_from
from app.storage import ConversationStore
from inference.request import PromptPart


class AskedChat:
    """A stored chat, found or made by its title, or one that only lives for this call.

    Args:
        database: Where chats are kept; only opened when there is a title.
        title: One line; None keeps nothing.

    Raises:
        StorageError: The database cannot be used.
    """

    def __init__(self, database: Path, title: str | None) -> None:
        self._store: ConversationStore | None = None
        self._is_new = True
        now = time.time()
        self._conversation = Conversation(
            ConversationId(uuid.uuid4().hex), title or "", created_at=now, updated_at=now
        )
        if title is not None:
            self._store = ConversationStore(database)
            # A chat of the window is called by its first message, cut where that is long.
            found = self._store.find_by_title(title) or self._store.find_by_title(title_from(title))
            stored = self._store.load(found) if found is not None else None
            if stored is not None:
                self._is_new = False
                self._conversation = self._settled(stored)

    @property
    def is_kept(self) -> bool:
        """Whether the chat outlives this call."""
        return self._store is not None

    @property
    def settings(self) -> ChatSettings:
        """The chat's own settings."""
        return self._conversation.settings

    def say(self, text: str, *, system_prompt: str | None = None) -> list[Message]:
        """Keep a question, and the chat's system prompt if one is given.

        Returns:
            The path that ends with the question, oldest message first.
        """
        chat = self._conversation
        if system_prompt is not None:
            chat = replace(chat, settings=replace(chat.settings, system_prompt=system_prompt))
        if self._store is None:
            message = Message(MessageId(1), chat.id, None, "user", text, time.time())
        else:
            with self._store.transaction():
                if self._is_new:
                    self._store.add_conversation(chat)
                elif chat.settings != self._conversation.settings:
                    self._store.set_settings(chat.id, chat.settings)
                message = self._store.add_message(
                    chat.id, parent_id=chat.leaf_id, role="user", content=text
                )
        self._conversation = chat.with_message(message, as_leaf=True)
        return self._conversation.path()

    def begin_reply(self) -> Message:
        """The reply's message, still empty."""
        chat = self._conversation
        if self._store is None:
            return Message(
                MessageId(2), chat.id, chat.leaf_id, "assistant", "", time.time(), "streaming"
            )
        return self._store.add_message(
            chat.id, parent_id=chat.leaf_id, role="assistant", content="", status="streaming"
        )

    def save(self, message: Message) -> None:
        """Keep the reply as it stands."""
        if self._store is not None:
            self._store.update_message(message)

    def set_parts(self, parts: Mapping[MessageId, PromptPart], model_key: str) -> None:
        """Keep ids of the prompt with the messages of the chat."""
        if self._store is not None:
            self._store.set_parts(parts, model_key)

    def _settled(self, stored: Conversation) -> Conversation:
        """The chat with replies as stopped that a program was killed in the middle of.

        If the window makes one of them still, it stores how that ended later.
        """
        for message in stored.unfinished():
            stopped = replace(message, status="stopped")
            self.save(stopped)
            stored = stored.with_message(stopped)
        return stored

    def close(self) -> None:
        """Close the database."""
        if self._store is not None:
            self._store.close()
