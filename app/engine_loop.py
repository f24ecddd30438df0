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
from pathlib import Path

import psutil

from app.context_room import has_room
from app.engine_guesses import EngineGuesses
from app.engine_like import EngineFactory, EngineLike, ModelCheck
from app.engine_replies import EngineReplies
from app.failures import BUG, LESS_MEMORY, failure_from, is_scheme_refused
from app.kept_blocks import forget_all, forget_chat, keep_only
from app.messages import (
    CacheCleared,
    ClearCache,
    Command,
    Event,
    FindDrafts,
    ForgetChat,
    Generate,
    KeepOnlyChats,
    LoadModel,
    MeasurePrompt,
    ModelFailed,
    ModelLoading,
    ModelReady,
    ModelUnloaded,
    PromptMeasured,
    SetCacheBudgets,
    SetGuessing,
    Shutdown,
    StatsSampled,
    StopReply,
    UnloadModel,
)
from inference.errors import EngineError
from inference.request import LoadProgress

logger = logging.getLogger(__name__)

STATS_INTERVAL_S = 0.25
TEND_INTERVAL_S = 0.05


class _LoadCancelled(Exception):  # noqa: N818  # not an error: a newer command came
    """Raised out of the progress callback to break off a load."""


class EngineLoop:
    """One engine at a time, and the replies it makes.

    Args:
        factory: Opens a model; called on the engine thread.
        emit: Takes each event; called on the engine thread.
        clock: Seconds, rising.
        kv_dir: Where blocks are kept on disk; None if they are not.
        check: Looks at a model before another is closed for it.
    """

    def __init__(
        self,
        factory: EngineFactory,
        emit: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        kv_dir: Path | None = None,
        check: ModelCheck | None = None,
    ) -> None:
        self._factory = factory
        self._check = check
        self._kv_dir = kv_dir
        self._emit = emit
        self._clock = clock
        self._commands: deque[Command] = deque()
        self._has_command = threading.Condition()
        self._engine: EngineLike | None = None
        self._ready: ModelReady | None = None  # what was said of that one
        self._path = ""
        self._replies = EngineReplies(emit)
        self._guesses = EngineGuesses(emit)
        self._next_stats_at = 0.0
        self._was_busy = False
        self._needs_tending = False
        self._is_over = False
        self._disk_problem = ""
        self._forgotten_early: set[str] = set()

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
        """All commands that are there, then one step, or what there is to put in order."""
        command = self._next_command(self._patience_s())
        while command is not None and not self._is_over:
            self._handle(command)
            command = self._next_command(0.0)
        if self._engine is not None and self._engine.has_work:
            for output in self._engine.step():
                self._replies.report(output)
        if self._engine is not None and not self._engine.has_work:
            self._needs_tending = self._engine.tend()
            self._guesses.tend(self._engine)
        self._sample_stats()

    def _patience_s(self) -> float | None:
        """How long to wait for a command; None is for as long as it takes."""
        if self._engine is None:
            return None
        if self._engine.has_work or self._guesses.has_work:
            return 0.0
        return TEND_INTERVAL_S if self._needs_tending else None

    def _next_command(self, patience_s: float | None) -> Command | None:
        with self._has_command:
            self._has_command.wait_for(lambda: self._commands, patience_s)
            return self._commands.popleft() if self._commands else None

    def _handle(self, command: Command) -> None:
        match command:
            case LoadModel():
                self._load(command)
            case UnloadModel():
                self._close_engine()
                self._emit(ModelUnloaded())
            case Generate():
                self._replies.generate(self._engine, command)
            case StopReply():
                self._replies.stop(self._engine, command.reply_id)
            case MeasurePrompt():
                self._measure(command)
            case SetGuessing() | FindDrafts():
                self._guesses.take(self._engine, command)
            case ForgetChat() | KeepOnlyChats() | ClearCache() | SetCacheBudgets():
                self._keep_cache(command)
            case _:  # Shutdown
                self._is_over = True
                self._close_engine()

    # ------------------------------------------------------------------ the model

    def _load(self, command: LoadModel) -> None:
        if not self._is_worth_closing_for(command):
            return
        self._close_engine()
        self._path = command.path

        def report(progress: LoadProgress) -> None:
            self._give_way()
            self._forget_early()
            self._emit(ModelLoading(command.path, progress.stage, progress.fraction))

        try:
            self._give_way()
            engine = self._factory(command.path, command.config, report)
        except _LoadCancelled:
            logger.info("A load was broken off")
        except EngineError as error:
            logger.warning("A model could not be opened: %s", error)
            failure = failure_from(error)
            if failure.kind == "memory" and command.config.kv_cache_bytes is not None:
                failure = replace(failure, hint=LESS_MEMORY)
            is_refused = is_scheme_refused(error)
            self._emit(ModelFailed(command.path, failure, is_refused, command.config))
        else:
            self._engine = engine
            self._needs_tending = False
            # The window knows the model by the path it asked for.
            info = replace(engine.info, path=command.path)
            self._ready = ModelReady(info, command.config)
            self._emit(self._ready)
            self._next_stats_at = 0.0

    def _is_worth_closing_for(self, command: LoadModel) -> bool:
        """Whether the model that is open is to go: a broken file shows before, soon."""
        if self._engine is None or self._check is None:
            return True
        try:
            self._check(command.path)
        except EngineError as error:
            logger.warning("A model could not be opened, the one before stays: %s", error)
            failure = failure_from(error)
            failed = ModelFailed(command.path, failure, config=command.config, kept=self._ready)
            self._emit(failed)
            return False
        return True

    def _give_way(self) -> None:
        """Break off a load that a command in the queue has made useless."""
        useless_before = (LoadModel, UnloadModel, Shutdown)
        with self._has_command:
            if any(isinstance(command, useless_before) for command in self._commands):
                raise _LoadCancelled

    def _forget_early(self) -> None:
        """Remove files of chats that are deleted while a model loads; the rest when it is there."""
        with self._has_command:
            asked = {c.conversation_id for c in self._commands if isinstance(c, ForgetChat)}
        for conversation_id in asked - self._forgotten_early:
            forget_chat(None, self._kv_dir, conversation_id)
        self._forgotten_early = asked

    def _close_engine(self) -> None:
        """Running replies end as aborted, then the memory is given back."""
        engine = self._engine
        if engine is None:
            return
        self._replies.abort_all(engine)
        self._guesses.reset()
        self._engine = self._ready = None
        engine.close()

    def _fail_all(self) -> None:
        self._replies.fail_all()
        self._guesses.reset()
        engine, self._engine, self._ready = self._engine, None, None
        try:
            if engine is not None:
                engine.close()
        except Exception:  # the loop's edge
            logger.exception("The engine could not be closed")
        if not self._is_over:
            self._emit(ModelFailed(self._path, BUG))

    # ------------------------------------------------------------------ what is asked beside

    def _measure(self, command: MeasurePrompt) -> None:
        """Answered in any case: something may wait for it."""
        answer = PromptMeasured(command.measure_id, 0, 0, fits=True)
        if self._engine is not None:
            try:
                size = self._engine.measure(command.messages, plain_text=command.as_plain_text)
            except EngineError as error:
                logger.info("A prompt could not be measured: %s", type(error).__name__)
            else:
                fits = has_room(size.prompt_tokens, size.context_tokens)
                answer = PromptMeasured(
                    command.measure_id, size.prompt_tokens, size.context_tokens, fits
                )
        self._emit(answer)

    def _keep_cache(
        self, command: ForgetChat | KeepOnlyChats | ClearCache | SetCacheBudgets
    ) -> None:
        match command:
            case KeepOnlyChats():
                keep_only(self._kv_dir, command.conversation_ids)
            case ForgetChat():
                freed = forget_chat(self._engine, self._kv_dir, command.conversation_id)
                if not command.is_deleted:
                    self._emit(CacheCleared(command.conversation_id, freed))
            case ClearCache():
                self._emit(CacheCleared(None, forget_all(self._engine, self._kv_dir)))
            case SetCacheBudgets() if self._engine is not None:
                self._engine.set_cache_budgets(command.ram_bytes, command.disk_bytes)
        self._next_stats_at = 0.0  # the window shows what is cached

    # ------------------------------------------------------------------ numbers

    def _sample_stats(self) -> None:
        """At most four times a second while it works, and once when it falls idle."""
        engine = self._engine
        if engine is None:
            return
        now = self._clock()
        is_busy = engine.has_work or self._needs_tending
        fell_idle = self._was_busy and not is_busy
        self._was_busy = is_busy
        if now >= self._next_stats_at or fell_idle:
            self._next_stats_at = now + STATS_INTERVAL_S
            stats = engine.stats()
            self._log_disk_problem(stats.disk_problem)
            self._emit(
                StatsSampled(
                    stats,
                    psutil.Process().memory_info().rss,
                    psutil.virtual_memory().total,
                )
            )

    def _log_disk_problem(self, problem: str) -> None:
        """Once per problem; the settings tell the person."""
        if problem and problem != self._disk_problem:
            logger.warning("Blocks are not kept on disk: %s", problem)
        self._disk_problem = problem
