"""A conversation: a tree of messages in which the visible chat is one path. Pure Python values."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NewType

from app.failure_kind import FailureKind
from inference.config import SamplingParams
from inference.metrics import RequestMetrics
from inference.request import PromptPart, Role

ConversationId = NewType("ConversationId", str)
MessageId = NewType("MessageId", int)

OnFull = Literal["ask", "stop", "new_chat", "leave_out"]
"""What to do when a chat is full: ask (nothing chosen yet), refuse, go on in a new chat with a
summary, or leave out the oldest whole turns."""

MAX_TITLE_CHARS = 200

MessageStatus = Literal["complete", "streaming", "stopped", "length", "error"]


@dataclass(frozen=True, slots=True)
class Message:
    """One node of the tree.

    Attributes:
        parent_id: The message it follows; None for a first message.
        token_ids: A reply's ids as sampled, without the end-of-turn token; None for typed text.
        model_key: Which model made the ids: they are only reused by the same one.
        status: "streaming" in a stored message means that the program ended in mid-reply.
        error: For status "error": what happened, in words for people.
        failure_kind: For status "error": decides what the window offers next; None if unknown.
        part: Of a person's message that was answered: the prompt's ids that end with it, made by the
            model `model_key`; None before.
        left_out: Of a reply: how many messages of its path, oldest first, the model did not see.
        created_at: Seconds since the epoch.
    """

    id: MessageId
    conversation_id: ConversationId
    parent_id: MessageId | None
    role: Role
    content: str
    created_at: float
    status: MessageStatus = "complete"
    token_ids: tuple[int, ...] | None = None
    model_key: str | None = None
    metrics: RequestMetrics | None = None
    error: str | None = None
    failure_kind: FailureKind | None = None
    part: PromptPart | None = None
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What a person set for one chat; None or "" takes the general setting.

    Attributes:
        on_full: What to do when the context is full.
    """

    system_prompt: str = ""
    sampling: SamplingParams | None = None
    on_full: OnFull = "ask"


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """One row of the chat list."""

    id: ConversationId
    title: str
    updated_at: float


@dataclass(frozen=True, slots=True)
class Conversation:
    """A whole conversation, as a value: changes give a new one.

    Attributes:
        messages: All nodes by id.
        leaf_id: The end of the visible path; None while empty.
    """

    id: ConversationId
    title: str
    created_at: float
    updated_at: float
    settings: ChatSettings = field(default_factory=ChatSettings)
    messages: dict[MessageId, Message] = field(default_factory=dict)
    leaf_id: MessageId | None = None

    def path(self) -> list[Message]:
        """The visible chat, oldest message first."""
        return self.path_to(self.leaf_id)

    def path_to(self, message_id: MessageId | None) -> list[Message]:
        """The messages from the first one down to `message_id`, both included."""
        found: list[Message] = []
        while message_id is not None:
            message = self.messages[message_id]
            found.append(message)
            message_id = message.parent_id
        return found[::-1]

    def unfinished(self) -> list[Message]:
        """Replies that are in the making, or that a program was killed in the middle of."""
        return [message for message in self.messages.values() if message.status == "streaming"]

    def versions(self, message_id: MessageId) -> list[MessageId]:
        """The message and its siblings, oldest first: what ‹ 2/3 › switches between."""
        parent_id = self.messages[message_id].parent_id
        return sorted(m.id for m in self.messages.values() if m.parent_id == parent_id)

    def versions_on_path(self) -> dict[MessageId, list[MessageId]]:
        """The `versions` of every message of the visible chat, in time that grows with its length."""
        siblings: dict[MessageId | None, list[MessageId]] = {}
        for message in self.messages.values():
            siblings.setdefault(message.parent_id, []).append(message.id)
        return {message.id: sorted(siblings[message.parent_id]) for message in self.path()}

    def newest_leaf_below(self, message_id: MessageId) -> MessageId:
        """The end of the newest branch under `message_id`; itself if nothing follows."""
        newest_child: dict[MessageId, MessageId] = {}
        for message in self.messages.values():
            if message.parent_id is not None:
                known = newest_child.get(message.parent_id, message.id)
                newest_child[message.parent_id] = max(known, message.id)
        while message_id in newest_child:
            message_id = newest_child[message_id]
        return message_id

    def with_message(self, message: Message, *, as_leaf: bool = False) -> "Conversation":
        """This conversation with `message` added or replaced."""
        leaf_id = message.id if as_leaf else self.leaf_id
        return replace(self.with_messages((message,)), leaf_id=leaf_id)

    def with_messages(self, messages: Iterable[Message]) -> "Conversation":
        """This conversation with all of `messages` added or replaced."""
        return replace(self, messages={**self.messages, **{it.id: it for it in messages}})
