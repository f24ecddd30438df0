"""The chat that is on the screen: its path, what is said in it, and its replies. Pure Python, GUI thread.

What a person wrote is stored before the engine sees it. A failure to store never raises out of
here: listeners get StorageFailed, and what could not be stored did not happen.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.context_room import left_out_mark
from app.conversation import ChatSettings, Conversation, ConversationId, Message, MessageId
from app.messages import Failure
from app.prompting import title_from
from app.reply_desk import ReplyDesk
from app.session_changes import (
    ConversationsChanged,
    ConversationShown,
    MessageAdded,
    MessageChanged,
    ReplyStarted,
)
from app.surroundings import Surroundings
from app.texts import is_blank, storable
from inference.request import PromptPart


class ShownChat:
    """One chat, or a new one that is still empty.

    Args:
        around: What the session works with.

    Attributes:
        desk: The replies in the making, of other chats too.
        draft_settings: Of a chat that is still empty.
    """

    def __init__(self, around: Surroundings) -> None:
        self.draft_settings = ChatSettings()
        self._store = around.store
        self._announcer = around.announcer
        self._clock = around.clock
        self._conversation: Conversation | None = None
        self._plain_text_chats: set[ConversationId] = set()
        self.desk = ReplyDesk(
            around,
            settled=self._reply_settled,
            parts_kept=self._parts_kept,
            is_shown=self._is_shown,
        )

    # ------------------------------------------------------------------ what is there

    @property
    def conversation(self) -> Conversation | None:
        """The chat, with all text that has come; None is a new, empty one."""
        conversation = self._conversation
        if conversation is not None:
            self._conversation = self.desk.caught_up(conversation)
        return self._conversation

    def path(self) -> list[Message]:
        """The visible chat, oldest message first."""
        return self.path_to(self.leaf_id)

    def path_to(self, message_id: MessageId | None) -> list[Message]:
        """The messages down to this one."""
        conversation = self.conversation
        return conversation.path_to(message_id) if conversation else []

    def message(self, message_id: MessageId) -> Message | None:
        """A message of the chat, whatever branch it is on."""
        conversation = self.conversation
        return conversation.messages.get(message_id) if conversation else None

    @property
    def leaf_id(self) -> MessageId | None:
        """The end of the visible path; None while the chat is empty."""
        return None if self._conversation is None else self._conversation.leaf_id

    @property
    def id(self) -> ConversationId | None:
        """The chat's id; None while it is empty."""
        return None if self._conversation is None else self._conversation.id

    @property
    def settings(self) -> ChatSettings:
        """The chat's own settings."""
        return self._conversation.settings if self._conversation else self.draft_settings

    @property
    def is_plain_text(self) -> bool:
        """Whether this chat goes on without a chat template."""
        return self.id in self._plain_text_chats

    @property
    def is_replying(self) -> bool:
        """Whether the reply at the end of the path is still in the making."""
        return self.desk.reply_of(self.leaf_id) is not None

    @property
    def grows_elsewhere(self) -> bool:
        """Whether the reply at the end of the path is being made by another process."""
        leaf = self.message(self.leaf_id) if self.leaf_id is not None else None
        return leaf is not None and leaf.status == "streaming" and not self.is_replying

    def running_versions(self) -> dict[MessageId, int]:
        """How many versions of a message are in the making, itself counted; for messages of the path."""
        running = self.desk.num_running(self.id)
        path = self.path() if running else []
        return {
            message.id: running[message.parent_id]
            for message in path
            if message.role == "assistant" and running[message.parent_id]
        }

    # ------------------------------------------------------------------ what is shown

    def show(self, conversation: Conversation | None) -> None:
        """Show this chat from its beginning."""
        self._conversation = conversation
        self._announcer.notify(ConversationShown(conversation))

    def take(self, conversation: Conversation) -> None:
        """The chat is this now; who calls it tells the listeners what differs."""
        self._conversation = conversation

    def show_branch(self, leaf_id: MessageId) -> None:
        """Show the path that ends here."""
        conversation = self.conversation
        assert conversation is not None, "a branch belongs to the chat that is shown"
        self.show(replace(conversation, leaf_id=leaf_id))

    def show_version(self, message_id: MessageId) -> None:
        """Show the branch through this message of the chat, down to its newest end."""
        conversation = self.conversation
        assert conversation is not None, "a version belongs to the chat that is shown"
        turned = self._turned_to(conversation, message_id)
        if turned is not None:
            self.show(turned)

    def open(self, conversation_id: ConversationId, message_id: MessageId | None = None) -> None:
        """Show a stored chat, on the branch with this message; nothing happens if it is gone."""
        conversation = self._announcer.stored(lambda: self._store.load(conversation_id))
        if conversation is None:
            self._announcer.notify(ConversationsChanged())
            return
        conversation = self.desk.as_it_is(conversation)
        is_elsewhere = all(message.id != message_id for message in conversation.path())
        if message_id in conversation.messages and is_elsewhere:
            conversation = self._turned_to(conversation, message_id) or conversation
        self.show(conversation)

    def catch_up(self) -> None:
        """Show the chat anew if `ask` went on with it in another process."""
        conversation = self._conversation
        if conversation is None:
            return
        leaf_id = self._announcer.stored(lambda: self._store.leaf_of(conversation.id))
        if leaf_id is None or (leaf_id in conversation.messages and not self.grows_elsewhere):
            return
        self.interrupt()
        stored = self._announcer.stored(lambda: self._store.load(conversation.id))
        if stored is not None:
            self.show(self.desk.as_it_is(stored))

    def rename(self, title: str) -> None:
        """The chat has another title now."""
        if self._conversation is not None:
            self._conversation = replace(self._conversation, title=title)

    def set_settings(self, settings: ChatSettings) -> None:
        """Set the chat's own settings; they hold from the next reply on."""
        settings = replace(settings, system_prompt=storable(settings.system_prompt))
        conversation = self._conversation
        if conversation is None:
            self.draft_settings = settings
        elif self._announcer.done(lambda: self._store.set_settings(conversation.id, settings)):
            self._conversation = replace(conversation, settings=settings)

    # ------------------------------------------------------------------ what is said

    def say(self, text: str, parent_id: MessageId | None, *, is_edit: bool = False) -> bool:
        """Store a person's message after `parent_id` and ask for a reply.

        Returns:
            Whether it was stored.
        """
        self.interrupt()
        conversation = self.conversation
        if conversation is None:
            return self._begin_chat(self._new_conversation(storable(text)), text)
        message = self._announcer.stored(
            lambda: self._store.add_message(
                conversation.id, parent_id=parent_id, role="user", content=storable(text)
            )
        )
        if message is None:
            return False
        chat = conversation.with_message(message, as_leaf=True)
        if is_edit:
            self.show(chat)
        else:
            self._conversation = chat
            self._announcer.notify(MessageAdded(message))
        self._announcer.notify(ConversationsChanged())
        self._ask_for_replies(message.id)
        return True

    def begin_sequel(
        self, chat: Conversation, text: str, *, title: str, system_prompt: str
    ) -> bool:
        """Store and show a new chat with the settings of `chat` but for these, and say `text` in it.

        An empty text is not said.

        Returns:
            Whether all of it was stored; if not, nothing was.
        """
        settings = replace(chat.settings, system_prompt=storable(system_prompt))
        sequel = replace(self._new_conversation(title), title=title, settings=settings)
        if chat.id in self._plain_text_chats:
            self._plain_text_chats.add(sequel.id)
        return self._begin_chat(sequel, text)

    def say_instead(self, message: Message, text: str) -> bool:
        """Say something else in place of an own message; the replies to it that run end.

        Returns:
            Whether it was stored.
        """
        self.desk.abandon_below(message)
        return self.say(text, message.parent_id, is_edit=True)

    def answer_again(self, question_id: MessageId, num_replies: int = 1) -> bool:
        """Ask for more replies to this message, the first is shown; what is there stays as branches."""
        self.interrupt()
        self.show_branch(question_id)
        self._ask_for_replies(question_id, num_replies)
        return True

    def go_on_as_plain_text(self) -> None:
        """Make the failed reply without a chat template, and all later ones of this chat."""
        conversation = self.conversation
        if conversation is None or conversation.leaf_id is None or self.is_replying:
            return
        message = conversation.messages[conversation.leaf_id]
        if message.role != "assistant" or message.status != "error":
            return
        self._plain_text_chats.add(conversation.id)
        empty = replace(message, status="streaming", content="", metrics=None)
        self._begin([replace(empty, error=None, failure_kind=None)])

    def interrupt(self) -> None:
        """End the reply at the end of the path at once, if one is in the making."""
        live = self.desk.reply_of(self.leaf_id)
        if live is not None:
            self.desk.abandon(live)

    def stop(self) -> None:
        """End the reply at the end of the path; its text so far is kept."""
        live = self.desk.reply_of(self.leaf_id)
        if live is not None:
            self.desk.stop(live)

    def stop_versions(self, message_id: MessageId) -> None:
        """End all versions of this message that are in the making; their texts so far are kept."""
        conversation = self._conversation
        if conversation is not None and message_id in conversation.messages:
            for version in conversation.versions(message_id):
                live = self.desk.reply_of(version)
                if live is not None:
                    self.desk.stop(live)

    # ------------------------------------------------------------------ inside

    def _turned_to(self, conversation: Conversation, message_id: MessageId) -> Conversation | None:
        """The chat with the newest branch through a message as its path; None if that cannot be stored."""
        leaf_id = conversation.newest_leaf_below(message_id)
        if not self._announcer.done(lambda: self._store.set_leaf(conversation.id, leaf_id)):
            return None
        return replace(conversation, leaf_id=leaf_id)

    def _new_conversation(self, text: str) -> Conversation:
        now = self._clock()
        return Conversation(
            ConversationId(uuid.uuid4().hex),
            title_from(text),
            created_at=now,
            updated_at=now,
            settings=self.draft_settings,
        )

    def _begin_chat(self, chat: Conversation, text: str) -> bool:
        """Store and show a new chat that begins with this text, if any; gives whether it was stored."""

        def store() -> Conversation:
            with self._store.transaction():
                self._store.add_conversation(chat)
                if is_blank(text):
                    return chat
                message = self._store.add_message(
                    chat.id, parent_id=None, role="user", content=storable(text)
                )
            return chat.with_message(message, as_leaf=True)

        stored = self._announcer.stored(store)
        if stored is None:
            return False
        self.show(stored)
        self._announcer.notify(ConversationsChanged())
        if stored.leaf_id is not None:
            self._ask_for_replies(stored.leaf_id)
        return True

    def _ask_for_replies(self, question_id: MessageId, num_replies: int = 1) -> None:
        """All of them or none: if one cannot be stored, none is asked for."""
        conversation = self._conversation
        assert conversation is not None, "a reply belongs to the chat that is shown"
        replies = self._announcer.stored(
            lambda: self._store.add_replies(conversation.id, question_id, num_replies)
        )
        if replies:
            self._begin(replies)

    def _begin(self, replies: Sequence[Message]) -> None:
        """The first is shown; the others are its younger versions."""
        assert self._conversation is not None, "a reply belongs to the chat that is shown"
        conversation = self._conversation.with_messages(replies)
        conversation = self._conversation = replace(conversation, leaf_id=replies[0].id)
        self._announcer.notify(ReplyStarted(replies[0]))
        numbers = self.desk.variant_numbers(conversation, replies)
        for number, reply in zip(numbers, replies, strict=True):
            self.desk.start(reply, conversation, as_plain_text=self.is_plain_text, variant=number)

    def _is_shown(self, message_id: MessageId) -> bool:
        return self.leaf_id == message_id

    def _reply_settled(self, message: Message, failure: Failure | None) -> None:
        conversation = self._conversation
        if conversation is not None and conversation.id == message.conversation_id:
            self._conversation = conversation.with_message(message)
            path = self._conversation.path()
            if message in path:  # else it is a version that is not shown
                self._announcer.notify(MessageChanged(message, failure, left_out_mark(path)))

    def _parts_kept(
        self,
        conversation_id: ConversationId,
        parts: Mapping[MessageId, PromptPart],
        model_key: str,
    ) -> None:
        conversation = self._conversation
        if conversation is None or conversation.id != conversation_id:
            return
        for message_id, part in parts.items():
            message = conversation.messages[message_id]
            conversation = conversation.with_message(
                replace(message, part=part, model_key=model_key)
            )
        self._conversation = conversation
