"""What a ChatSession tells its listeners. Frozen values. Pure Python; GUI thread.

How a view follows them:

- ConversationShown: show `conversation.path()` afresh; a last message with status "streaming"
  goes on growing. None is a new, still empty chat.
- MessageAdded, ReplyStarted: append the message at the end of the visible path.
- ReplyPrefilling, ReplyGrew, ReplyWaits: only ever for the last message of the visible path.
- MessageChanged: a message of the visible path has its final content and status.
- MessageAdded, MessageChanged come as well for what another process writes in the chat: then a reply may
  be added, and one with status "streaming" be changed as it grows.
- RepliesChanged: replies that are not on the visible path may have begun or ended, in any chat.
"""

from dataclasses import dataclass
from typing import Literal

from app.conversation import Conversation, ConversationId, Message, MessageId, OnFull
from app.messages import Failure, StatsSampled
from inference.metrics import ModelInfo, RequestMetrics

WaitReason = Literal["memory", "reading", "turn"]
"""Why the engine has not come to a reply: other replies take the memory for chats, another prompt is
being read, or so many replies are made already that no more is begun."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """Which model is there, or on its way.

    Attributes:
        kind: "none" before the first load and after an unload.
        path: Of the model that is open, being opened, or failed.
        stage: While loading: what goes on, in words for people.
        fraction: While loading: 0 to 1.
        info: Only when ready.
        failure: Only when failed.
    """

    kind: Literal["none", "loading", "ready", "failed"] = "none"
    path: str = ""
    stage: str = ""
    fraction: float = 0.0
    info: ModelInfo | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ConversationsChanged:
    """The list of chats differs: one came, went, moved up, or has another title."""


@dataclass(frozen=True, slots=True)
class ConversationShown:
    """Another chat, or another branch of this one, is to be shown from its beginning."""

    conversation: Conversation | None


@dataclass(frozen=True, slots=True)
class MessageAdded:
    """A person's message was stored and ends the visible path now."""

    message: Message


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """A reply was asked for; its message (status "streaming", empty) ends the visible path.

    Of several that were asked for at once it is the first; the others are its younger versions.
    """

    message: Message


@dataclass(frozen=True, slots=True)
class ReplyPrefilling:
    """The prompt is being read: so many of its tokens are done."""

    message_id: MessageId
    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class ReplyWaits:
    """The engine has not come to the reply for a while; told again and again until it does."""

    message_id: MessageId
    reason: WaitReason


@dataclass(frozen=True, slots=True)
class ReplyGrew:
    """Text to append to the reply."""

    message_id: MessageId
    text: str
    metrics: RequestMetrics


@dataclass(frozen=True, slots=True)
class MessageChanged:
    """The reply ended; `failure` says why and what to offer when its status is "error".

    Attributes:
        left_out_mark: As `ChatSession.left_out_mark` is now.
    """

    message: Message
    failure: Failure | None = None
    left_out_mark: MessageId | None = None


@dataclass(frozen=True, slots=True)
class RepliesChanged:
    """A reply began or ended, in any chat: see `replying_chats` and `running_versions`."""


@dataclass(frozen=True, slots=True)
class RepliesAlike:
    """Several replies were asked for and one is made, because all would be the same.

    Attributes:
        reason: To go on after "because".
    """

    reason: str


@dataclass(frozen=True, slots=True)
class ModelChanged:
    """The model, or the progress of its load, differs."""

    state: ModelState


@dataclass(frozen=True, slots=True)
class ModelRefused:
    """A model could not be opened; the one before stays, or is opened again: ModelChanged says it next.

    Attributes:
        path: Of the model that could not be opened.
    """

    path: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class GuessState:
    """How the open model's tokens are guessed ahead.

    Attributes:
        is_on: Whether they are, where it pays.
        draft_path: The draft model that was chosen for the open model; "" is none.
        is_loading: Whether that one is on its way.
        draft: What is in use of it.
        matching: Models that could be chosen.
    """

    is_on: bool = True
    draft_path: str = ""
    is_loading: bool = False
    draft: ModelInfo | None = None
    matching: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GuessingChanged:
    """How tokens are guessed ahead differs, or what could be chosen for it."""

    state: GuessState


@dataclass(frozen=True, slots=True)
class DraftRefused:
    """A draft model cannot be used; the choice is what it was before.

    Attributes:
        path: Of the draft model.
        failure: Why.
    """

    path: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class StatsChanged:
    """A new snapshot of the engine."""

    sample: StatsSampled


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """Something could not be stored or read, in words for people; the program goes on."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class RepliesStored:
    """All replies that could not be stored are stored by now."""


@dataclass(frozen=True, slots=True)
class DraftMeasured:
    """How long the shown chat would be with the draft.

    Attributes:
        prompt_tokens: With all that the model would read.
        context_tokens: The most that the model can hold, prompt and reply together.
        fits: Whether there is room for it and for a reply worth having.
        is_alone: Whether the draft is the chat's only message, or would not fit even if all before it
            were left out: then the numbers are those of it alone.
    """

    prompt_tokens: int
    context_tokens: int
    fits: bool
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class ChatIsFull:
    """What was to be sent does not fit, and was not sent; its text is with the person.

    Attributes:
        choice: What was chosen for this chat.
        text: What was to be sent; "" if it was another reply.
        message_id: What was to be edited, or to be answered again; None was a new message.
        is_alone: As in DraftMeasured.
        num_replies: How many replies were asked for at once.
    """

    prompt_tokens: int
    context_tokens: int
    choice: OnFull
    text: str = ""
    message_id: MessageId | None = None
    is_alone: bool = False
    num_replies: int = 1


@dataclass(frozen=True, slots=True)
class DraftReturned:
    """A text that the session had taken was not sent: it belongs where it came from.

    When another chat is opened meanwhile, this comes before ConversationShown.

    Attributes:
        message_id: Whose editor it came from; None was the composer.
    """

    text: str
    message_id: MessageId | None = None


@dataclass(frozen=True, slots=True)
class SummaryProgress:
    """The shown chat is being summed up; so many characters are there."""

    done_chars: int


@dataclass(frozen=True, slots=True)
class SummaryEnded:
    """The summary ended; the new chat is shown next, or else the text came back before.

    Attributes:
        failure: None if it is there, or if the person stopped it.
    """

    failure: Failure | None


@dataclass(frozen=True, slots=True)
class CacheWasCleared:
    """What models had read is forgotten.

    Attributes:
        conversation_id: Of this chat; None for all.
        freed_bytes: On all tiers together.
    """

    conversation_id: ConversationId | None
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class SchemeRefused:
    """The way to store keys and values that was set would make this model worse.

    It is opened with the automatic one.

    Attributes:
        reason: One sentence.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class BudgetRefused:
    """There is no room for the memory of the model that was set; it is what it was before.

    Attributes:
        reason: One sentence.
    """

    reason: str


SessionChange = (
    ConversationsChanged
    | ConversationShown
    | MessageAdded
    | ReplyStarted
    | ReplyPrefilling
    | ReplyWaits
    | ReplyGrew
    | MessageChanged
    | RepliesChanged
    | RepliesAlike
    | ModelChanged
    | ModelRefused
    | GuessingChanged
    | DraftRefused
    | StatsChanged
    | StorageFailed
    | RepliesStored
    | DraftMeasured
    | ChatIsFull
    | DraftReturned
    | SummaryProgress
    | SummaryEnded
    | CacheWasCleared
    | SchemeRefused
    | BudgetRefused
)
