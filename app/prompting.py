"""From stored messages to what the engine gets; shared by the window and `ask`. Pure Python."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.conversation import Message
from app.texts import as_line, without_directions
from inference.request import ChatMessage

TITLE_CHARS = 40


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """One message of a prompt, and where it comes from.

    Attributes:
        chat: As the engine gets it.
        source: The stored message; None for the system prompt.
    """

    chat: ChatMessage
    source: Message | None


def prompt_messages(
    path: Sequence[Message], *, system_prompt: str, key: str | None, left_out: int = 0
) -> tuple[PromptMessage, ...]:
    """The chat as the engine wants it; the engine's events name messages by their index in it.

    Replies without text are left out, and so is a question whose reply failed before its first
    word when a new one follows: else a message that was too long would fail its chat for good.

    Args:
        path: The visible chat, oldest first, ending with the message to answer.
        system_prompt: Put first; "" leaves it out.
        key: The open model's fingerprint; the ids that another one made are not used.
        left_out: How many messages of the path, oldest first, the model is not to see.
    """
    messages = [
        PromptMessage(_as_chat(message, key), message)
        for message in _without_failed_turns(path[left_out:])
    ]
    if system_prompt.strip():
        messages.insert(0, PromptMessage(ChatMessage("system", system_prompt), None))
    return tuple(messages)


def _as_chat(message: Message, key: str | None) -> ChatMessage:
    if key is None or message.model_key != key:
        return ChatMessage(message.role, message.content)
    return ChatMessage(message.role, message.content, message.token_ids, message.part)


def _without_failed_turns(path: Sequence[Message]) -> Iterable[Message]:
    for message, following in zip(path, [*path[1:], None], strict=True):
        if message.role == "assistant" and not message.content:
            continue
        if following is None or not has_failed_at_once(message, following):
            yield message


def has_failed_at_once(question: Message, reply: Message) -> bool:
    """Whether a question is left out when another follows: its reply failed before the first word."""
    return (
        question.role == "user"
        and reply.role == "assistant"
        and not reply.content
        and reply.status == "error"
    )


def title_from(text: str) -> str:
    """A chat's title from its first message: one line, cut after a word.

    Signs that turn the direction of writing would turn what stands beside the title, too.
    """
    line = as_line(without_directions(text))
    if len(line) <= TITLE_CHARS:
        return line
    cut = line[: TITLE_CHARS + 1].rpartition(" ")[0]
    # A single long word, or a script without spaces, has no place to cut at.
    if len(cut) < TITLE_CHARS // 2:
        cut = line[:TITLE_CHARS]
    return cut.rstrip(" ,.;:-") + "…"
