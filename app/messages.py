"""What the two threads say to each other: frozen, picklable values, nothing else crosses.

Commands go from the GUI thread through a queue to the engine thread; events come back through one
Qt signal. Pure Python, so the engine could move to its own process without touching the window.
"""

from dataclasses import dataclass
from typing import NewType

from app.failure_kind import FailureKind
from inference.config import EngineConfig, GuessName, SamplingParams
from inference.metrics import EngineStats, ModelInfo, RequestMetrics
from inference.request import ChatMessage, FinishReason, PromptPart

ReplyId = NewType("ReplyId", int)


# ---------------------------------------------------------------- commands: GUI -> engine thread


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Open this model; one that is open is closed first, its running replies end as aborted."""

    path: str
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Close the model and give its memory back."""


@dataclass(frozen=True, slots=True)
class Generate:
    """Make one reply.

    Attributes:
        reply_id: Chosen by the sender, unique while the program runs; names the reply in events.
        as_plain_text: The model has no chat template and the person chose plain completion: the
            contents are joined with blank lines and continued.
        leave_out: If the prompt does not fit, leave out the oldest whole turns instead of failing.
        left_out: How many of the chat's messages are not among `messages` already.
        keep_on_disk: Whether what is computed may be kept on disk.
    """

    reply_id: ReplyId
    conversation_id: str
    messages: tuple[ChatMessage, ...]
    params: SamplingParams
    as_plain_text: bool = False
    leave_out: bool = False
    left_out: int = 0
    keep_on_disk: bool = True


@dataclass(frozen=True, slots=True)
class MeasurePrompt:
    """Say how long a prompt would be, before it is sent; each is answered by one PromptMeasured.

    Attributes:
        measure_id: Chosen by the sender, unique while the program runs.
    """

    measure_id: int
    messages: tuple[ChatMessage, ...]
    as_plain_text: bool = False


@dataclass(frozen=True, slots=True)
class ForgetChat:
    """Remove what only this chat has cached, on all tiers and for all models.

    Attributes:
        is_deleted: The chat is gone: nobody waits for the event CacheCleared.
    """

    conversation_id: str
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class KeepOnlyChats:
    """Remove from the disk what only chats used that are not among these.

    Sent at the start: a program that was killed may have deleted chats and not come to forget them.
    """

    conversation_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClearCache:
    """Remove all that is cached, of all chats and models."""


@dataclass(frozen=True, slots=True)
class SetCacheBudgets:
    """Budgets of RAM and disk from now on, in bytes; None chooses."""

    ram_bytes: int | None
    disk_bytes: int | None


@dataclass(frozen=True, slots=True)
class SetGuessing:
    """Guess ahead in this way from now on, the replies in the making included.

    Answered by one DraftChanged, unless a newer SetGuessing comes before it is.

    Attributes:
        change_id: Chosen by the sender, unique while the program runs.
        draft_model: Path of the draft model to use; None is none.
        can_wait: Loading the draft model takes seconds in which no reply goes on: do it when there is
            nothing else to do.
    """

    change_id: int
    guess: GuessName
    draft_model: str | None = None
    can_wait: bool = False


@dataclass(frozen=True, slots=True)
class FindDrafts:
    """Say which of these models could guess ahead for the open one, when there is nothing else to do.

    Attributes:
        paths: Models that are known.
        beside: A model in whose folder to look for others; "" looks in none.
    """

    paths: tuple[str, ...]
    beside: str = ""


@dataclass(frozen=True, slots=True)
class StopReply:
    """End this reply after the step that runs now; unknown or ended ids are ignored."""

    reply_id: ReplyId


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the engine thread: running replies end as aborted, the model is closed."""


Command = (
    LoadModel
    | UnloadModel
    | Generate
    | StopReply
    | MeasurePrompt
    | ForgetChat
    | KeepOnlyChats
    | ClearCache
    | SetCacheBudgets
    | SetGuessing
    | FindDrafts
    | Shutdown
)


# ---------------------------------------------------------------- events: engine thread -> GUI


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in words for people.

    Attributes:
        kind: What the window may offer next.
        message: What happened, one or two sentences.
        hint: What to do next; may be empty.
    """

    kind: FailureKind
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ModelLoading:
    """A load goes on; `fraction` runs from 0 to 1."""

    path: str
    stage: str
    fraction: float


