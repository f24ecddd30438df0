"""Chats of tiny models, turn by turn, as the app holds them."""

from dataclasses import dataclass, field, replace

from inference.config import SamplingParams
from inference.engine import Engine
from inference.metrics import RequestMetrics
from inference.request import ChatMessage, PromptPart

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@dataclass
class Talk:
    """One chat.

    Attributes:
        name: The conversation id.
        messages: All that was said, replies with their ids.
        metrics: Of the last reply.
    """

    name: str
    messages: list[ChatMessage] = field(default_factory=list)
    metrics: RequestMetrics = field(default_factory=RequestMetrics)

    def say(self, engine: Engine, text: str, *, params: SamplingParams = GREEDY) -> str:
        """Say something and get the reply's text."""
        self.messages.append(ChatMessage("user", text))
        return self.answer(engine, params=params)

    def answer(self, engine: Engine, *, params: SamplingParams = GREEDY) -> str:
        """Get a reply to what was said last."""
        parts: dict[int, PromptPart] = {}
        text = ""
        ids: tuple[int, ...] = ()
        for output in engine.generate(
            conversation_id=self.name, messages=tuple(self.messages), params=params
        ):
            parts.update(output.prompt_parts)
            text += output.text
            if output.finish_reason is not None:
                assert output.error is None
                self.metrics, ids = output.metrics, output.reply_token_ids or ()
        for index, part in parts.items():
            self.messages[index] = replace(self.messages[index], part=part)
        self.messages.append(ChatMessage("assistant", text, ids))
        return text

    def again(self, engine: Engine) -> str:
        """Another reply in place of the last one."""
        self.messages.pop()
        return self.answer(engine)

    def copy(self) -> "Talk":
        """The same chat, to be continued in another way."""
        return Talk(self.name, list(self.messages), self.metrics)

    @property
    def computed(self) -> int:
        """Tokens of the last prompt that had to be computed."""
        return self.metrics.prompt_tokens - self.metrics.reused_tokens
