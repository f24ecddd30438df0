"""The replies that are being made, and the model that makes them. Pure Python, GUI thread.

The desk sends the engine's commands, holds replies back until a model is ready, stores what comes
each second, and settles each reply exactly once: by the engine's last event, by a stop of one that
was still waiting, or by being abandoned (its chat was deleted, or the person wrote on).
"""

import itertools
from collections.abc import Callable

from app.announcer import Announcer
from app.conversation import Conversation, ConversationId, Message, MessageId
from app.failures import NO_MODEL
from app.live_reply import LiveReply
from app.messages import (
    Command,
    Event,
    Failure,
    Generate,
    LoadModel,
    ModelFailed,
    ModelLoading,
    ModelReady,
    ModelUnloaded,
    ReplyEnded,
    ReplyId,
    ReplyProgressed,
    StatsSampled,
    StopReply,
)
from app.prompting import engine_messages
from app.session_changes import (
    ModelChanged,
    ModelState,
    ReplyGrew,
    ReplyPrefilling,
    StatsChanged,
)
from app.settings import MAX_RECENT_MODELS, SettingsStore
from app.storage import ConversationStore
from inference.config import EngineConfig
from inference.metrics import ModelInfo


class ReplyDesk:
    """All live replies of all chats.

    Args:
        store: Where replies are kept.
        settings: Sampling, system prompt and model of chats without their own.
        post: Sends a command to the engine thread.
        announcer: Tells the listeners.
        settled: Called once with each reply's final message.
        is_shown: Whether this message ends the path that is on the screen.
        clock: Seconds.

    Attributes:
        model: Which model is there, or on its way.
    """

    def __init__(
        self,
        store: ConversationStore,
        settings: SettingsStore,
        *,
        post: Callable[[Command], None],
        announcer: Announcer,
        settled: Callable[[Message, Failure | None], None],
        is_shown: Callable[[MessageId], bool],
        clock: Callable[[], float],
    ) -> None:
        self.model = ModelState()
        self._store = store
        self._settings = settings
        self._post = post
        self._announcer = announcer
        self._settled = settled
        self._is_shown = is_shown
        self._clock = clock
        self._ids = itertools.count(1)
        self._live: dict[ReplyId, LiveReply] = {}

    # ------------------------------------------------------------------ replies

    def reply_of(self, message_id: MessageId | None) -> LiveReply | None:
        """The live reply that fills this message."""
        for live in self._live.values():
            if live.message_id == message_id:
                return live
        return None

    def replies_of(self, conversation_id: ConversationId) -> list[LiveReply]:
        """The live replies of one chat."""
        return [r for r in self._live.values() if r.conversation_id == conversation_id]

    def start(
        self, message: Message, conversation: Conversation, *, as_plain_text: bool = False
    ) -> None:
        """Ask for the reply that fills `message`, now or as soon as a model is ready."""
        live = LiveReply(
            ReplyId(next(self._ids)),
            message,
            history=conversation.path_to(message.parent_id),
            settings=conversation.settings,
            as_plain_text=as_plain_text,
        )
        self._live[live.reply_id] = live
        if self.model.info is not None:
            self._send(live, self.model.info)
        elif self.model.kind != "loading":
            self._fail(live, self.model.failure or NO_MODEL)

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
        self._settle(live, ReplyEnded(live.reply_id, "aborted", live.metrics))

    def abandon_all(self) -> None:
        """End all replies at once."""
        for live in list(self._live.values()):
            self.abandon(live)

    # ------------------------------------------------------------------ the model

    def load_model(self, path: str) -> None:
        """Open a model; the one that is open is closed, its replies end as stopped."""
        settings = self._settings.value
        config = EngineConfig(
            context_tokens=settings.context_tokens, num_threads=settings.num_threads
        )
        self._set_model(ModelState("loading", path))
        self._post(LoadModel(path, config))

    def handle(self, event: Event) -> None:
        """Take one event of the engine thread."""
        match event:
            case ReplyProgressed():
                self._progress(event)
            case ReplyEnded():
                live = self._live.get(event.reply_id)
                if live is not None:
                    self._settle(live, event)
            case StatsSampled():
                self._announcer.notify(StatsChanged(event))
            case ModelUnloaded():
                if self.model.kind != "loading":
                    self._set_model(ModelState())
            case ModelLoading() | ModelReady() | ModelFailed():
                self._model_event(event)
            case _:
                pass  # PromptRead, PromptMeasured, CacheCleared: nobody listens yet

    def _model_event(self, event: ModelLoading | ModelReady | ModelFailed) -> None:
        path = event.info.path if isinstance(event, ModelReady) else event.path
        if path != self.model.path:
            return  # from a load that a newer one has replaced
        if isinstance(event, ModelLoading):
            self._set_model(ModelState("loading", path, event.stage, event.fraction))
        elif isinstance(event, ModelReady):
            self._set_model(ModelState("ready", path, info=event.info))
            self._remember(path)
            for live in self._waiting():
                self._send(live, event.info)
        else:
            self._set_model(ModelState("failed", path, failure=event.failure))
            for live in self._waiting():
                self._fail(live, event.failure)

    def _waiting(self) -> list[LiveReply]:
        return [live for live in self._live.values() if live.key is None]

    def _set_model(self, state: ModelState) -> None:
        self.model = state
        self._announcer.notify(ModelChanged(state))

    def _remember(self, path: str) -> None:
        others = [known for known in self._settings.value.recent_models if known != path]
        self._settings.change(model_path=path, recent_models=(path, *others)[:MAX_RECENT_MODELS])

    # ------------------------------------------------------------------ one reply's life

    def _send(self, live: LiveReply, info: ModelInfo) -> None:
        live.key = info.fingerprint
        settings = self._settings.value
        self._post(
            Generate(
                live.reply_id,
                live.conversation_id,
                engine_messages(
                    live.history,
                    system_prompt=live.settings.system_prompt or settings.system_prompt,
                    key=live.key,
                ),
                live.settings.sampling or settings.sampling,
                as_plain_text=live.as_plain_text and not info.has_chat_template,
            )
        )

    def _progress(self, event: ReplyProgressed) -> None:
        live = self._live.get(event.reply_id)
        if live is None:
            return  # abandoned; the engine did not know yet
        now = self._clock()
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
        if live.take_due(now):
            self._save(live.message)

    def _fail(self, live: LiveReply, failure: Failure) -> None:
        self._settle(live, ReplyEnded(live.reply_id, "error", live.metrics, failure))

    def _settle(self, live: LiveReply, event: ReplyEnded) -> None:
        del self._live[live.reply_id]
        message = live.ended(event)
        self._save(message)
        self._settled(message, event.failure)

    def _save(self, message: Message) -> None:
        self._announcer.done(lambda: self._store.update_message(message))
