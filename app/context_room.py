"""How much of a context a chat takes, and what is left out when it is full. Pure Python; any thread."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from app.conversation import Message, MessageId
from inference.request import ChatMessage, PromptPart, PromptSize

MOST_REPLY_ROOM = 512
GENEROUS_SHARE = 0.6
# Upper bounds: what templates write around one message, and before all of them.
_MARKUP_TOKENS = 16
_PREAMBLE_TOKENS = 256


def reply_room(context_tokens: int) -> int:
    """Tokens that a reply worth having needs."""
    return max(1, min(MOST_REPLY_ROOM, context_tokens // 8))


def has_room(prompt_tokens: int, context_tokens: int) -> bool:
    """Whether a prompt of this length leaves room for a reply."""
    return prompt_tokens + reply_room(context_tokens) <= context_tokens


@dataclass(frozen=True, slots=True)
class Shortened:
    """What stays of a chat's messages.

    Attributes:
        messages: Those that stay.
        left_out: How many are left out.
        first: Where the first of these stood.
    """

    messages: tuple[ChatMessage, ...]
    left_out: int
    first: int

    def parts(self, parts: Iterable[tuple[int, PromptPart]]) -> tuple[tuple[int, PromptPart], ...]:
        """Parts of the prompt with the places that their messages had before."""
        return tuple(
            (place if place < self.first else place + self.left_out, part) for place, part in parts
        )


def whole(messages: tuple[ChatMessage, ...]) -> Shortened:
    """Nothing is left out."""
    return Shortened(messages, 0, _first_of_chat(messages))


def shortened(
    messages: tuple[ChatMessage, ...], measure: Callable[[tuple[ChatMessage, ...]], PromptSize]
) -> Shortened:
    """Leave out the oldest whole turns of a chat that does not fit.

    A turn is a person's message and what answers it. The system prompt and the last message of the
    person always stay, so the result may still be too long.

    Args:
        messages: The chat, with its system prompt if it has one.
        measure: Says how long these messages would be.
    """
    first = _first_of_chat(messages)
    left_out = 0
    while True:
        shorter = messages[:first] + messages[first + left_out :]
        size = measure(shorter)
        cut = 0
        if not has_room(size.prompt_tokens, size.context_tokens):
            cut = _oldest_turns(shorter, size)
        if not cut:
            return Shortened(shorter, left_out, first)
        left_out += cut


def _oldest_turns(messages: Sequence[ChatMessage], size: PromptSize) -> int:
    """How many of the oldest messages to leave out: generously, so that the next turns fit as well.

    A cut moves all that follows to other places, where nothing that was read can be used again.
    """
    first = _first_of_chat(messages)
    turns = [
        place for place, message in enumerate(messages) if place > first and message.role == "user"
    ]
    if not turns:
        return 0
    aim = size.context_tokens * GENEROUS_SHARE
    for place in turns:
        gain = size.message_starts[place] - size.message_starts[first]
        if size.prompt_tokens - gain <= aim:
            return place - first
    return turns[-1] - first


def _first_of_chat(messages: Sequence[ChatMessage]) -> int:
    return 1 if messages and messages[0].role == "system" else 0


def left_out_of(path: Sequence[Message]) -> int:
    """How many messages, oldest first, the model did not see when it last replied on this path."""
    for message in reversed(path):
        if message.role == "assistant" and (message.content or message.left_out):
            return message.left_out
    return 0


def left_out_mark(path: Sequence[Message]) -> MessageId | None:
    """The first message that the model still sees; None if nothing is left out."""
    left_out = left_out_of(path)
    return path[left_out].id if 0 < left_out < len(path) else None


def most_prompt_tokens(path: Sequence[Message], *, system_prompt: str, key: str) -> int:
    """A number of tokens that the prompt of this path stays below; cheap, nothing is tokenised.

    A text has at most as many tokens as bytes. From the last reply of the same model on, its own
    numbers say how long all before it is.

    Args:
        path: The chat, oldest message first.
        system_prompt: Put first; may be another than it was for earlier replies.
        key: The model's fingerprint.
    """
    total = _PREAMBLE_TOKENS + _num_bytes(system_prompt)
    for message in reversed(path):
        metrics = message.metrics
        is_whole = message.model_key == key and not message.left_out
        if message.role == "assistant" and is_whole and metrics and metrics.prompt_tokens:
            return total + metrics.prompt_tokens + metrics.completion_tokens
        total += _num_bytes(message.content) + _MARKUP_TOKENS
    return total


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
