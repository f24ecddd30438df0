"""From stored messages to what the engine gets; shared by the window and `ask`. Pure Python."""

from collections.abc import Iterable, Sequence

from app.conversation import Message
from inference.request import ChatMessage

TITLE_CHARS = 40


def engine_messages(
    path: Sequence[Message], *, system_prompt: str, key: str | None
) -> tuple[ChatMessage, ...]:
    """The chat as the engine wants it.

    Replies without text are left out, and so is a question whose reply failed before its first
    word when a new one follows: else a message that was too long would fail its chat for good.

    Args:
        path: The visible chat, oldest first, ending with the message to answer.
        system_prompt: Put first; "" leaves it out.
        key: The open model's fingerprint; the ids of replies by another one are not used.
    """
    spoken = list(_without_failed_turns(path))
    messages = [
        ChatMessage(
            message.role,
            message.content,
            message.token_ids if key is not None and message.model_key == key else None,
        )
        for message in spoken
    ]
    if system_prompt.strip():
        messages.insert(0, ChatMessage("system", system_prompt))
    return tuple(messages)


def _without_failed_turns(path: Sequence[Message]) -> Iterable[Message]:
    for message, following in zip(path, [*path[1:], None], strict=True):
        if message.role == "assistant" and not message.content:
            continue
        is_unanswered = (
            message.role == "user"
            and following is not None
            and following.role == "assistant"
            and not following.content
            and following.status == "error"
        )
        if not is_unanswered:
            yield message


def title_from(text: str) -> str:
    """A chat's title from its first message: one line, cut after a word."""
    line = " ".join(text.split())
    if len(line) <= TITLE_CHARS:
        return line
    cut = line[: TITLE_CHARS + 1].rpartition(" ")[0]
    # A single long word, or a script without spaces, has no place to cut at.
    if len(cut) < TITLE_CHARS // 2:
        cut = line[:TITLE_CHARS]
    return cut.rstrip(" ,.;:-") + "…"
