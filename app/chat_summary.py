"""Sums up a chat that is full, so that it can go on in a new one. Pure Python, GUI thread.

The summary is a reply that is not stored. While it is made, the text that is to be sent in the new
chat is kept here, and is never lost: it is handed on, or given back.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from app.announcer import Announcer
from app.context_room import reply_room
from app.conversation import MAX_TITLE_CHARS, Conversation, MessageId
from app.messages import (
    Command,
    Failure,
    Generate,
    MeasurePrompt,
    PromptMeasured,
    PromptRead,
    ReplyEnded,
    ReplyId,
    ReplyProgressed,
    StopReply,
)
from app.session_changes import DraftReturned, SummaryEnded, SummaryProgress
from app.texts import is_blank
from inference.config import SamplingParams
from inference.request import ChatMessage
from inference.text.markup_names import without_thoughts

MAX_SUMMARY_TOKENS = 400
MIN_SUMMARY_TOKENS = 32
_SHARE = 4  # at most one in so many tokens of the context, so that the new chat is not full soon
_TOKENS_PER_WORD = 2
_SEAM_TOKENS = 8  # a text has other tokens when it is read than when it was written
NO_SUMMARY = Failure("compute", "The model wrote no summary.", "Try again, or start a new chat.")
NO_ROOM = Failure(
    "context_full",
    "This message and a summary do not fit together into a new chat.",
    "Shorten the message, or start a new chat without a summary.",
)

_HEADING = "Summary of the earlier chat “"


@dataclass(frozen=True, slots=True)
class SummaryTask:
    """What is to be summed up, and what for.

    Attributes:
        chat: What is summed up.
        text: To be sent in the new chat.
        message_id: Whose editor the text comes from; None is the composer.
        messages: The chat for the engine, without the instruction.
        left_out: How many messages of the chat are not among `messages`.
        as_plain_text: The model has no chat template.
        sequel: The prompt of the new chat when its summary is this one.
    """

    chat: Conversation
    text: str
    message_id: MessageId | None
    messages: tuple[ChatMessage, ...]
    left_out: int
    as_plain_text: bool
    sequel: Callable[[str], tuple[ChatMessage, ...]]


@dataclass(slots=True)
class _Work:
    """A task that goes on.

    Attributes:
        measure_id: Of the length that is waited for: of the new chat without a summary at first, with
            it at the end; None while the summary is written.
        pieces: What is written of it.
    """

    reply_id: ReplyId
    task: SummaryTask
    measure_id: int | None = None
    pieces: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """The text, without the model's thoughts."""
        return without_thoughts("".join(self.pieces)).strip()


