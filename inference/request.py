"""What goes into the engine and what comes out, as frozen values. Pure Python; any thread."""

from dataclasses import dataclass, field
from typing import Literal, NewType

from inference.config import SamplingParams
from inference.errors import EngineError, InvalidRequestError
from inference.metrics import RequestMetrics

RequestId = NewType("RequestId", int)
Role = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length", "aborted", "error"]


PART_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Ids of a stretch of a prompt: all that stands before a reply, from the known reply before it.

    It is kept beside the last message of the stretch, so that what was read once is not tokenised
    again. The text is named by a digest: if the template writes it differently, the ids are not used.

    Attributes:
        token_ids: Of the stretch, markup of the template included.
        digest: Names the text and what stands before it, 16 bytes.
    """

    token_ids: tuple[int, ...]
    digest: bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", _as_tuple("token_ids", self.token_ids, int))
        digest: object = self.digest
        if not isinstance(digest, bytes) or len(digest) != PART_DIGEST_BYTES:
            raise InvalidRequestError("digest", f"must be {PART_DIGEST_BYTES} bytes.")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat.

    Attributes:
        role: Who speaks.
        content: The text, as typed or as decoded; never holds markup of the template.
        token_ids: For a reply of this model: the ids as sampled, without the end-of-turn token.
            They go into the prompt as they are, so that history is never tokenised again. None
            if unknown (typed text, or another model's reply).
        part: For a message that was answered by this model: the ids of the prompt that end with it,
            as they came in `StepOutput.prompt_parts`. None if unknown.
    """

    role: Role
    content: str
    token_ids: tuple[int, ...] | None = None
    part: PromptPart | None = None

    def __post_init__(self) -> None:
        if self.role not in ("system", "user", "assistant"):
            raise InvalidRequestError(
                "role", f"must be system, user or assistant, not {self.role!r}."
            )
        if not isinstance(self.content, str):
            raise InvalidRequestError(
                "content", f"must be text, not {type(self.content).__name__}."
            )
        if self.token_ids is not None:
            object.__setattr__(self, "token_ids", _as_tuple("token_ids", self.token_ids, int))


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One reply to make. Exactly one of `messages` and `prompt_token_ids` is given.

    Attributes:
        conversation_id: Names the chat that owns what is cached, until `Engine.forget` of it.
        messages: The chat so far; the last one is normally the user's.
        prompt_token_ids: Ready ids, used as they are: no template, no BOS added.
        params: How to sample.
        plain_text: Let the model continue the messages as one text, without a chat template: for
            models that have none.
        keep_on_disk: Whether the chat's blocks may be written to the disk tier, if there is one.
        has_left_out: Whether the chat's oldest messages are not among `messages`.
    """

    conversation_id: str
    messages: tuple[ChatMessage, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    plain_text: bool = False
    keep_on_disk: bool = True
    has_left_out: bool = False

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.prompt_token_ids is None):
            raise InvalidRequestError(
                "messages", "give either messages or prompt_token_ids, and not both."
            )
        if self.messages is not None:
            object.__setattr__(self, "messages", _as_tuple("messages", self.messages, ChatMessage))
        if self.prompt_token_ids is not None:
            ids = _as_tuple("prompt_token_ids", self.prompt_token_ids, int)
            object.__setattr__(self, "prompt_token_ids", ids)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step did for one request. Every request gets one final output with a finish reason.

    Attributes:
        request_id: Whose.
        token_ids: Tokens sampled in this step, an end-of-turn token included: empty while prefill
            goes on.
        text: Whole characters that are safe to show: no part of a stop string, no half character.
        finish_reason: None while the request runs.
        prefilled_tokens: Prompt tokens that are in the KV memory now, reused ones included.
        metrics: So far; final together with a finish reason.
        error: Set if and only if finish_reason is "error".
        reply_token_ids: Set together with a finish reason: the whole reply's ids, to be kept beside
            its text and given back as `ChatMessage.token_ids`. They say what was shown: there is no
            end-of-turn token, and nothing of a stop string or of half a character.
        prompt_parts: On a request's first output only: ids of the prompt that were not known before,
            each with the index of the message (in the request) to keep it beside. None if the request
            ended before any of it was read.
        is_all_shown: Whether the ids so far say exactly the text so far: nothing waits for what follows.
    """

    request_id: RequestId
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: FinishReason | None = None
    prefilled_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    error: EngineError | None = None
    reply_token_ids: tuple[int, ...] | None = None
    prompt_parts: tuple[tuple[int, PromptPart], ...] = ()
    is_all_shown: bool = False


@dataclass(frozen=True, slots=True)
class PromptSize:
    """How long a prompt would be.

    Attributes:
        prompt_tokens: Its length.
        context_tokens: The most that the engine can hold, prompt and reply together.
        message_starts: Per message, the index of the first token that belongs to it; rising.
    """

    prompt_tokens: int
    context_tokens: int
    message_starts: tuple[int, ...]


TRYING_INT4 = "Trying how well int4 suits this model"
"""How the stage of a load begins that only the first load with int4 has."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load has come.

    Attributes:
        stage: In words for people: "Reading the file", "Loading weights", ...
        fraction: 0 to 1 over the whole load, never falling.
    """

    stage: str
    fraction: float


def _as_tuple(field: str, value: object, kind: type) -> tuple[object, ...]:
    # Values are made by hand in scripts, so a list is as welcome as a tuple, and a slip is named.
    if not isinstance(value, (list, tuple)):
        raise InvalidRequestError(field, f"must be a list or tuple, not {type(value).__name__}.")
    for item in value:
        if not isinstance(item, kind) or isinstance(item, bool):
            raise InvalidRequestError(
                field, f"must hold {kind.__name__} values, not {type(item).__name__}."
            )
    return tuple(value)
