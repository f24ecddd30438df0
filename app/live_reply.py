"""One reply while it is being made: gathers its text, knows when to save. Pure Python."""

from collections.abc import Sequence
from dataclasses import replace

from app.chat_prompt import ChatPrompt
from app.conversation import ChatSettings, Message, MessageId, MessageStatus
from app.messages import PromptRead, ReplyEnded, ReplyId, ReplyProgressed
from inference.metrics import RequestMetrics
from inference.request import FinishReason, PromptPart

SAVE_INTERVAL_S = 1.0

_STATUS_OF: dict[FinishReason, MessageStatus] = {
    "stop": "complete",
    "length": "length",
    "aborted": "stopped",
    "error": "error",
}


class LiveReply:
    """A reply that the engine works on, or that waits for a model.

    Attributes:
        reply_id: Its name in commands and events.
        history: The visible path before the reply, oldest first.
        settings: The chat's own settings when it was asked for.
        as_plain_text: Made without a chat template, because the person chose so.
        key: The fingerprint of the model that makes it; None while it waits for one.
        metrics: What the engine said last.
    """

    def __init__(
        self,
        reply_id: ReplyId,
        message: Message,
        *,
        history: Sequence[Message],
        settings: ChatSettings,
        as_plain_text: bool = False,
    ) -> None:
        self.reply_id = reply_id
        self.message_id = message.id
        self.conversation_id = message.conversation_id
        self.history = history
        self.settings = settings
        self.as_plain_text = as_plain_text
        self.key: str | None = None
        self._prompt: ChatPrompt | None = None
        self._has_growth = False
        self._message = message
        self._text = ""
        self._new_texts: list[str] = []
        self.metrics = RequestMetrics()
        self._unsaved_since: float | None = None

    @property
    def message(self) -> Message:
        """The message as it stands now; a new value only when something came since last time."""
        if self._has_growth:
            self._text += "".join(self._new_texts)
            self._new_texts.clear()
            self._message = replace(
                self._message,
                content=self._text,
                metrics=self.metrics,
            )
            self._has_growth = False
        return self._message

    def sent(self, prompt: ChatPrompt, key: str) -> None:
        """The engine was asked for it with this prompt; `key` is the model's fingerprint."""
        self.key = key
        self._prompt = prompt

    def read(self, event: PromptRead) -> dict[MessageId, PromptPart]:
        """Note what was left out; gives the ids to keep, by message."""
        prompt = self._prompt
        assert prompt is not None, "only what was sent is read"
        left_out = prompt.left_out_with(event.left_out - prompt.left_out)
        self._message = replace(self.message, left_out=left_out)
        return prompt.parts_of(event.parts)

    def grow(self, event: ReplyProgressed, now: float) -> None:
        """Take what one step brought; `now` in seconds."""
        self.metrics = event.metrics
        self._new_texts.append(event.text)
        self._has_growth = True
        if event.text and self._unsaved_since is None:
            self._unsaved_since = now

    def take_due(self, now: float) -> bool:
        """Whether text has waited long enough to be stored; the wait begins anew then."""
        if self._unsaved_since is None or now - self._unsaved_since < SAVE_INTERVAL_S:
            return False
        self._unsaved_since = None
        return True

    def ended(self, event: ReplyEnded) -> Message:
        """The message in its final form."""
        failure = event.failure
        return replace(
            self.message,
            status=_STATUS_OF[event.finish_reason],
            token_ids=event.reply_token_ids,
            model_key=None if event.reply_token_ids is None else self.key,
            metrics=event.metrics,
            error=None if failure is None else f"{failure.message} {failure.hint}".strip(),
            failure_kind=None if failure is None else failure.kind,
        )
