"""What a person does with chats, and what comes of it: the one place between window and engine.

Pure Python, GUI thread. Reads and writes the store, sends commands to the engine thread through
`post`, takes its events through `handle_event`, and tells its listeners. What a person wrote is
stored before the engine sees it; a reply goes on in the background when another chat is opened.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from app.announcer import Announcer, OnceTold
from app.chat_list import ChatList
from app.chat_watch import ChatWatch
from app.context_room import left_out_mark
from app.conversation import (
    ChatSettings,
    Conversation,
    ConversationId,
    ConversationSummary,
    MessageId,
    OnFull,
)
from app.drafts import Drafts
from app.messages import (
    CacheCleared,
    ClearCache,
    Command,
    Event,
    ForgetChat,
    PromptMeasured,
    PromptRead,
    ReplyEnded,
    ReplyProgressed,
    StatsSampled,
)
from app.model_desk import ModelDesk, ModelEvent
from app.search import SearchHit
from app.sending import Sending
from app.session_changes import CacheWasCleared, ModelState, SessionChange, StatsChanged
from app.settings import SettingsStore
from app.shown_chat import ShownChat
from app.storage import ConversationStore
from app.surroundings import Surroundings


class ChatSession:
    """The chats of one profile, one of them shown, and the replies in the making.

    A failure to store never raises out of here: listeners get StorageFailed, and what could not be
    stored did not happen.

    Args:
        store: The chats.
        settings: The general settings.
        post: Sends a command to the engine thread.
        clock: Seconds since the epoch.
        kv_dir: Where what models have read is kept on disk; None keeps nothing.

    Attributes:
        models: Which model is open, and how much is kept in which form of what models have read.
        drafts: What is written in each chat and not sent yet.
    """

    def __init__(
        self,
        store: ConversationStore,
        settings: SettingsStore,
        post: Callable[[Command], None],
        clock: Callable[[], float] = time.time,
        *,
        kv_dir: Path | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._post = post
        self._is_closed = False
        self._announcer = announcer = Announcer()
        self.models = ModelDesk(
            settings, post=post, announcer=announcer, kv_dir=kv_dir, changed=self._model_changed
        )
        around = Surroundings(store, settings, self.models, post, announcer, clock)
        self._shown = ShownChat(around)
        self._sending = Sending(self._shown, around)
        self.drafts = Drafts(around, self._sending)
        self._watch = ChatWatch(self._shown, around)
        self._told_settings = OnceTold(announcer)
        self._chats = ChatList(self._shown, around, show_new=self.new_chat, show=self.open_chat)

    def subscribe(self, listener: Callable[[SessionChange], None]) -> Callable[[], None]:
        """Tell `listener` of every change from now on; call the result to end that."""
        return self._announcer.subscribe(listener)

    # ------------------------------------------------------------------ what is there

    @property
    def conversation(self) -> Conversation | None:
        """The chat that is shown, with all text that has come; None is a new, empty one."""
        return self._shown.conversation

    @property
    def model(self) -> ModelState:
        """Which model is there, or on its way."""
        return self.models.state

    @property
    def is_replying(self) -> bool:
        """Whether the reply at the end of the visible path is still in the making."""
        return self._shown.is_replying

    def replying_chats(self) -> frozenset[ConversationId]:
        """The chats in which a reply is in the making, shown or not."""
        return self._shown.desk.chats()

    def running_versions(self) -> dict[MessageId, int]:
        """For messages of the visible path: how many versions are in the making, itself counted."""
        return self._shown.running_versions()

    def why_alike(self) -> str:
        """Why several replies in the shown chat would be the same, to go on after "because".

        "" if they would differ.
        """
        return self._sending.why_alike()

    @property
    def is_summarising(self) -> bool:
        """Whether the shown chat is being summed up; `stop` ends that."""
        return self._sending.is_summarising

    @property
    def chat_settings(self) -> ChatSettings:
        """The own settings of the chat that is shown."""
        return self._shown.settings

    def left_out_mark(self) -> MessageId | None:
        """The first message of the visible path that the model still sees.

        None if it sees all of them.
        """
        return left_out_mark(self._shown.path())

    def conversations(self) -> list[ConversationSummary]:
        """All chats, the last used first."""
        return self._chats.all()

    def notice_others(self) -> None:
        """Have told what another process has stored, in the list and in the chat that is shown.

        To be called often.
        """
        if self._is_closed:
            return
        self._shown.desk.save_again()
        self.drafts.tell_problem()
        self._settings.save_again()
        self._told_settings.note(self._settings.problem)
        if self._chats.notice_others():
            self._watch.note()
        if not self._sending.is_busy:  # what is held belongs to the chat as it is
            self._watch.look()

    def search(self, text: str) -> list[SearchHit]:
        """Chats whose title or messages hold all words, the last used first."""
        return self._chats.search(text)

    # ------------------------------------------------------------------ chats

    def new_chat(self) -> None:
        """Show an empty chat; it is stored with its first message."""
        self._sending.leave()
        self._shown.draft_settings = ChatSettings()
        self._shown.show(None)

    def open_chat(
        self, conversation_id: ConversationId, message_id: MessageId | None = None
    ) -> None:
        """Show a chat; a reply of the one before goes on in the background.

        Args:
            conversation_id: Which.
            message_id: The branch with this message is shown, if it is another one.
        """
        self._sending.leave()
        self._shown.open(conversation_id, message_id)

    def shows(self, message_id: MessageId) -> bool:
        """Whether this message is on the visible path."""
        return any(message.id == message_id for message in self._shown.path())

    def rename_chat(self, conversation_id: ConversationId, title: str) -> None:
        """Give a chat another title; an empty one is ignored."""
        self._chats.rename(conversation_id, title)

    def delete_chat(self, conversation_id: ConversationId) -> bool:
        """Take a chat off the list and end its replies; `undo_delete` brings it back.

        What models have read of it is kept until `forget_deleted`, another deletion or the end.

        Returns:
            Whether it is off the list; if not, the listeners were told why.
        """
        return self._chats.delete(conversation_id)

    def undo_delete(self) -> None:
        """Bring the last deleted chat back; show it if it was shown then."""
        self._chats.undo_delete()

    def forget_deleted(self, conversation_id: ConversationId) -> None:
        """Forget what models have read of this chat if it is the last deleted one; it is gone for good then."""
        self._chats.forget_deleted(conversation_id)

    def set_chat_settings(self, settings: ChatSettings) -> None:
        """Set the own settings of the chat that is shown; they hold from the next reply on."""
        self._shown.set_settings(settings)

    def choose_on_full(self, choice: OnFull) -> None:
        """Keep what to do whenever the chat that is shown is full."""
        self._shown.set_settings(replace(self._shown.settings, on_full=choice))

    # ------------------------------------------------------------------ messages

    def measure_draft(self, text: str) -> None:
        """Have DraftMeasured announced for the shown chat with this text; it may be empty.

        Nothing is announced without a model, or when the prompt cannot be made.
        """
        self._sending.measure_draft(text)

    def send(self, text: str) -> bool:
        """Say something in the chat that is shown and ask for a reply.

        If it may not fit, it is measured first: then the text was taken, and either MessageAdded
        follows, or DraftReturned with ChatIsFull. Until then nothing else can be sent.

        Returns:
            Whether the text was taken; if not, the caller keeps it.
        """
        return self._sending.send(text)

    def edit(self, message_id: MessageId, text: str) -> bool:
        """Say something else in place of an own message; what followed stays as a branch.

        Returns:
            Whether the text was taken, as for `send`.
        """
        return self._sending.edit(message_id, text)

    def regenerate(self, message_id: MessageId, num_replies: int = 1) -> None:
        """Ask for another version of a reply, or for the reply that a question lacks.

        ChatIsFull says that there is no room for it. Several are made at once, each as a version of
        its own, and the first is shown; only one where all would be the same (then RepliesAlike says
        why) or fail alike.
        """
        self._sending.regenerate(message_id, num_replies)

    def continue_in_new_chat(self, text: str, message_id: MessageId | None = None) -> bool:
        """Sum up the shown chat, and send `text` in a new one that begins with the summary.

        With an empty text the new chat is only shown. `stop` and opening another chat end it; then,
        and when it fails or leaves no room for the text, that comes back as DraftReturned. With the choice "new_chat", `send`
        does this by itself.

        Args:
            text: Said first in the new chat.
            message_id: Whose editor it comes from, and goes back to; None is the composer.

        Returns:
            Whether the text was taken; if not, the caller keeps it.
        """
        return self._sending.continue_in_new_chat(text, message_id)

    def show_version(self, message_id: MessageId) -> None:
        """Show the branch through this message, down to its newest end."""
        conversation = self.conversation
        if conversation is None or message_id not in conversation.messages:
            return
        self._sending.leave()
        self._shown.show_version(message_id)

    def stop(self) -> None:
        """End the summary, or the reply at the end of the visible path; its text is kept."""
        self._sending.cancel()
        self._shown.stop()

    def stop_versions(self, message_id: MessageId) -> None:
        """End all versions of this message that are in the making; their texts are kept."""
        self._shown.stop_versions(message_id)

    def continue_as_plain_text(self) -> None:
        """Make the failed reply without a chat template, and all later ones of this chat."""
        if not self._sending.is_busy:
            self._shown.go_on_as_plain_text()

    # ------------------------------------------------------------------ engine

    def load_model(self, path: str) -> None:
        """Open this model; replies that run end as stopped, new ones wait for it."""
        self.models.load(path)

    def clear_chat_cache(self, conversation_id: ConversationId) -> None:
        """Forget what models have read of this chat alone; CacheWasCleared says when it is done."""
        self._post(ForgetChat(conversation_id))

    def forget_lost_chats(self) -> None:
        """Remove what is cached of chats that are not there any more; to be called at the start."""
        self._chats.forget_lost()

    def clear_all_cache(self) -> None:
        """Forget what models have read of all chats; CacheWasCleared says when it is done."""
        self._post(ClearCache())

    def handle_event(self, event: Event) -> None:
        """Take an event of the engine thread, on the GUI thread."""
        if self._is_closed:
            return
        match event:
            case _ if isinstance(event, ModelEvent):
                self.models.handle(event)
            case PromptRead() | ReplyProgressed() | ReplyEnded():
                if not self._sending.handle_summary(event):
                    self._shown.desk.handle(event)
            case PromptMeasured():
                self._sending.measured(event)
            case CacheCleared():
                chat_id = event.conversation_id
                self._announcer.notify(
                    CacheWasCleared(
                        None if chat_id is None else ConversationId(chat_id), event.freed_bytes
                    )
                )
            case StatsSampled():
                self._shown.desk.note_stats(event.stats)
                self._announcer.notify(StatsChanged(event))

    def is_all_stored(self) -> bool:
        """Whether all replies that have ended are stored, after one more try; if not, closing loses them."""
        return self._shown.desk.is_all_stored()

    def close(self) -> None:
        """End all replies, store everything, forget deleted chats for good."""
        self._sending.close()
        self._is_closed = True
        self._shown.desk.abandon_all()
        self._shown.desk.save_again()
        self._settings.flush()
        self._chats.give_up_undo()
        self._announcer.done(self._store.purge_deleted)
        self._store.close()

    # ------------------------------------------------------------------ inside

    def _model_changed(self) -> None:
        self._sending.model_changed()
        self._shown.desk.model_changed()
