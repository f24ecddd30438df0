"""Between the session and the chat: messages, composer, drafts. GUI thread."""

from PySide6.QtCore import QObject, Qt

from app.chat_session import ChatSession
from app.conversation import Conversation, MessageId
from app.session_changes import (
    ConversationsChanged,
    ConversationShown,
    DraftReturned,
    MessageAdded,
    MessageChanged,
    RepliesAlike,
    RepliesChanged,
    ReplyGrew,
    ReplyPrefilling,
    ReplyStarted,
    ReplyWaits,
    SessionChange,
)
from app.texts import joined
from ui.chat.chat_pane import ChatPane
from ui.chat.draft_keeper import DraftKeeper
from ui.controls.text_bounds import too_long
from ui.replies.answer_words import NUM_ANSWERS, alike_text
from ui.replies.message_view import OwnMessageView

NEW_CHAT_TITLE = "New chat"


class ChatController(QObject):
    """Shows what the session says about the chat, and tells it what the person does there.

    Attributes:
        drafts: Keeps what is written in the composer.
    """

    def __init__(self, session: ChatSession, pane: ChatPane, parent: QObject) -> None:
        super().__init__(parent)
        self._session = session
        self._pane = pane
        composer = pane.composer
        self.drafts = DraftKeeper(session, composer, self)
        composer.sent.connect(self._send)
        composer.stop_requested.connect(session.stop)
        composer.edit_last_requested.connect(self._edit_last)
        composer.refused.connect(self._tell_refused)
        pane.empty.suggestion_chosen.connect(self._take_suggestion)
        messages = pane.messages
        messages.regenerate_requested.connect(lambda key: session.regenerate(MessageId(key)))
        messages.several_requested.connect(
            lambda key: session.regenerate(MessageId(key), NUM_ANSWERS)
        )
        messages.stop_all_requested.connect(lambda key: session.stop_versions(MessageId(key)))
        messages.alike_reason = session.why_alike
        messages.edit_requested.connect(self._edit)
        messages.version_requested.connect(lambda key: session.show_version(MessageId(key)))
        pane.header.title_edited.connect(self._rename)
        pane.header.editing_ended.connect(self.focus_composer)
        session.subscribe(self._follow)
        self._show(session.conversation)

    def focus_composer(self) -> None:
        """Put the caret where the next message is written."""
        self._pane.composer.input.setFocus(Qt.FocusReason.OtherFocusReason)

    def close(self) -> None:
        """The window goes: what is written in the composer, and in editors, is kept."""
        for text in self._pane.messages.edits_beyond(()):
            self._take_back(text)
        self.drafts.keep()

    def _follow(self, change: SessionChange) -> None:
        match change:
            case ReplyGrew(message_id, text, _):
                self._pane.messages.append_text(message_id, text)
            case ReplyPrefilling(message_id, done, total):
                self._pane.messages.set_prefill(message_id, done, total)
            case ReplyWaits(message_id, reason):
                self._pane.messages.set_waiting(message_id, reason)
            case RepliesChanged():
                self._pane.messages.set_running(self._session.running_versions())
                self._show_replying()
            case RepliesAlike(reason):
                self._tell(alike_text(reason))
            case _:
                self._follow_chat(change)
                self._show_empty()

    def _follow_chat(self, change: SessionChange) -> None:
        messages = self._pane.messages
        match change:
            case ConversationShown(conversation):
                self._show(conversation)
            case ConversationsChanged():
                self._show_title()
            case MessageAdded(message):
                messages.update_message(message, self._versions(message.id))
                self.drafts.keep()  # what was sent is none any more
            case ReplyStarted(message):
                messages.begin_reply(message, self._versions(message.id))
                self._pane.composer.set_replying(True)
            case MessageChanged(message, _, mark):
                messages.update_message(message, self._versions(message.id))
                messages.mark_left_out(mark)
                self._show_replying()
            case DraftReturned(text, message_id):
                self._take_back(text, message_id)
            case _:
                pass

    def _show_empty(self) -> None:
        """The greeting or the messages, as the path is now: a chat is filled and emptied in many ways."""
        conversation = self._session.conversation
        self._pane.show_empty(conversation is None or conversation.leaf_id is None)

    def _show(self, conversation: Conversation | None) -> None:
        path = conversation.path() if conversation else []
        for text in self._pane.messages.edits_beyond(path):
            self._take_back(text)  # its editor goes with the message
        self.drafts.show(conversation.id if conversation else None)
        versions = conversation.versions_on_path() if conversation else {}
        self._pane.messages.mark_left_out(self._session.left_out_mark())
        self._pane.messages.set_running(self._session.running_versions())
        self._pane.messages.show_path(path, versions)
        self._show_empty()
        self._show_title()
        self._show_replying()

    def _versions(self, message_id: MessageId) -> list[MessageId]:
        conversation = self._session.conversation
        if conversation is None or message_id not in conversation.messages:
            return [message_id]
        return conversation.versions(message_id)

    def _show_title(self) -> None:
        conversation = self._session.conversation
        self._pane.header.set_title(conversation.title if conversation else NEW_CHAT_TITLE)

    def _show_replying(self) -> None:
        self._pane.composer.set_replying(self._session.is_replying)

    def _send(self, text: str) -> None:
        # Emptied first: sending may show a stored chat in place of the new one, and the text
        # must not stay behind as the new chat's draft.
        self._pane.composer.set_text("")
        is_stored = False
        try:
            is_stored = self._session.send(text)
        finally:  # whatever went wrong, what was written is not lost
            if not is_stored:
                self._pane.composer.set_text(text)

    def _take_back(self, text: str, message_id: MessageId | None = None) -> None:
        """A text was not sent: where it came from, it stands before what was written since."""
        view = None if message_id is None else self._pane.messages.view_of(message_id)
        if isinstance(view, OwnMessageView):
            written = view.edited_text or ""
            view.stop_editing()
            view.start_editing(text if written == view.message.content else joined(text, written))
        else:
            composer = self._pane.composer
            composer.set_text(joined(text, composer.text))

    def _edit(self, key: int, text: str) -> None:
        if not self._session.edit(MessageId(key), text):
            self._take_back(text, MessageId(key))

    def _tell_refused(self, num_chars: int) -> None:
        self._tell(too_long(num_chars))

    def _tell(self, words: str) -> None:
        self._pane.toast.show_text(words, icon_name="circle-alert", icon_role="warn")

    def _rename(self, title: str) -> None:
        conversation = self._session.conversation
        if conversation is not None:
            self._session.rename_chat(conversation.id, title)

    def _edit_last(self) -> None:
        conversation = self._session.conversation
        path = conversation.path() if conversation else []
        own = [message for message in path if message.role == "user"]
        view = self._pane.messages.view_of(own[-1].id) if own else None
        if isinstance(view, OwnMessageView):
            view.start_editing()

    def _take_suggestion(self, prompt: str) -> None:
        self._pane.composer.set_text(prompt)
        self.focus_composer()