class SummaryWriter:
    """At most one summary at a time, and none that leaves no room for the text that is to follow it.

    Args:
        post: Sends a command to the engine thread.
        announcer: Tells the listeners.
        measure_ids: Names for questions to the engine that nobody else uses.
        go_on: Called with the task and its summary.
    """

    def __init__(
        self,
        *,
        post: Callable[[Command], None],
        announcer: Announcer,
        measure_ids: Iterator[int],
        go_on: Callable[[SummaryTask, str], None],
    ) -> None:
        self._post = post
        self._announcer = announcer
        self._measure_ids = measure_ids
        self._go_on = go_on
        self._work: _Work | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a summary is being made."""
        return self._work is not None

    @property
    def held_text(self) -> str:
        """What is to be said after the summary in the making; "" if there is none."""
        return "" if self._work is None else self._work.task.text

    def start(self, reply_id: ReplyId, task: SummaryTask) -> None:
        """Make a summary; the engine's name for it is `reply_id`."""
        self._work = _Work(reply_id, task)
        self._measure(self._work)
        self._announcer.notify(SummaryProgress(0))

    def handle(self, event: PromptRead | ReplyProgressed | ReplyEnded) -> bool:
        """Take an event if it is about the summary; gives whether it was."""
        work = self._work
        if work is None or event.reply_id != work.reply_id:
            return False
        if isinstance(event, ReplyEnded):
            self._end(work, event)
        elif isinstance(event, ReplyProgressed) and event.text:
            work.pieces.append(event.text)
            self._announcer.notify(SummaryProgress(sum(map(len, work.pieces))))
        return True

    def measured(self, event: PromptMeasured) -> bool:
        """Take the length of the new chat if it is that; gives whether it was."""
        work = self._work
        if work is None or event.measure_id != work.measure_id:
            return False
        work.measure_id = None
        if not work.pieces:
            self._write(work, summary_tokens(event))
        elif event.fits:
            self._work = None
            self._announcer.notify(SummaryEnded(None))
            self._go_on(work.task, work.summary)
        else:
            self._give_back(work, NO_ROOM)
        return True

    def forget_model(self) -> None:
        """The model is another: what was to be measured is not worth waiting for."""
        if self._work is not None and self._work.measure_id is not None:
            self.cancel()

    def cancel(self) -> None:
        """End the summary; the text goes back to the person."""
        work = self._work
        if work is not None:
            self.let_go()
            self._give_back(work, None)

    def let_go(self) -> str | None:
        """End the summary without a word; gives its text, or None if none was in the making."""
        work, self._work = self._work, None
        if work is None:
            return None
        if work.measure_id is None:
            self._post(StopReply(work.reply_id))
        return work.task.text

    def _measure(self, work: _Work) -> None:
        work.measure_id = next(self._measure_ids)
        messages = work.task.sequel(work.summary)
        self._post(MeasurePrompt(work.measure_id, messages, work.task.as_plain_text))

    def _write(self, work: _Work, max_tokens: int) -> None:
        """Ask for a summary of this length, if it is worth having."""
        if max_tokens < MIN_SUMMARY_TOKENS:
            self._give_back(work, NO_ROOM)
            return
        task = work.task
        self._post(
            Generate(
                work.reply_id,
                task.chat.id,
                (*task.messages, ChatMessage("user", instruction(max_tokens))),
                SamplingParams(temperature=0.3, max_tokens=max_tokens),
                as_plain_text=task.as_plain_text,
                leave_out=True,
                left_out=task.left_out,
                keep_on_disk=False,
            )
        )

    def _end(self, work: _Work, event: ReplyEnded) -> None:
        if event.finish_reason in ("stop", "length") and work.summary:
            self._measure(work)
            return
        is_stopped = event.finish_reason == "aborted"
        self._give_back(work, None if is_stopped else event.failure or NO_SUMMARY)

    def _give_back(self, work: _Work, failure: Failure | None) -> None:
        self._work = None
        task = work.task
        if not is_blank(task.text):
            self._announcer.notify(DraftReturned(task.text, task.message_id))
        self._announcer.notify(SummaryEnded(failure))


def summary_tokens(without: PromptMeasured) -> int:
    """How long a summary may be.

    Args:
        without: Says how long the new chat is without it.
    """
    if not without.prompt_tokens:
        return MAX_SUMMARY_TOKENS  # unknown; sending says what is wrong
    context = without.context_tokens
    room = context - reply_room(context) - without.prompt_tokens - _SEAM_TOKENS
    return min(MAX_SUMMARY_TOKENS, max(MIN_SUMMARY_TOKENS, context // _SHARE), room)


def instruction(max_tokens: int) -> str:
    """What the model is told, so that its summary has no more tokens than these."""
    return (
        f"Sum up our chat so far, so that we can go on without it. Write at most"
        f" {max_tokens // _TOKENS_PER_WORD} words, in the language of the chat. Keep what we found"
        " out, decided and left open, with names and numbers, and what an earlier summary says, if"
        " there is one. Write nothing but the summary."
    )


def prompt_with_summary(system_prompt: str, title: str, summary: str) -> str:
    """The system prompt of the chat that goes on; a new summary takes the place of an older one."""
    own = system_prompt.partition(_HEADING)[0].strip()
    return f"{own}\n\n{_HEADING}{title}”:\n{summary}".strip()


def title_going_on(title: str) -> str:
    """The title of the chat that goes on."""
    ending = " (continued)"
    return title.removesuffix(ending)[: MAX_TITLE_CHARS - len(ending)].rstrip() + ending
