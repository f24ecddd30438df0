"""Chats for the measurements: real turns through the engine's own face, ids kept as the app keeps them."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from inference.config import SamplingParams
from inference.engine import Engine
from inference.metrics import RequestMetrics
from inference.request import ChatMessage

ROOT = Path(__file__).parents[2]
TEXTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")


def long_text(num_chars: int) -> str:
    """Prose of this repository, repeated with numbers until it is long enough."""
    text = "\n\n".join((ROOT / name).read_text(encoding="utf-8") for name in TEXTS)
    parts = [text]
    while sum(map(len, parts)) < num_chars:
        parts.append(f"Part {len(parts) + 1}.\n\n{text}")
    return "".join(parts)[:num_chars]


@dataclass
class Chat:
    """One chat as the app would hold it.

    Attributes:
        name: The conversation id.
        messages: All that was said.
        metrics: Of the last reply.
        reply_ids: Of the last reply.
    """

    name: str
    messages: list[ChatMessage] = field(default_factory=list)
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    reply_ids: tuple[int, ...] = ()

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All that the model has read and written of this chat, as it was told after each reply."""
        ids: list[int] = []
        for message in self.messages:
            ids += message.part.token_ids if message.part is not None else message.token_ids or ()
        return tuple(ids)

    def say(self, engine: Engine, text: str, *, max_tokens: int, keep: bool = True) -> None:
        """One turn: a message and a greedy reply of exactly so many tokens at the most."""
        self.messages.append(ChatMessage("user", text))
        self.reply(engine, max_tokens=max_tokens, keep=keep)

    def reply(self, engine: Engine, *, max_tokens: int, keep: bool = True) -> None:
        """Answer what was said last."""
        messages = list(self.messages)
        shown: list[str] = []
        for output in engine.generate(
            conversation_id=self.name,
            messages=tuple(messages),
            params=SamplingParams(temperature=0.0, max_tokens=max_tokens),
            keep_on_disk=keep,
        ):
            shown.append(output.text)
            for index, part in output.prompt_parts:
                messages[index] = replace(messages[index], part=part)
            if output.finish_reason is not None:
                self.metrics, self.reply_ids = output.metrics, output.reply_token_ids or ()
        self.messages = [*messages, ChatMessage("assistant", "".join(shown), self.reply_ids)]
