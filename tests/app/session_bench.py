"""A chat session without a window, in which the test plays the engine thread."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from app.chat_session import ChatSession
from app.conversation import Conversation, Message, MessageId
from app.messages import (
    Command,
    Failure,
    Generate,
    MeasurePrompt,
    ModelReady,
    PromptMeasured,
    PromptRead,
    ReplyEnded,
    ReplyId,
    ReplyProgressed,
)
from app.session_changes import ConversationsChanged, RepliesChanged, SessionChange
from app.settings import SettingsStore
from app.storage import ConversationStore
from inference.metrics import RequestMetrics
from tests.app.fake_engine import make_model_info

PATH = "/models/fake.gguf"
INFO = make_model_info()
METRICS = RequestMetrics(prompt_tokens=4, completion_tokens=2, ttft_ms=10.0)
FULL_METRICS = RequestMetrics(prompt_tokens=1900, completion_tokens=2, ttft_ms=10.0)
LONG = "long " * 1000  # may be more than the 2,048 tokens of the fake model
FAILURE = Failure("memory", "It needs 6 GB.", "Choose a smaller model.")


class Bench:
    """A session with its surroundings; the test plays the engine thread.

    Attributes:
        posted: Commands that went to the engine.
        changes: What the session told.
        now: The clock.
    """

    def __init__(self, tmp_path: Path) -> None:
        self.now = 100.0
        self.posted: list[Command] = []
        self.on_post: Callable[[Command], None] = lambda _: None
        self.changes: list[SessionChange] = []
        self.settings = SettingsStore(tmp_path / "settings.json", delay_s=1000.0)
        self.path = tmp_path / "chats.db"
        self.kv_dir = tmp_path / "kv"
        self.start()

    def start(self) -> None:
        """A fresh start of the program on the same files."""
        self.store = ConversationStore(self.path, clock=lambda: self.now)
        self.session = ChatSession(
            self.store, self.settings, self.post, clock=lambda: self.now, kv_dir=self.kv_dir
        )
        self.session.subscribe(self.changes.append)

    def post(self, command: Command) -> None:
        self.on_post(command)
        self.posted.append(command)

    def ready(self, **info: object) -> None:
        self.session.load_model(PATH)
        self.session.handle_event(ModelReady(replace(INFO, **info)))  # type: ignore[arg-type]
        self.posted.clear()
        self.changes.clear()

    def take(self) -> list[SessionChange]:
        """The changes since the last call, without what only says that a list is to be read again."""
        lists = (ConversationsChanged(), RepliesChanged())
        changes = [change for change in self.changes if change not in lists]
        self.changes.clear()
        return changes

    @property
    def chat(self) -> Conversation:
        assert self.session.conversation is not None
        return self.session.conversation

    @property
    def texts(self) -> list[str]:
        return [message.content for message in self.chat.path()]

    @property
    def last(self) -> Message:
        return self.chat.path()[-1]

    def stored(self, message_id: int) -> Message:
        """The message as it is in the file, whatever chat it is in."""
        for summary in self.store.conversations():
            chat = self.store.load(summary.id)
            if chat is not None and message_id in chat.messages:
                return chat.messages[MessageId(message_id)]
        raise KeyError(message_id)

    def generate(self) -> Generate:
        """The newest Generate command."""
        return next(command for command in reversed(self.posted) if isinstance(command, Generate))

    def asked(self) -> list[str]:
        """Contents of the newest prompt that is to be answered."""
        return [message.content for message in self.generate().messages]

    def says(
        self, text: str, reply_id: ReplyId | None = None, *, is_all_shown: bool = True
    ) -> None:
        """The engine brings text."""
        reply_id = reply_id or self.generate().reply_id
        event = ReplyProgressed(reply_id, text, (7,), 4, METRICS, is_all_shown)
        self.session.handle_event(event)

    def ends(self, **fields: object) -> None:
        """The engine ends the newest reply."""
        event = ReplyEnded(self.generate().reply_id, "stop", METRICS, None, (7, 8))
        for name, value in fields.items():
            object.__setattr__(event, name, value)
        self.session.handle_event(event)

    def turn(self, question: str, answer: str, *, metrics: RequestMetrics = METRICS) -> None:
        """A whole turn."""
        self.session.send(question)
        self.says(answer)
        self.ends(metrics=metrics)
        self.changes.clear()

    def cut_turn(self, question: str, answer: str, *, left_out: int) -> None:
        """A whole turn in a full chat: so many messages were left out."""
        self.session.send(question)
        self.session.handle_event(PromptRead(self.generate().reply_id, (), left_out))
        self.says(answer)
        self.ends()
        self.changes.clear()

    def measures(self) -> list[MeasurePrompt]:
        """All questions for the length of a prompt."""
        return [command for command in self.posted if isinstance(command, MeasurePrompt)]

    def measured(self, prompt_tokens: int, *, fits: bool, number: int = -1) -> None:
        """The engine answers a question for the length, the newest one by itself."""
        measure_id = self.measures()[number].measure_id
        self.session.handle_event(
            PromptMeasured(measure_id, prompt_tokens, INFO.context_tokens, fits)
        )

    def too_long(self, prompt_tokens: int) -> None:
        """The engine answers that the chat does not fit, and that its last message alone would."""
        self.measured(prompt_tokens, fits=False)
        self.measured(1300, fits=True)