@dataclass(frozen=True, slots=True)
class ModelReady:
    """The model is open and can reply.

    Attributes:
        config: How it was to be opened.
    """

    info: ModelInfo
    config: EngineConfig | None = None


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """The load ended with an error; no model is open, or still the one before.

    Attributes:
        is_scheme_refused: It would open with another way to store keys and values.
        config: How it was to be opened; None if it was open and broke.
        kept: What was said of the model that is open still; None if none is.
    """

    path: str
    failure: Failure
    is_scheme_refused: bool = False
    config: EngineConfig | None = None
    kept: ModelReady | None = None


@dataclass(frozen=True, slots=True)
class ModelUnloaded:
    """No model is open any more."""


@dataclass(frozen=True, slots=True)
class DraftsFound:
    """The answer to FindDrafts: the models that could guess ahead for the open one."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DraftChanged:
    """The answer to SetGuessing: what guesses ahead now.

    Attributes:
        path: The draft model in use; None is none.
        info: What was loaded, if there is one in use.
        failure: Why it is not the one that was asked for; what was in use before still is.
    """

    change_id: int
    path: str | None = None
    info: ModelInfo | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ReplyProgressed:
    """One step of one reply: prefill went on, or text came.

    Attributes:
        text: Whole characters to append; may be empty.
        token_ids: Tokens sampled in the step.
        prefilled_tokens: Prompt tokens done, reused ones included.
        is_all_shown: Whether the ids so far say exactly the text so far.
    """

    reply_id: ReplyId
    text: str
    token_ids: tuple[int, ...]
    prefilled_tokens: int
    metrics: RequestMetrics
    is_all_shown: bool = False


@dataclass(frozen=True, slots=True)
class ReplyEnded:
    """The last event of a reply.

    Attributes:
        failure: Set if and only if finish_reason is "error".
        reply_token_ids: The whole reply's ids, to be stored beside its text; None if unknown.
    """

    reply_id: ReplyId
    finish_reason: FinishReason
    metrics: RequestMetrics
    failure: Failure | None = None
    reply_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PromptRead:
    """The prompt of a reply was made; comes before its first ReplyProgressed.

    Attributes:
        parts: Ids that were not known before, each with the index of its message in the Generate.
        left_out: How many of the chat's messages, oldest first, are not in the prompt.
    """

    reply_id: ReplyId
    parts: tuple[tuple[int, PromptPart], ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class PromptMeasured:
    """The answer to MeasurePrompt.

    Attributes:
        prompt_tokens: Its length; 0 if no model is open or the prompt cannot be made. Then `fits` is
            true: sending it says what is wrong.
        fits: Whether there is room for it and for a reply worth having.
    """

    measure_id: int
    prompt_tokens: int
    context_tokens: int
    fits: bool


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """What was cached is gone.

    Attributes:
        conversation_id: Of this chat; None for all.
        freed_bytes: On all tiers together.
    """

    conversation_id: str | None
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class StatsSampled:
    """A snapshot of the engine, at most four times a second while it works, and when it falls idle.

    Attributes:
        rss_bytes: Resident memory of this process.
        total_memory_bytes: Memory of the machine.
    """

    stats: EngineStats
    rss_bytes: int
    total_memory_bytes: int


Event = (
    ModelLoading
    | ModelReady
    | ModelFailed
    | ModelUnloaded
    | DraftsFound
    | DraftChanged
    | ReplyProgressed
    | ReplyEnded
    | PromptRead
    | PromptMeasured
    | CacheCleared
    | StatsSampled
)
