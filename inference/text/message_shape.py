"""Brings a conversation into the shape that a model's template takes. Pure Python; any thread."""

from collections.abc import Sequence
from dataclasses import dataclass

from inference.request import ChatMessage

_BLANK_LINE = "\n\n"


@dataclass(frozen=True, slots=True)
class MessageShape:
    """What a template accepts and shows.

    Attributes:
        takes_system: A system message at the beginning.
        takes_late_system: System messages later on.
        takes_repeats: Two turns of one role in a row.
        takes_assistant_first: A conversation that the assistant begins.
        as_parts: Contents must be lists of parts instead of text.
    """

    takes_system: bool = True
    takes_late_system: bool = True
    takes_repeats: bool = True
    takes_assistant_first: bool = True
    as_parts: bool = False

    @classmethod
    def strictest(cls, as_parts: bool) -> "MessageShape":
        """The shape that every template takes: user, assistant, user, ..."""
        return cls(False, False, False, False, as_parts)


def shape_messages(messages: Sequence[ChatMessage], shape: MessageShape) -> list[ChatMessage]:
    """Merge messages until they have the shape; nothing that was said is lost.

    System texts that the template does not take go to the head of the user message that follows.
    Turns of one role are joined with a blank line; a joined message has no token ids. A blank user
    message goes before an assistant that may not begin.
    """
    shaped: list[ChatMessage] = []
    pending: list[str] = []  # system texts on their way to the next user message
    for index, message in enumerate(messages):
        taken = shape.takes_system if index == 0 else shape.takes_late_system
        if message.role == "system" and not taken:
            pending.append(message.content)
            continue
        if pending and message.role == "user":
            content = _BLANK_LINE.join([*pending, message.content])
            message = ChatMessage("user", content)
            pending.clear()
        elif pending:
            _append(shaped, ChatMessage("user", _BLANK_LINE.join(pending)), shape)
            pending.clear()
        _append(shaped, message, shape)
    if pending:
        _append(shaped, ChatMessage("user", _BLANK_LINE.join(pending)), shape)
    return shaped


def _append(shaped: list[ChatMessage], message: ChatMessage, shape: MessageShape) -> None:
    before = shaped[-1] if shaped else None
    if before and before.role == message.role and not shape.takes_repeats:
        content = _BLANK_LINE.join([before.content, message.content])
        shaped[-1] = ChatMessage(message.role, content)
        return
    is_first = before is None or before.role == "system"
    if message.role == "assistant" and is_first and not shape.takes_assistant_first:
        shaped.append(ChatMessage("user", ""))
    shaped.append(message)
