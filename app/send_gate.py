"""Is there room for what is to be sent? Asks the engine and holds a text until it has answered.

Pure Python, GUI thread. A text that is held is never lost: it is sent, or given back.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from app.announcer import Announcer
from app.conversation import MessageId, OnFull
from app.messages import Command, MeasurePrompt, PromptMeasured
from app.session_changes import ChatIsFull, DraftMeasured, DraftReturned
from inference.request import ChatMessage


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt whose length is asked for.

    Attributes:
        shortest: What of the messages could not be left out; () if that surely fits, or is all of them.
    """

    messages: tuple[ChatMessage, ...]
    as_plain_text: bool
    shortest: tuple[ChatMessage, ...] = ()

    @property
    def is_alone(self) -> bool:
        """Whether it has one message only, besides a system prompt."""
        return sum(message.role != "system" for message in self.messages) == 1


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Whether a prompt fits.

    Attributes:
        prompt_tokens: Of the whole prompt, or of the last message with the system prompt if `is_alone`.
        is_alone: Whether leaving out what is before the last message would not help, or there is nothing.
    """

    prompt_tokens: int
    context_tokens: int
    fits: bool
    is_alone: bool


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question that is on its way.

    Attributes:
        whole: The answer for all of it, while what cannot be left out is measured.
    """

    question: Question
    whole: PromptMeasured | None = None

    def verdict(self, event: PromptMeasured) -> _Verdict:
        """What the last answer says."""
        whole, is_alone = event, self.question.is_alone
        if self.whole is not None:
            is_alone = not event.fits
            whole = event if is_alone else self.whole
        return _Verdict(whole.prompt_tokens, whole.context_tokens, whole.fits, is_alone)


@dataclass(frozen=True, slots=True)
class Held:
    """Something to send, once it is known that there is room.

    Attributes:
        text: What a person wrote; "" if it is stored already.
        send: Sends it; gives whether that was possible.
        choice: What was chosen for the chat.
        instead: What to do when there is no room, gives whether the text was taken; None says that
            the chat is full.
        message_id: What is edited, or answered again; None is a new message.
        num_replies: How many replies are asked for at once.
    """

    text: str
    send: Callable[[], bool]
    choice: OnFull
    instead: Callable[[], bool] | None = None
    message_id: MessageId | None = None
    num_replies: int = 1


class SendGate:
    """Lets through what has room.

    Args:
        post: Sends a command to the engine thread.
        announcer: Tells the listeners.
        measure_ids: Names for questions to the engine that nobody else uses.
    """

    def __init__(
        self,
        *,
        post: Callable[[Command], None],
        announcer: Announcer,
        measure_ids: Iterator[int],
    ) -> None:
        self._post = post
        self._announcer = announcer
        self._ids = measure_ids
        self._asked: dict[int, _Asked] = {}
        self._newest: tuple[Question, _Verdict] | None = None
        self._draft: Question | None = None
        self._held: tuple[Question, Held] | None = None

    @property
    def is_holding(self) -> bool:
        """Whether something waits for the engine's answer."""
        return self._held is not None

    @property
    def held_text(self) -> str:
        """What of a person's text waits for the engine's answer; "" if nothing does."""
        return "" if self._held is None else self._held[1].text

    def measure_draft(self, question: Question) -> None:
        """Have DraftMeasured announced for this prompt; an older one is of no interest any more."""
        self._draft = question
        known = self._known(question)
        if known is None:
            self._ask(question)
        else:
            self._tell_draft(known)

    def forget_draft(self) -> None:
        """Nobody waits for the length of the draft any more."""
        self._draft = None

    def pass_through(self, question: Question, held: Held) -> bool:
        """Send now, refuse now, or hold until it is known.

        Returns:
            Whether the text was taken; if not, the caller keeps it.
        """
        known = self._known(question)
        if known is None:
            self._held = (question, held)
            self._ask(question)
            return True
        if known.fits:
            return held.send()
        return self._do_instead(held, known) or self._tell_full(held, known)

    def take(self, event: PromptMeasured) -> None:
        """Take the engine's answer."""
        asked = self._asked.pop(event.measure_id, None)
        if asked is None:
            return  # asked of another model
        question = asked.question
        if asked.whole is None and question.shortest and not event.fits:
            self._post_question(_Asked(question, event), question.shortest)
            return
        verdict = asked.verdict(event)
        self._newest = (question, verdict)
        if question == self._draft:
            self._tell_draft(verdict)
        if self._held is not None and question == self._held[0]:
            self._decide(self._held[1], verdict)

    def give_back(self) -> None:
        """Do not send what is held: its text goes back to the person."""
        held = self._let_go()
        if held is not None:
            self._return(held)

    def release(self) -> None:
        """Send what is held without waiting for the answer."""
        held = self._let_go()
        if held is not None:
            self._send(held)

    def forget_model(self) -> None:
        """The model is another: what was measured holds no more, what is held need not wait."""
        self._asked.clear()
        self._newest = None
        self._draft = None
        self.release()

    def _known(self, question: Question) -> _Verdict | None:
        if self._newest is not None and self._newest[0] == question:
            return self._newest[1]
        return None

    def _ask(self, question: Question) -> None:
        if all(asked.question != question for asked in self._asked.values()):
            self._post_question(_Asked(question), question.messages)

    def _post_question(self, asked: _Asked, messages: tuple[ChatMessage, ...]) -> None:
        measure_id = next(self._ids)
        self._asked[measure_id] = asked
        self._post(MeasurePrompt(measure_id, messages, asked.question.as_plain_text))

    def _decide(self, held: Held, verdict: _Verdict) -> None:
        self._held = None
        if verdict.fits:
            self._send(held)
        elif not self._do_instead(held, verdict):
            self._return(held)
            self._tell_full(held, verdict)

    def _send(self, held: Held) -> None:
        if not held.send():
            self._return(held)

    def _do_instead(self, held: Held, verdict: _Verdict) -> bool:
        # What is too long alone is so in every chat.
        return held.instead is not None and not verdict.is_alone and held.instead()

    def _return(self, held: Held) -> None:
        if held.text:
            self._announcer.notify(DraftReturned(held.text, held.message_id))

    def _tell_full(self, held: Held, verdict: _Verdict) -> bool:
        self._announcer.notify(
            ChatIsFull(
                verdict.prompt_tokens,
                verdict.context_tokens,
                held.choice,
                held.text,
                held.message_id,
                verdict.is_alone,
                held.num_replies,
            )
        )
        return False

    def _let_go(self) -> Held | None:
        held, self._held = self._held, None
        return None if held is None else held[1]

    def _tell_draft(self, verdict: _Verdict) -> None:
        if verdict.prompt_tokens:
            self._announcer.notify(
                DraftMeasured(
                    verdict.prompt_tokens, verdict.context_tokens, verdict.fits, verdict.is_alone
                )
            )
