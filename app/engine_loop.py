"""The engine thread's loop, without Qt: commands in, events out. Runs on the engine thread.

Everything that owns memory of the model lives inside `run`. The loop waits for a command when
there is nothing to do, and looks for commands between two steps while there is: so *stop* takes
at most one step. A newer load, an unload or the end of the program breaks off a load that runs.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import psutil

from app.failures import BUG, NO_MODEL, failure_from
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
    Shutdown,
    StatsSampled,
    StopReply,
    UnloadModel,
)
from inference.config import EngineConfig
from inference.errors import EngineError
from inference.metrics import EngineStats, ModelInfo, RequestMetrics
from inference.request import (
    FinishReason,
    GenerateRequest,
    LoadProgress,
    RequestId,
    StepOutput,
)

logger = logging.getLogger(__name__)

STATS_INTERVAL_S = 0.25


class EngineLike(Protocol):
    """What the loop needs of an engine."""

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""

    def add_request(self, request: GenerateRequest) -> RequestId:
        """Take a request, or refuse it before any work with an EngineError."""

    def step(self) -> list[StepOutput]:
        """One decode step or prefill chunk."""

    def abort(self, request_id: RequestId) -> object:
        """End a request: the next step gives its last output. Unknown ids are ignored."""

    def stats(self) -> EngineStats:
        """A snapshot."""

    def close(self) -> None:
        """Give all memory back."""


EngineFactory = Callable[[str, EngineConfig, Callable[[LoadProgress], None]], EngineLike]


class _LoadCancelled(Exception):  # noqa: N818  # not an error: a newer command came
    """Raised out of the progress callback to break off a load."""


class EngineLoop:
    """One engine at a time, and the replies it makes.

    Args:
        factory: Opens a model; called on the engine thread.
        emit: Takes each event; called on the engine thread.
        clock: Seconds, rising.
    """

    def __init__(
        self,
        factory: EngineFactory,
        emit: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._factory = factory
        self._emit = emit
        self._clock = clock
        self._commands: deque[Command] = deque()
        self._has_command = threading.Condition()
        self._engine: EngineLike | None = None
        self._path = ""
        self._replies: dict[RequestId, ReplyId] = {}
        self._metrics: dict[ReplyId, RequestMetrics] = {}
        self._asked: ReplyId | None = None  # on its way into the engine
        self._next_stats_at = 0.0
        self._was_working = False
        self._is_over = False

    def post(self, command: Command) -> None:
        """Queue a command; from any thread, returns at once."""
        with self._has_command:
            self._commands.append(command)
            self._has_command.notify()

    def run(self) -> None:
        """Serve until Shutdown. Never raises: what is unexpected ends the model, not the loop."""
        while not self._is_over:
            try:
                self._turn()
            except Exception:  # the loop's edge
                logger.exception("The engine thread met an unexpected error")
                self._fail_all()

    def _turn(self) -> None:
        """All commands that are there, then one step."""
        is_working = self._engine is not None and self._engine.has_work
        command = self._next_command(wait=not is_working)
        while command is not None and not self._is_over:
            self._handle(command)
            command = self._next_command(wait=False)
        if self._engine is not None and self._engine.has_work:
            for output in self._engine.step():
                self._report(output)
        self._sample_stats()

    def _next_command(self, *, wait: bool) -> Command | None:
        with self._has_command:
            while wait and not self._commands:
                self._has_command.wait()
            return self._commands.popleft() if self._commands else None

    def _handle(self, command: Command) -> None:
        match command:
            case LoadModel():
                self._load(command)
            case UnloadModel():
                self._close_engine()
                self._emit(ModelUnloaded())
            case Generate():
                self._generate(command)
            case StopReply():
                self._stop(command.reply_id)
            case _:  # Shutdown
                self._is_over = True
                self._close_engine()

    # ------------------------------------------------------------------ the model

    def _load(self, command: LoadModel) -> None:
        self._close_engine()
        self._path = command.path

        def report(progress: LoadProgress) -> None:
            self._give_way()
            self._emit(ModelLoading(command.path, progress.stage, progress.fraction))

        try:
            self._give_way()
            engine = self._factory(command.path, command.config, report)
        except _LoadCancelled:
            logger.info("A load was broken off")
        except EngineError as error:
            logger.warning("A model could not be opened: %s", error)
            self._emit(ModelFailed(command.path, failure_from(error)))
        else:
            self._engine = engine
            # The window knows the model by the path it asked for.
            self._emit(ModelReady(replace(engine.info, path=command.path)))
            self._next_stats_at = 0.0

    def _give_way(self) -> None:
        """Break off a load that a command in the queue has made useless."""
        useless_before = (LoadModel, UnloadModel, Shutdown)
        with self._has_command:
            if any(isinstance(command, useless_before) for command in self._commands):
                raise _LoadCancelled

    def _close_engine(self) -> None:
        """Running replies end as aborted, then the memory is given back."""
        engine = self._engine
        if engine is None:
            return
        for request_id in self._replies:
            engine.abort(request_id)
        if self._replies:
            for output in engine.step():  # nothing is left to compute: only the last outputs
                self._report(output)
        self._engine = None
        engine.close()

    def _fail_all(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            self._emit(ReplyEnded(asked, "error", RequestMetrics(), BUG))
        for request_id in list(self._replies):
            self._end(request_id, "error", BUG)
        engine, self._engine = self._engine, None
        try:
            if engine is not None:
                engine.close()
        except Exception:  # the loop's edge
            logger.exception("The engine could not be closed")
        if not self._is_over:
            self._emit(ModelFailed(self._path, BUG))

    # ------------------------------------------------------------------ replies

    def _generate(self, command: Generate) -> None:
        engine = self._engine
        if engine is None:
            self._emit(ReplyEnded(command.reply_id, "error", RequestMetrics(), NO_MODEL))
            return
        request = GenerateRequest(
            command.conversation_id,
            messages=command.messages,
            params=command.params,
            plain_text=command.as_plain_text,
        )
        self._asked = command.reply_id
        try:
            self._replies[engine.add_request(request)] = command.reply_id
        except EngineError as error:
            self._emit(ReplyEnded(command.reply_id, "error", RequestMetrics(), failure_from(error)))
        self._asked = None

    def _stop(self, reply_id: ReplyId) -> None:
        for request_id, known in list(self._replies.items()):
            if known == reply_id and self._engine is not None:
                self._engine.abort(request_id)

    def _report(self, output: StepOutput) -> None:
        reply_id = self._replies.get(output.request_id)
        if reply_id is None:
            return  # not one of ours
        self._metrics[reply_id] = output.metrics
        if output.text or output.token_ids or output.finish_reason is None:
            self._emit(
                ReplyProgressed(
                    reply_id,
                    output.text,
                    output.token_ids,
                    output.prefilled_tokens,
                    output.metrics,
                )
            )
        if output.finish_reason is not None:
            failure = None
            if output.finish_reason == "error":
                failure = BUG if output.error is None else failure_from(output.error)
            self._end(output.request_id, output.finish_reason, failure, output.reply_token_ids)

    def _end(
        self,
        request_id: RequestId,
        reason: FinishReason,
        failure: Failure | None = None,
        token_ids: tuple[int, ...] | None = None,
    ) -> None:
        reply_id = self._replies.pop(request_id)
        metrics = self._metrics.pop(reply_id, RequestMetrics())
        self._emit(ReplyEnded(reply_id, reason, metrics, failure, token_ids))

    # ------------------------------------------------------------------ numbers

    def _sample_stats(self) -> None:
        """At most four times a second while it works, and once when it falls idle."""
        engine = self._engine
        if engine is None:
            return
        now = self._clock()
        is_working = engine.has_work
        fell_idle = self._was_working and not is_working
        self._was_working = is_working
        if now >= self._next_stats_at or fell_idle:
            self._next_stats_at = now + STATS_INTERVAL_S
            self._emit(
                StatsSampled(
                    engine.stats(),
                    psutil.Process().memory_info().rss,
                    psutil.virtual_memory().total,
                )
            )
