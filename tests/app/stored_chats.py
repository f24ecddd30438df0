"""Chats in a database, for the tests of storing them."""

import itertools
from pathlib import Path

from app.conversation import Conversation, ConversationId, MessageId
from app.storage import ConversationStore
from inference.request import Role


def make_store(tmp_path: Path, **arguments: object) -> ConversationStore:
    """Its clock counts 1, 2, 3, …"""
    ticks = itertools.count(1)
    return ConversationStore(tmp_path / "chats.db", clock=lambda: float(next(ticks)), **arguments)  # type: ignore[arg-type]


def add_chat(store: ConversationStore, name: str, *texts: str) -> Conversation:
    """A chat with these messages in one line, the first by the user."""
    chat = Conversation(ConversationId(name), f"Title {name}", 0.0, 0.0)
    store.add_conversation(chat)
    parent: MessageId | None = None
    for number, text in enumerate(texts):
        role: Role = "assistant" if number % 2 else "user"
        parent = store.add_message(chat.id, parent_id=parent, role=role, content=text).id
    loaded = store.load(chat.id)
    assert loaded is not None
    return loaded


def hits(store: ConversationStore, text: str) -> list[tuple[str, int | None]]:
    return [(hit.conversation.id, hit.message_id) for hit in store.search(text)]
