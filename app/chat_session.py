"""What a person does with chats, and what comes of it: the one place between window and engine.

Pure Python, GUI thread. Reads and writes the store, sends commands to the engine thread through
`post`, takes its events through `handle_event`, and tells its listeners. What a person wrote is
stored before the engine sees it; a reply goes on in the background when another chat is opened.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from app.announcer import Announcer
from app.context_room import left_out_mark
from app.conversation import (
    MAX_TITLE_CHARS,
    ChatSettings,
    Conversation,
    ConversationId,
    ConversationSummary,
    MessageId,
    OnFull,
)
from app.messages import (
    CacheCleared,
    ClearCache,
    Command,
    Event,
    ForgetChat,
    KeepOnlyChats,
    ModelFailed,
    ModelLoading,
    ModelReady,
    ModelUnloaded,
    PromptMeasured,
    PromptRead,
    ReplyEnded,
    ReplyProgressed,
    StatsSampled,
)
from app.model_desk import ModelDesk
from app.search import SearchHit
from app.sending import Sending
from app.session_changes import (
    CacheWasCleared,
    ConversationsChanged,
    ModelState,
    SessionChange,
    StatsChanged,
)
from app.settings import SettingsStore
from app.shown_chat import ShownChat
from app.storage import ConversationStore
from app.texts import storable
from inference.config import KvSchemeName


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
        self._deleted: ConversationId | None = None
        self._deleted_was_shown = False
        self._is_closed = False
        self._announcer = announcer = Announcer()
        self._models = ModelDesk(settings, post=post, announcer=announcer, kv_dir=kv_dir)
        self._shown = ShownChat(
            store, settings, self._models, post=post, announcer=announcer, clock=clock
        )
        self._sending = Sending(
            self._shown, settings, self._models, post=post, announcer=announcer, clock=clock
        )

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
        return self._models.state

    @property
    def is_replying(self) -> bool:
        """Whether the reply at the end of the visible path is still in the making."""
        return self._shown.is_replying

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
        return self._announcer.stored(self._store.conversations) or []

    def search(self, text: str) -> list[SearchHit]:
        """Chats whose title or messages hold all words, the last used first."""
        return self._announcer.stored(lambda: self._store.search(storable(text))) or []

    # ------------------------------------------------------------------ chats

    def new_chat(self) -> None:
        """Show an empty chat; it is stored with its first message."""
        self._sending.leave()
        self._shown.draft_settings = ChatSettings()
        self._shown.show(None)

    def open_chat(self, conversation_id: ConversationId) -> None:
        """Show a chat; a reply of the one before goes on in the background."""
        self._sending.leave()
        self._shown.open(conversation_id)

    def rename_chat(self, conversation_id: ConversationId, title: str) -> None:
        """Give a chat another title; an empty one is ignored."""
        title = storable(" ".join(title.split())[:MAX_TITLE_CHARS])
        if not title or not self._announcer.done(
            lambda: self._store.rename(conversation_id, title)
        ):
            return
        if self._shown.id == conversation_id:
            self._shown.rename(title)
        self._announcer.notify(ConversationsChanged())

    def delete_chat(self, conversation_id: ConversationId) -> bool:
        """Take a chat off the list and end its replies; `undo_delete` brings it back.

        What models have read of it is forgotten for good.

        Returns:
            Whether it is off the list; if not, the listeners were told why.
        """
        if not self._announcer.done(lambda: self._store.delete(conversation_id)):
            return False
        self._deleted = conversation_id
        self._deleted_was_shown = self._shown.id == conversation_id
        if self._deleted_was_shown:
            self.new_chat()
        for live in self._shown.desk.replies_of(conversation_id):
            self._shown.desk.abandon(live)
        self._post(ForgetChat(conversation_id, is_deleted=True))
        self._announcer.notify(ConversationsChanged())
        return True

    def undo_delete(self) -> None:
        """Bring the last deleted chat back; show it if it was shown then."""
        deleted = self._deleted
        if deleted is None or not self._announcer.done(lambda: self._store.restore(deleted)):
            return
        self._deleted = None
        self._announcer.notify(ConversationsChanged())
        if self._deleted_was_shown:
            self.open_chat(deleted)

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

    def regenerate(self, message_id: MessageId) -> None:
        """Ask for another version of a reply, or for the reply that a question lacks.

        ChatIsFull says that there is no room for it.
        """
        self._sending.regenerate(message_id)

    def continue_in_new_chat(self, text: str, message_id: MessageId | None = None) -> bool:
        """Sum up the shown chat, and send `text` in a new one that begins with the summary.

        With an empty text the new chat is only shown. `stop` and opening another chat end it; then,
        and when it fails, the text comes back as DraftReturned. With the choice "new_chat", `send`
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
        leaf_id = conversation.newest_leaf_below(message_id)
        if self._announcer.done(lambda: self._store.set_leaf(conversation.id, leaf_id)):
            self._shown.show_branch(leaf_id)

    def stop(self) -> None:
        """End the summary, or the reply at the end of the visible path; its text is kept."""
        self._sending.cancel()
        self._shown.stop()

    def continue_as_plain_text(self) -> None:
        """Make the failed reply without a chat template, and all later ones of this chat."""
        if not self._sending.is_busy:
            self._shown.go_on_as_plain_text()

    # ------------------------------------------------------------------ engine

    def load_model(self, path: str) -> None:
        """Open this model; replies that run end as stopped, new ones wait for it."""
        self._models.load(path)
        self._model_changed()

    def set_kv_scheme(self, name: str) -> None:
        """Store keys and values of the model that is open in this way; it is opened again.

        Raises:
            SettingError: There is no such scheme.
        """
        self._models.set_kv_scheme(cast(KvSchemeName, name))  # the settings check it
        self._model_changed()

    def set_cache_budgets(
        self, device_bytes: int | None, ram_bytes: int | None, disk_bytes: int | None
    ) -> None:
        """Set how much may be kept of what models have read; None chooses.

        Another budget of the device has the model opened again.

        Raises:
            SettingError: A budget is out of range; nothing was changed.
        """
        self._models.set_cache_budgets(device_bytes, ram_bytes, disk_bytes)
        self._model_changed()

    def clear_chat_cache(self, conversation_id: ConversationId) -> None:
        """Forget what models have read of this chat alone; CacheWasCleared says when it is done."""
        self._post(ForgetChat(conversation_id))

    def forget_lost_chats(self) -> None:
        """Remove what is cached of chats that are not there any more; to be called at the start."""
        known = self._announcer.stored(self._store.conversations)
        if known is not None:
            self._post(KeepOnlyChats(tuple(chat.id for chat in known)))

    def clear_all_cache(self) -> None:
        """Forget what models have read of all chats; CacheWasCleared says when it is done."""
        self._post(ClearCache())

    def handle_event(self, event: Event) -> None:
        """Take an event of the engine thread, on the GUI thread."""
        if self._is_closed:
            return
        match event:
            case ModelLoading() | ModelReady() | ModelFailed() | ModelUnloaded():
                self._models.handle(event)
                self._model_changed()
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
                self._announcer.notify(StatsChanged(event))

    def close(self) -> None:
        """End all replies, store everything, forget deleted chats for good."""
        self._sending.close()
        self._is_closed = True
        self._shown.desk.abandon_all()
        self._settings.flush()
        self._announcer.done(self._store.purge_deleted)
        self._store.close()

    # ------------------------------------------------------------------ inside

    def _model_changed(self) -> None:
        self._sending.model_changed()
        self._shown.desk.model_changed()
