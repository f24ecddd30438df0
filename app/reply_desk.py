"""The replies that are being made. Pure Python, GUI thread.

The desk sends the engine's commands, holds replies back until a model is ready, stores what comes
each second, and settles each reply exactly once: by the engine's last event, by a stop of one that
was still waiting, or by being abandoned (its chat was deleted, or the person wrote on). Of one that was
abandoned while something of its text was held back only the engine knows the ids: its last event is taken
then, and a reply that follows it is not asked for before.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from app.chat_prompt import chat_prompt, system_prompt_of
from app.context_room import most_prompt_tokens
from app.conversation import Conversation, ConversationId, Message, MessageId
from app.errors import StorageError
from app.failures import NO_MODEL
from app.live_reply import LiveReply
from app.messages import (
    Failure,
    Generate,
    PromptRead,
    ReplyEnded,
    ReplyId,
    ReplyProgressed,
    StopReply,
)
from app.reply_variants import new_variants, variant_of
from app.reply_waits import why_waiting
from app.session_changes import (
    RepliesChanged,
    RepliesStored,
    ReplyGrew,
    ReplyPrefilling,
    ReplyWaits,
)
from app.surroundings import Surroundings
from inference.metrics import EngineStats, ModelInfo
from inference.request import PromptPart

ReplyEvent = PromptRead | ReplyProgressed | ReplyEnded

IN_MEMORY = (
    "The reply is only in memory. Leave Quire open: it is stored as soon as that is possible."
)
"""What to do where a reply cannot be stored."""

SAVE_SPACING_S = 0.05
"""Replies that stream side by side are stored one after the other: a long one takes milliseconds."""


class ReplyDesk:
    """All live replies of all chats.

    Args:
        around: What the session works with.
        settled: Called once with each reply's final message.
        parts_kept: Called with ids of a prompt that were stored with messages of a chat.
        is_shown: Whether this message ends the path that is on the screen.
    """

    def __init__(
        self,
        around: Surroundings,
        *,
        settled: Callable[[Message, Failure | None], None],
        parts_kept: Callable[[ConversationId, Mapping[MessageId, PromptPart], str], None],
        is_shown: Callable[[MessageId], bool],
    ) -> None:
        self._around = around
        self._post = around.post
        self._announcer = around.announcer
        self._settled = settled
        self._parts_kept = parts_kept
        self._is_shown = is_shown
        self._ids = itertools.count(1)
        self._live: dict[ReplyId, LiveReply] = {}
        self._abandoned: dict[
            ReplyId, LiveReply
        ] = {}  # of which the engine's last event is to come
        self._saved_at = -SAVE_SPACING_S
        self._kept_parts: tuple[Mapping[MessageId, PromptPart], str] | None = None
        self._unsaved: dict[MessageId, Message] = {}  # what the store refused, as it is now

    def next_id(self) -> ReplyId:
        """A name for a reply, unique while the program runs."""
        return ReplyId(next(self._ids))

    def reply_of(self, message_id: MessageId | None) -> LiveReply | None:
        """The live reply that fills this message."""
        for live in self._live.values():
            if live.message_id == message_id:
                return live
        return None

    def replies_of(self, conversation_id: ConversationId) -> list[LiveReply]:
        """The live replies of one chat."""
        return [r for r in self._live.values() if r.conversation_id == conversation_id]

    def num_running(self, conversation_id: ConversationId | None) -> Counter[MessageId | None]:
        """How many replies to each message of a chat are in the making."""
        return Counter(
            live.message.parent_id
            for live in self._live.values()
            if live.conversation_id == conversation_id
        )

    def caught_up(self, conversation: Conversation) -> Conversation:
        """A chat with all text that has come; itself if there is no more."""
        known = conversation.messages
        now = [live.message for live in self.replies_of(conversation.id)]
        grown = [message for message in now if known.get(message.id) is not message]
        return conversation.with_messages(grown) if grown else conversation

    def as_it_is(self, stored: Conversation) -> Conversation:
        """A chat from the store with all text that has come; what nobody makes any more was stopped."""
        refused = [known for known in self._unsaved.values() if known.id in stored.messages]
        self.save_again()
        stopped = [replace(message, status="stopped") for message in stored.unfinished()]
        return self.caught_up(stored.with_messages(stopped).with_messages(refused))

    def save_again(self) -> None:
        """Store what the store refused before, as soon as it can: its disk was full, say."""
        for message in list(self._unsaved.values()):
            try:
                self._around.store.update_message(message)
            except StorageError:
                continue  # that was told the first time; a shorter one may find room
            self._is_stored(message)

    def is_all_stored(self) -> bool:
        """Whether the store has all that has ended, after one more try."""
        self.save_again()
        return not self._unsaved

    def chats(self) -> frozenset[ConversationId]:
        """The chats in which a reply is being made."""
        return frozenset(live.conversation_id for live in self._live.values())

    def start(
        self,
        message: Message,
        conversation: Conversation,
        *,
        as_plain_text: bool = False,
        variant: int = 0,
    ) -> None:
        """Ask for the reply that fills `message`, now or as soon as a model is ready."""
        live = LiveReply(
            self.next_id(),
            message,
            history=conversation.path_to(message.parent_id),
            settings=conversation.settings,
            as_plain_text=as_plain_text,
            variant=variant,
        )
        self._live[live.reply_id] = live
        self._announcer.notify(RepliesChanged())
        self.model_changed()

    def stop(self, live: LiveReply) -> None:
        """End a reply; what there is of it is kept."""
        if live.key is None:
            self._settle(live, ReplyEnded(live.reply_id, "aborted", live.metrics))
        else:
            self._post(StopReply(live.reply_id))

    def abandon(self, live: LiveReply) -> None:
        """End a reply at once, without waiting for the engine's word; it is kept as stopped."""
        if live.key is not None:
            self._post(StopReply(live.reply_id))
            if live.lacks_ids:
                self._abandoned[live.reply_id] = live
        self._settle(live, ReplyEnded(live.reply_id, "aborted", live.metrics))

    def abandon_below(self, message: Message) -> None:
        """End the replies on all branches through this message at once."""
        for live in self.replies_of(message.conversation_id):
            if any(known.id == message.id for known in live.history):
                self.abandon(live)

    def abandon_all(self) -> None:
        """End all replies at once."""
        for live in list(self._live.values()):
            self.abandon(live)

    def handle(self, event: ReplyEvent) -> None:
        """Take one event of the engine thread about a reply."""
        live = self._live.get(event.reply_id)
        if live is None:
            self._take_late(event)
            return
        match event:
            case PromptRead():
                self._keep_parts(live, event)
            case ReplyProgressed():
                self._progress(live, event)
            case ReplyEnded():
                self._settle(live, event)

    def note_stats(self, stats: EngineStats) -> None:
        """Tell if the shown reply waits, by the newest numbers of the engine."""
        self.save_again()
        live = next((it for it in self._live.values() if self._is_shown(it.message_id)), None)
        if live is None:
            return
        others = [it for it in self._live.values() if it is not live]
        reason = why_waiting(
            live,
            others,
            stats,
            now=self._around.clock(),
            most_tokens=lambda: self._most_tokens(live),
        )
        if reason is not None:
            self._announcer.notify(ReplyWaits(live.message_id, reason))

    def model_changed(self) -> None:
        """Send what waits for a model, or fail it if none will come."""
        model = self._around.models.state
        for live in [live for live in self._live.values() if live.key is None]:
            if model.info is not None and self._follows_abandoned(live):
                continue  # until the engine has said the last word about that
            if model.info is not None:
                self._send(live, model.info)
            elif model.kind != "loading":
                self._fail(live, model.failure or NO_MODEL)

    # ------------------------------------------------------------------ one reply's life

    def _send(self, live: LiveReply, info: ModelInfo) -> None:
        general = self._around.settings.value
        prompt = chat_prompt(live.history, settings=live.settings, general=general, info=info)
        live.sent(prompt, info.fingerprint, self._around.clock())
        self._post(
            Generate(
                live.reply_id,
                live.conversation_id,
                prompt.messages,
                variant_of(live.settings.sampling or general.sampling, live.variant),
                as_plain_text=live.as_plain_text and not info.has_chat_template,
                leave_out=prompt.leave_out,
                left_out=prompt.left_out,
            )
        )

    def _most_tokens(self, live: LiveReply) -> int:
        system_prompt = system_prompt_of(live.settings, self._around.settings.value)
        return most_prompt_tokens(live.history, system_prompt=system_prompt, key=live.key or "")

    def _follows_abandoned(self, live: LiveReply) -> bool:
        ending = {abandoned.message_id for abandoned in self._abandoned.values()}
        return bool(ending) and any(known.id in ending for known in live.history)

    def _take_late(self, event: ReplyEvent) -> None:
        """Of a reply that was abandoned: the engine did not know yet."""
        abandoned = self._abandoned.get(event.reply_id)
        if abandoned is None:
            return
        if isinstance(event, ReplyProgressed):
            abandoned.grow(event, self._around.clock())
        elif isinstance(event, ReplyEnded):
            del self._abandoned[event.reply_id]
            # Stopped is what was told, whatever it came to since.
            message = abandoned.ended(replace(event, finish_reason="aborted", failure=None))
            self._save(message)
            self._settled(message, None)
            for live in self._live.values():
                if live.key is None:
                    live.knows_better(message)
            self.model_changed()

    def _keep_parts(self, live: LiveReply, event: PromptRead) -> None:
        parts = live.read(event)
        key = live.key
        # Replies that were asked for at once bring the same parts.
        if parts and key is not None and self._kept_parts != (parts, key):
            self._kept_parts = (parts, key)
            self._announcer.done(lambda: self._around.store.set_parts(parts, key))
            self._parts_kept(live.conversation_id, parts, key)

    def _progress(self, live: LiveReply, event: ReplyProgressed) -> None:
        now = self._around.clock()
        live.grow(event, now)
        if self._is_shown(live.message_id):
            if event.text:
                self._announcer.notify(ReplyGrew(live.message_id, event.text, event.metrics))
            elif not event.token_ids:
                self._announcer.notify(
                    ReplyPrefilling(
                        live.message_id, event.prefilled_tokens, event.metrics.prompt_tokens
                    )
                )
        due = None if 0 <= now - self._saved_at < SAVE_SPACING_S else live.due(now)
        if due is not None:
            self._saved_at = now
            self._save(due)

    def _fail(self, live: LiveReply, failure: Failure) -> None:
        self._settle(live, ReplyEnded(live.reply_id, "error", live.metrics, failure))

    def _settle(self, live: LiveReply, event: ReplyEnded) -> None:
        del self._live[live.reply_id]
        message = live.ended(event)
        self._save(message)
        self._settled(message, event.failure)
        self._announcer.notify(RepliesChanged())

    def _save(self, message: Message) -> None:
        try:
            self._around.store.update_message(message)
        except StorageError as error:
            self._unsaved[message.id] = message
            self._announcer.storage_failed(StorageError(str(error), hint=IN_MEMORY))
        else:
            self._is_stored(message)

    def _is_stored(self, message: Message) -> None:
        if self._unsaved.pop(message.id, None) is not None and not self._unsaved:
            self._announcer.notify(RepliesStored())

    def variant_numbers(self, conversation: Conversation, replies: Sequence[Message]) -> list[int]:
        """For each of several new replies to one question a number whose seed no other version has."""
        if len(replies) == 1:
            return [0]
        versions = conversation.versions(replies[0].id)
        metrics = [conversation.messages[version].metrics for version in versions]
        seeds = {known.seed for known in metrics if known is not None}
        params = conversation.settings.sampling or self._around.settings.value.sampling
        return new_variants(params, seeds, len(replies))
