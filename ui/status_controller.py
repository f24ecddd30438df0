"""Between the session and the status bar. GUI thread."""

from PySide6.QtCore import QObject

from app.chat_session import ChatSession
from app.session_changes import (
    ConversationShown,
    GuessingChanged,
    MessageAdded,
    MessageChanged,
    ModelChanged,
    ModelState,
    ReplyGrew,
    ReplyPrefilling,
    ReplyStarted,
    SessionChange,
    StatsChanged,
)
from inference.metrics import RequestMetrics
from ui.chat.model_button import ModelLabel
from ui.chat.model_words import computed_by, draft_name, model_label, model_name, short_name
from ui.controls.numbers import gigabytes, rate, seconds
from ui.controls.throttle import Throttle
from ui.dialogs.memory_words import tiers_tip
from ui.status_bar import StatusBar

# Numbers that change more often than four times a second cannot be read.
NUMBER_INTERVAL_MS = 250


class StatusController(QObject):
    """Keeps the items true, and calm."""

    def __init__(self, session: ChatSession, bar: StatusBar, parent: QObject) -> None:
        super().__init__(parent)
        self._session = session
        self._bar = bar
        self._metrics: RequestMetrics | None = None
        self._counted: int | None = None
        self._numbers = Throttle(NUMBER_INTERVAL_MS, bar)  # not later than what it shows
        session.subscribe(self._follow)
        self._show_model(session.model)
        self._take_shown_chat()

    def take_counted(self, num_tokens: int | None) -> None:
        """The card of a full chat says that it takes so many; None takes what the last reply took.

        The card counts what is written and the marks of the next turn too.
        """
        if num_tokens != self._counted:
            self._counted = num_tokens
            self._show_numbers()

    def _follow(self, change: SessionChange) -> None:
        match change:
            case ReplyGrew(_, _, metrics):
                self._metrics = metrics
                self._numbers.call(self._show_numbers)
            case ReplyPrefilling(_, _, total_tokens):
                self._metrics = RequestMetrics(prompt_tokens=total_tokens)
                self._numbers.call(self._show_numbers)
            case ModelChanged() | GuessingChanged():
                self._show_model(self._session.model)
            case ConversationShown():
                self._take_shown_chat()
            case ReplyStarted():
                self._bar.show_speed("")
                self._bar.show_first_word("")
            case MessageAdded(message) | MessageChanged(message, _):
                self._numbers.cancel()
                if message.metrics is not None:
                    self._metrics = message.metrics
                self._show_numbers()
            case StatsChanged(sample):
                used, total = gigabytes(sample.rss_bytes), gigabytes(sample.total_memory_bytes)
                tiers = tiers_tip(sample.stats)
                self._bar.show_memory(f"Memory {used} of {total} GB", tiers)
            case _:
                pass

    def _take_shown_chat(self) -> None:
        conversation = self._session.conversation
        path = conversation.path() if conversation else []
        known = [message.metrics for message in path if message.metrics is not None]
        self._metrics = known[-1] if known else None
        self._numbers.cancel()
        self._show_numbers()

    def _show_model(self, state: ModelState) -> None:
        label = model_label(state)
        if state.info is not None:
            name, guesses = model_name(state), self._session.models.guesses.state
            tip = f"{name}, {computed_by(state.info)}"
            if guesses.draft is not None:
                tip += f"; {draft_name(guesses)} guesses ahead"
            label = ModelLabel(label.mark, short_name(name), tip=tip)
            self._bar.show_model(label, state.info.quantization)
        else:
            self._bar.show_model(label)
        self._show_numbers()

    def _show_numbers(self) -> None:
        metrics = self._metrics or RequestMetrics()
        info = self._session.model.info
        used = self._counted
        if used is None:
            used = metrics.prompt_tokens + metrics.completion_tokens
        self._bar.show_context(used, info.context_tokens if info else None)
        if info is None:
            # Of a model that is gone; beside one that failed they would be taken for its own.
            metrics = RequestMetrics()
        speed = metrics.decode_tps
        self._bar.show_speed("" if speed is None else f"{rate(speed)} tok/s")
        first = metrics.ttft_ms
        self._bar.show_first_word("" if first is None else f"First word after {seconds(first)}")
