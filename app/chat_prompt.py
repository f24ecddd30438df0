"""One chat as the engine gets it, and what comes back about it. Pure Python; any thread."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.context_room import has_room, left_out_of, most_prompt_tokens
from app.conversation import ChatSettings, Message, MessageId
from app.prompting import prompt_messages
from app.settings import Settings
from inference.metrics import ModelInfo
from inference.request import ChatMessage, PromptPart


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the engine, and where each comes from.

    Attributes:
        path: The chat that it was made of, oldest message first.
        messages: For the engine, the system prompt first if there is one.
        sources: Per message of `messages`, the stored one; None for the system prompt.
        leave_out: Whether more may be left out if it does not fit.
        left_out: How many messages of the path, oldest first, are not among `messages`.
    """

    path: tuple[Message, ...]
    messages: tuple[ChatMessage, ...]
    sources: tuple[Message | None, ...]
    leave_out: bool
    left_out: int

    def left_out_with(self, more: int) -> int:
        """How many messages of the path are left out when so many of `messages` go as well."""
        if not more:
            return self.left_out
        first_seen = [source for source in self.sources if source is not None][more]
        return next(place for place, it in enumerate(self.path) if it.id == first_seen.id)

    def parts_of(self, parts: Iterable[tuple[int, PromptPart]]) -> dict[MessageId, PromptPart]:
        """The parts by the stored message that each is kept beside."""
        found: dict[MessageId, PromptPart] = {}
        for place, part in parts:
            source = self.sources[place] if place < len(self.sources) else None
            if source is not None:
                found[source.id] = part
        return found


def system_prompt_of(settings: ChatSettings, general: Settings) -> str:
    """The system prompt in force for a chat."""
    return settings.system_prompt or general.system_prompt


def chat_prompt(
    path: Sequence[Message], *, settings: ChatSettings, general: Settings, info: ModelInfo
) -> ChatPrompt:
    """Make the prompt of a chat.

    What was left out before stays left out, so that what was read can be used again, unless all of
    it fits by now.

    Args:
        path: The chat, oldest message first.
        settings: The chat's own.
        general: For what it has no own of.
        info: The open model.
    """
    leave_out = settings.on_full == "leave_out"
    left_out = left_out_of(path) if leave_out else 0
    if left_out and surely_fits(path, settings=settings, general=general, info=info):
        left_out = 0
    messages = prompt_messages(
        path,
        system_prompt=system_prompt_of(settings, general),
        key=info.fingerprint,
        left_out=left_out,
    )
    return ChatPrompt(
        tuple(path),
        tuple(message.chat for message in messages),
        tuple(message.source for message in messages),
        leave_out,
        left_out,
    )


def surely_fits(
    path: Sequence[Message], *, settings: ChatSettings, general: Settings, info: ModelInfo
) -> bool:
    """Whether all of a chat fits, and needs not be measured; the arguments are as above."""
    most = most_prompt_tokens(
        path, system_prompt=system_prompt_of(settings, general), key=info.fingerprint
    )
    return has_room(most, info.context_tokens)
