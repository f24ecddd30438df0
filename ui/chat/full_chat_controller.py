"""Says before sending that a chat is full, and offers what can be done about it. GUI thread."""

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from app.chat_session import ChatSession
from app.conversation import MessageId, OnFull
from app.messages import Failure
from app.session_changes import (
    ChatIsFull,
    ConversationShown,
    DraftMeasured,
    MessageAdded,
    MessageChanged,
    ModelChanged,
    ReplyStarted,
    SessionChange,
    SummaryEnded,
    SummaryProgress,
)
from app.texts import is_blank
from ui.chat.chat_pane import ChatPane
from ui.chat.full_chat_words import (
    NOT_NOW,
    STOP,
    TOO_LONG,
    full_words,
    hint_words,
    summary_words,
    too_long_words,
)
from ui.controls.throttle import Throttle
from ui.dialogs.on_full_choices import LEAVE_OUT, NEW_CHAT
from ui.replies.message_view import OwnMessageView

MEASURE_DELAY_MS = 300
_PROGRESS_MS = 250


class FullChatController(QObject):
    """Has the draft measured, and keeps the card and the hint above the composer true.

    Signals:
        counted: The card says that the chat takes so many tokens; None when it does not any more.
    """

    counted = Signal(object)

    def __init__(self, session: ChatSession, pane: ChatPane, parent: QObject) -> None:
        super().__init__(parent)
        self._session = session
        self._pane = pane
        self._size: tuple[int, int] | None = None  # prompt and context in tokens, if it is too long
        self._is_alone = False  # what is too long is one message, so nothing can be left out
        self._refused: ChatIsFull | None = None  # what was to be done, so that a choice does it
        self._num_chars: int | None = None  # of the summary in the making
        self._has_message = True  # that goes on after the summary
        self._progress = Throttle(_PROGRESS_MS, pane)  # not later than what it shows
        self._timer = QTimer(pane)  # not later than the composer
        self._timer.setSingleShot(True)
        self._timer.setInterval(MEASURE_DELAY_MS)
        self._timer.timeout.connect(self._measure)
        pane.composer.text_changed.connect(self._text_changed)
        session.subscribe(self._follow)
        self._measure_later()

    def refresh(self) -> None:
        """The choice for this chat may be another."""
        self._show()

    def _follow(self, change: SessionChange) -> None:
        match change:
            case DraftMeasured(fits=True) | ConversationShown() | ModelChanged():
                self._take_size(None)
                if not isinstance(change, DraftMeasured):
                    self._measure_later()
            case DraftMeasured(prompt_tokens, context_tokens):
                self._take_size((prompt_tokens, context_tokens), is_alone=change.is_alone)
            case ChatIsFull(prompt_tokens, context_tokens):
                self._refused = change
                self._take_size((prompt_tokens, context_tokens), is_alone=change.is_alone)
            case MessageAdded() | MessageChanged():
                self._measure_later()
            case ReplyStarted():
                self._refused = None
                self._show()
            case SummaryProgress(num_chars):
                self._num_chars = num_chars
                self._progress.call(self._show)
            case SummaryEnded(failure):
                self._end_summary(failure)
            case _:
                pass

    # ------------------------------------------------------------ measuring

    def _text_changed(self) -> None:
        if self._refused is not None and not self._refused.text:
            self._refused = None  # from now on it is about what is being written
        self._measure_later()

    def _measure_later(self) -> None:
        self._timer.start()

    def _measure(self) -> None:
        # While a reply grows, its length would be old at once; its end comes here again.
        if not self._session.is_replying and not self._session.is_summarising:
            self._session.measure_draft(self._pane.composer.text)

    def _take_size(self, size: tuple[int, int] | None, *, is_alone: bool = False) -> None:
        self._size = size
        self._is_alone = is_alone
        if size is None:
            self._refused = None
        self._show()

    # ------------------------------------------------------------ what is shown

    def _show(self) -> None:
        choice = self._session.chat_settings.on_full
        is_summing = self._num_chars is not None
        is_full = self._size is not None and not self._session.is_replying and not is_summing
        self._show_card(choice, is_full=is_full, is_summing=is_summing)
        hint = hint_words(choice) if is_full else ""
        if hint and not self._pane.full_card.isVisibleTo(self._pane):
            self._pane.hint.show_text(hint, tip="Choose otherwise in the settings of this chat")
        else:
            self._pane.hint.hide()
        block = "This chat is being summed up" if is_summing else ""
        if is_full:
            block = self._block(choice)
        self._pane.composer.set_block(block, until_changed=is_full)
        self._pane.place()

    def _block(self, choice: OnFull) -> str:
        """Why nothing can be sent in a full chat; "" if it can."""
        if self._is_alone and not self._is_about_message:
            return TOO_LONG
        return "This chat is full" if choice == "stop" else ""

    @property
    def _is_about_message(self) -> bool:
        """Whether an edit, or another reply, was refused, and not the draft."""
        return self._refused is not None and self._refused.message_id is not None

    def _show_card(self, choice: OnFull, *, is_full: bool, is_summing: bool) -> None:
        card, counted = self._pane.full_card, None
        if is_summing:
            title, text = summary_words(self._num_chars or 0, has_message=self._has_message)
            card.show_words(title, text, [(STOP, self._session.stop)], kind="work")
        elif is_full and self._size is not None and self._is_alone:
            has_own = bool(self._session.chat_settings.system_prompt)
            title, text = too_long_words(*self._size, has_instructions=has_own)
            card.show_words(title, text, [], kind="warning")
        elif is_full and self._size is not None and self._is_choice_wanted(choice):
            counted = self._size[0]
            title, text = full_words(*self._size, is_off=choice == "stop")
            actions = [(LEAVE_OUT, self._leave_out), (NEW_CHAT, self._sum_up)]
            if choice == "ask":
                actions.append((NOT_NOW, self._send_nothing))
            card.show_words(title, text, actions, kind="warning")
        else:
            card.hide()
        self.counted.emit(counted)

    def _is_choice_wanted(self, choice: OnFull) -> bool:
        # A new chat is begun by a message, not by an edit or another reply.
        return choice in ("ask", "stop") or (choice == "new_chat" and self._is_about_message)

    # ------------------------------------------------------------ what is chosen

    def _leave_out(self) -> None:
        refused = self._refused
        self._choose("leave_out")
        if refused is not None:
            self._do(refused)

    def _do(self, refused: ChatIsFull) -> None:
        """Do what was refused, unless its text has been changed since: then it is not finished."""
        composer, message_id = self._pane.composer, refused.message_id
        if message_id is None:
            if composer.text == refused.text:
                composer.submit()
        elif not refused.text:
            self._session.regenerate(message_id, refused.num_replies)
        elif (view := self._editor(message_id)) and view.edited_text == refused.text:
            view.stop_editing()
            if not self._session.edit(message_id, refused.text):
                view.start_editing(refused.text)

    def _editor(self, message_id: MessageId) -> OwnMessageView | None:
        """The view of a message that is being edited."""
        view = self._pane.messages.view_of(message_id)
        if isinstance(view, OwnMessageView) and view.edited_text is not None:
            return view
        return None

    def _send_nothing(self) -> None:
        self._refused = None
        self._choose("stop")

    def _choose(self, choice: OnFull) -> None:
        self._session.choose_on_full(choice)
        self._show()
        self._measure_later()  # what was refused may have been an edit, and the draft has room
        self._pane.composer.input.setFocus(Qt.FocusReason.OtherFocusReason)

    def _sum_up(self) -> None:
        """Once, for this chat as it is now: another one begins, and this choice goes with it."""
        composer = self._pane.composer
        view = None if composer.text else self._refused_editor()
        text = composer.text if view is None else view.edited_text or ""
        put_back = composer.set_text if view is None else view.start_editing
        self._has_message = not is_blank(text)
        # First: the new chat must not find it as a draft.
        composer.set_text("")
        if view is not None:
            view.stop_editing()
        is_taken = False
        try:
            is_taken = self._session.continue_in_new_chat(
                text, None if view is None else view.message.id
            )
        finally:  # whatever went wrong, what was written is not lost
            if not is_taken:
                put_back(text)

    def _refused_editor(self) -> OwnMessageView | None:
        refused = self._refused
        if refused is None or refused.message_id is None:
            return None
        return self._editor(refused.message_id)

    def _end_summary(self, failure: Failure | None) -> None:
        self._num_chars = None
        self._has_message = True
        self._progress.cancel()
        self._show()
        self._measure_later()
        if failure is not None:
            words = f"{failure.message} {failure.hint}".strip()
            self._pane.toast.show_text(words, icon_name="circle-alert", icon_role="warn")
