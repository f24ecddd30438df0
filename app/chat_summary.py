"""Sums up a chat that is full, so that it can go on in a new one. Pure Python, GUI thread.

The summary is a reply that is not stored. While it is made, the text that is to be sent in the new
chat is kept here, and is never lost: it is handed on, or given back.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from app.announcer import Announcer
from app.conversation import MAX_TITLE_CHARS, Conversation, MessageId
from app.messages import (
    Command,
    Failure,
    Generate,
    PromptRead,
    ReplyEnded,
    ReplyId,
    ReplyProgressed,
    StopReply,
)
from app.session_changes import DraftReturned, SummaryEnded, SummaryProgress
from inference.config import SamplingParams
from inference.request import ChatMessage

INSTRUCTION = (
    "Sum up our chat so far, so that we can go on without it. Write at most 200 words, in the"
    " language of the chat. Keep what we found out, decided and left open, with names and numbers,"
    " and what an earlier summary says, if there is one. Write nothing but the summary."
)
MAX_SUMMARY_TOKENS = 400
NO_SUMMARY = Failure("compute", "The model wrote no summary.", "Try again, or start a new chat.")

_HEADING = "Summary of the earlier chat “"
_THOUGHTS = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Work:
    reply_id: ReplyId
    chat: Conversation
    text: str
    message_id: MessageId | None
    pieces: list[str]


class SummaryWriter:
    """At most one summary at a time.

    Args:
        post: Sends a command to the engine thread.
        announcer: Tells the listeners.
        go_on: Called with the chat that was summed up, its summary, and the text to send next.
    """

    def __init__(
        self,
        *,
        post: Callable[[Command], None],
        announcer: Announcer,
        go_on: Callable[[Conversation, str, str], None],
    ) -> None:
        self._post = post
        self._announcer = announcer
        self._go_on = go_on
        self._work: _Work | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a summary is being made."""
        return self._work is not None

    def start(
        self,
        reply_id: ReplyId,
        chat: Conversation,
        text: str,
        messages: tuple[ChatMessage, ...],
        *,
        left_out: int,
        as_plain_text: bool,
        message_id: MessageId | None = None,
    ) -> None:
        """Ask for the summary.

        Args:
            reply_id: Names the reply.
            chat: What is summed up.
            text: To be sent in the new chat.
            messages: The chat for the engine, without the instruction.
            left_out: How many messages of the chat are not among `messages`.
            as_plain_text: The model has no chat template.
            message_id: Whose editor the text comes from; None is the composer.
        """
        self._work = _Work(reply_id, chat, text, message_id, [])
        self._post(
            Generate(
                reply_id,
                chat.id,
                (*messages, ChatMessage("user", INSTRUCTION)),
                SamplingParams(temperature=0.3, max_tokens=MAX_SUMMARY_TOKENS),
                as_plain_text=as_plain_text,
                leave_out=True,
                left_out=left_out,
                keep_on_disk=False,
            )
        )
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
        self._post(StopReply(work.reply_id))
        return work.text

    def _end(self, work: _Work, event: ReplyEnded) -> None:
        self._work = None
        summary = _THOUGHTS.sub("", "".join(work.pieces)).strip()
        if event.finish_reason in ("stop", "length") and summary:
            self._announcer.notify(SummaryEnded(None))
            self._go_on(work.chat, summary, work.text)
            return
        is_stopped = event.finish_reason == "aborted"
        self._give_back(work, None if is_stopped else event.failure or NO_SUMMARY)

    def _give_back(self, work: _Work, failure: Failure | None) -> None:
        if work.text.strip():
            self._announcer.notify(DraftReturned(work.text, work.message_id))
        self._announcer.notify(SummaryEnded(failure))


def prompt_with_summary(system_prompt: str, title: str, summary: str) -> str:
    """The system prompt of the chat that goes on; a new summary takes the place of an older one."""
    own = system_prompt.partition(_HEADING)[0].strip()
    return f"{own}\n\n{_HEADING}{title}”:\n{summary}".strip()


def title_going_on(title: str) -> str:
    """The title of the chat that goes on."""
    ending = " (continued)"
    return title.removesuffix(ending)[: MAX_TITLE_CHARS - len(ending)].rstrip() + ending
