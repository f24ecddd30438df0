"""Sends what a person says in the chat that is shown, if there is room for it. Pure Python, GUI thread.

The person's text is never lost: it is stored, or held until it is known whether it fits, or kept
while the chat is summed up; what is not sent after all is given back.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

from app.chat_prompt import ChatPrompt, chat_prompt, surely_fits, system_prompt_of
from app.chat_summary import SummaryTask, SummaryWriter, prompt_with_summary, title_going_on
from app.conversation import Conversation, ConversationId, Message, MessageId
from app.failures import NO_MODEL
from app.messages import PromptMeasured
from app.reply_desk import ReplyEvent
from app.reply_variants import why_alike
from app.send_gate import Held, Question, SendGate
from app.session_changes import DraftMeasured, DraftReturned, RepliesAlike, SummaryEnded
from app.shown_chat import ShownChat
from app.surroundings import Surroundings
from app.texts import is_blank, storable
from inference.metrics import ModelInfo
from inference.request import ChatMessage


class Sending:
    """What is on its way into the shown chat.

    Args:
        shown: The chat.
        around: What the session works with.
    """

    def __init__(self, shown: ShownChat, around: Surroundings) -> None:
        self._shown = shown
        self._settings = around.settings
        self._models = around.models
        self._announcer = announcer = around.announcer
        self._clock = around.clock
        self._measured_model: ModelInfo | None = None
        measure_ids = itertools.count(1)
        self._gate = SendGate(post=around.post, announcer=announcer, measure_ids=measure_ids)
        self._summary = SummaryWriter(
            post=around.post, announcer=announcer, measure_ids=measure_ids, go_on=self._go_on
        )

    @property
    def is_busy(self) -> bool:
        """Whether something is held, or the chat is being summed up: then nothing else is taken."""
        return self._gate.is_holding or self._summary.is_writing

    @property
    def is_summarising(self) -> bool:
        """Whether the chat is being summed up."""
        return self._summary.is_writing

    @property
    def text_on_its_way(self) -> str:
        """What was taken and is neither stored nor given back yet; "" for nothing."""
        return self._gate.held_text or self._summary.held_text

    # ------------------------------------------------------------------ what a person does

    def measure_draft(self, text: str) -> None:
        """Have DraftMeasured announced for the chat with this text; it may be empty."""
        info = self._models.state.info
        shown = self._shown
        path = self._path_with(text, shown.leaf_id) if not is_blank(text) else shown.path()
        if info is not None and path:
            self._gate.measure_draft(self._question(path, info))
        elif info is not None:
            self._announcer.notify(DraftMeasured(0, info.context_tokens, fits=True))

    def send(self, text: str) -> bool:
        """Say something at the end of the path; gives whether the text was taken."""
        if is_blank(text) or self.is_busy:
            return False
        shown = self._shown
        shown.catch_up()
        can_go_on = shown.settings.on_full == "new_chat" and bool(shown.path())
        return self._let_through(
            self._path_with(text, shown.leaf_id),
            text,
            send=lambda: shown.say(text, shown.leaf_id),
            instead=(lambda: self.continue_in_new_chat(text)) if can_go_on else None,
        )

    def edit(self, message_id: MessageId, text: str) -> bool:
        """Say something else in place of an own message; gives whether the text was taken."""
        message = self._shown.message(message_id)
        if message is None or message.role != "user" or is_blank(text) or self.is_busy:
            return False
        return self._let_through(
            self._path_with(text, message.parent_id),
            text,
            send=lambda: self._shown.say_instead(message, text),
            message_id=message_id,
        )

    def regenerate(self, message_id: MessageId, num_replies: int = 1) -> None:
        """Ask for other versions of a reply, or for replies that a question lacks."""
        message = self._shown.message(message_id)
        if message is None or self.is_busy:
            return
        question_id = message.id if message.role == "user" else message.parent_id
        if question_id is not None:
            num_useful = self._num_useful(num_replies)
            self._let_through(
                self._shown.path_to(question_id),
                "",
                send=lambda: self._shown.answer_again(question_id, num_useful),
                message_id=message_id,
                num_replies=num_useful,
            )

    def why_alike(self) -> str:
        """Why all replies in the shown chat would be the same; "" if they would differ."""
        return why_alike(self._shown.settings.sampling or self._settings.value.sampling)

    def continue_in_new_chat(self, text: str, message_id: MessageId | None = None) -> bool:
        """Sum up the chat and send `text` in a new one; gives whether the text was taken."""
        chat, model = self._shown.conversation, self._models.state
        path = self._answered_path()
        if chat is None or not path or self.is_busy:
            return False
        if model.info is None:
            self._announcer.notify(SummaryEnded(model.failure or NO_MODEL))
            return False
        self._shown.interrupt()
        prompt = chat_prompt(
            path,
            settings=replace(chat.settings, on_full="leave_out"),
            general=self._settings.value,
            info=model.info,
        )
        as_plain_text = self._as_plain_text(model.info)
        self._summary.start(
            self._shown.desk.next_id(),
            SummaryTask(
                chat,
                text,
                message_id,
                prompt.messages,
                prompt.left_out,
                as_plain_text,
                lambda summary: (
                    ChatMessage("system", self._prompt_of_sequel(chat, summary)),
                    ChatMessage("user", storable(text)),
                ),
            ),
        )
        return True

    def cancel(self) -> None:
        """What was to come and has not begun does not come; its text goes back to the person."""
        self._gate.give_back()
        self._summary.cancel()

    def leave(self) -> None:
        """Another chat is about to be shown."""
        self.cancel()
        self._gate.forget_draft()

    def close(self) -> None:
        """Store what is on its way, since nobody is there to take it back."""
        self._gate.release()
        text = self._summary.let_go()
        if text and not is_blank(text):
            self._shown.say(text, self._shown.leaf_id)

    # ------------------------------------------------------------------ what the engine says

    def model_changed(self) -> None:
        """What was measured holds for one model only; without a model nothing is held."""
        info = self._models.state.info
        if info is not self._measured_model:
            self._measured_model = info
            self._gate.forget_model()
            self._summary.forget_model()

    def measured(self, event: PromptMeasured) -> None:
        """Take the answer of the engine."""
        if not self._summary.measured(event):
            self._gate.take(event)

    def handle_summary(self, event: ReplyEvent) -> bool:
        """Take an event about the summary; gives whether it was one."""
        return self._summary.handle(event)

    # ------------------------------------------------------------------ inside

    def _path_with(self, text: str, parent_id: MessageId | None) -> list[Message]:
        chat_id = self._shown.id or ConversationId("")
        draft = Message(MessageId(0), chat_id, parent_id, "user", storable(text), self._clock())
        return [*self._shown.path_to(parent_id), draft]

    def _answered_path(self) -> list[Message]:
        """The path down to the last reply that says something; the instruction follows it."""
        path = self._shown.path()
        while path and not (path[-1].role == "assistant" and path[-1].content):
            path.pop()
        return path

    def _question(self, path: list[Message], info: ModelInfo) -> Question:
        prompt = chat_prompt(
            path,
            settings=self._shown.settings,
            general=self._settings.value,
            info=info,
        )
        return Question(
            prompt.messages, self._as_plain_text(info), self._shortest(path[-1], prompt, info)
        )

    def _shortest(
        self, last: Message, prompt: ChatPrompt, info: ModelInfo
    ) -> tuple[ChatMessage, ...]:
        """What of a prompt could not be left out; () if that surely fits, or is all of it."""
        kept = tuple(m for m in prompt.messages[:1] if m.role == "system") + prompt.messages[-1:]
        if last.role != "user" or kept == prompt.messages or self._surely_fits([last], info):
            return ()
        return kept

    def _surely_fits(self, path: list[Message], info: ModelInfo) -> bool:
        return surely_fits(
            path, settings=self._shown.settings, general=self._settings.value, info=info
        )

    def _as_plain_text(self, info: ModelInfo) -> bool:
        return self._shown.is_plain_text and not info.has_chat_template

    def _let_through(
        self,
        path: list[Message],
        text: str,
        *,
        send: Callable[[], bool],
        instead: Callable[[], bool] | None = None,
        message_id: MessageId | None = None,
        num_replies: int = 1,
    ) -> bool:
        """Send if there is room; the engine is only asked when it may be scarce."""
        info = self._models.state.info
        choice = self._shown.settings.on_full
        if choice == "leave_out":
            path = path[-1:]  # all before it can be left out
        if info is None or self._surely_fits(path, info):
            return send()
        return self._gate.pass_through(
            self._question(path, info),
            Held(text, send, choice, instead, message_id, num_replies),
        )

    def _num_useful(self, num_replies: int) -> int:
        """How many of so many replies to make: one, where all would be the same or fail alike."""
        model = self._models.state
        info = model.info
        if info is None and model.kind != "loading":
            return 1
        if info is not None and not (info.has_chat_template or self._shown.is_plain_text):
            return 1
        reason = self.why_alike()
        if num_replies > 1 and reason:
            self._announcer.notify(RepliesAlike(reason))
            return 1
        return num_replies

    def _prompt_of_sequel(self, chat: Conversation, summary: str) -> str:
        """The system prompt of the chat that goes on."""
        own = system_prompt_of(chat.settings, self._settings.value)
        return prompt_with_summary(own, chat.title, summary)

    def _go_on(self, task: SummaryTask, summary: str) -> None:
        """The summary is there: the new chat begins, or nothing of it is left."""
        chat, text = task.chat, task.text
        has_begun = self._shown.begin_sequel(
            chat,
            text,
            title=title_going_on(chat.title),
            system_prompt=self._prompt_of_sequel(chat, summary),
        )
        if not is_blank(text) and not has_begun:
            self._announcer.notify(DraftReturned(text, task.message_id))
