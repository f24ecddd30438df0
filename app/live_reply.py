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
        variant: Its number among the replies to one question, from 0; of one asked for alone it is 0.
        key: The fingerprint of the model that makes it; None while it waits for one.
        metrics: What the engine said last.
        has_begun: Whether the engine has said anything of it.
    """

    def __init__(
        self,
        reply_id: ReplyId,
        message: Message,
        *,
        history: Sequence[Message],
        settings: ChatSettings,
        as_plain_text: bool = False,
        variant: int = 0,
    ) -> None:
        self.reply_id = reply_id
        self.message_id = message.id
        self.conversation_id = message.conversation_id
        self.history = history
        self.settings = settings
        self.as_plain_text = as_plain_text
        self.variant = variant
        self.key: str | None = None
        self._prompt: ChatPrompt | None = None
        self._has_growth = False
        self._message = message
        self._text = ""
        self._new_texts: list[str] = []
        self._token_ids: list[int] = []
        self._num_exact = (
            0  # so many of these ids say exactly the text; 0 if no number of them does
        )
        self.metrics = RequestMetrics()
        self.has_begun = False
        self._heard_at = 0.0
        self._unsaved_since: float | None = None
        self._save_interval_s = 0.0  # the first text does not wait

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

    @property
    def is_reading(self) -> bool:
        """Whether the model reads its prompt now."""
        return self.has_begun and not self._token_ids

    def is_silent(self, now: float, for_s: float) -> bool:
        """Whether the engine was asked for it and has said nothing of it for so long."""
        return self.key is not None and now - self._heard_at >= for_s

    def sent(self, prompt: ChatPrompt, key: str, now: float = 0.0) -> None:
        """The engine was asked for it with this prompt; `key` is the model's fingerprint.

        `now`, in seconds, matters only to `is_silent`.
        """
        self.key = key
        self._prompt = prompt
        self._heard_at = now

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
        self.has_begun = True
        self._heard_at = now
        self._new_texts.append(event.text)
        self._token_ids += event.token_ids
        if event.is_all_shown:
            self._num_exact = len(self._token_ids)
        elif event.text:
            self._num_exact = 0
        self._has_growth = True
        if event.text and self._unsaved_since is None:
            self._unsaved_since = now

    def due(self, now: float) -> Message | None:
        """What is to be stored of it now; None if nothing has waited long enough. `now` in seconds.

        The first text is stored at once, so that a program that is killed never loses all of it. While
        no ids say exactly the text, because something is held back, a little longer is waited.
        """
        if self._unsaved_since is None:
            return None
        wait_s = self._save_interval_s * (1 if self._num_exact else 2)
        if 0 <= now - self._unsaved_since < wait_s:  # a clock that was set back ends the wait
            return None
        self._unsaved_since = None
        self._save_interval_s = SAVE_INTERVAL_S
        token_ids = self._known_ids
        key = None if token_ids is None else self.key
        return replace(self.message, token_ids=token_ids, model_key=key)

    @property
    def lacks_ids(self) -> bool:
        """Whether it has text, and only the engine could say which ids are exactly that text."""
        return self._known_ids is None and bool(self.message.content)

    def knows_better(self, message: Message) -> None:
        """Something before the reply has its final form by now; to be called before it is sent."""
        self.history = [message if known.id == message.id else known for known in self.history]

    def ended(self, event: ReplyEnded) -> Message:
        """The message in its final form."""
        failure = event.failure
        token_ids = event.reply_token_ids
        if token_ids is None:
            token_ids = self._known_ids
        return replace(
            self.message,
            status=_STATUS_OF[event.finish_reason],
            token_ids=token_ids,
            model_key=None if token_ids is None else self.key,
            metrics=event.metrics,
            error=None if failure is None else f"{failure.message} {failure.hint}".strip(),
            failure_kind=None if failure is None else failure.kind,
        )

    @property
    def _known_ids(self) -> tuple[int, ...] | None:
        """The ids that say exactly the text so far; None if there are none."""
        return tuple(self._token_ids[: self._num_exact]) if self._num_exact else None
