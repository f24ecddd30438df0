"""How `ask` answers: opens the model, keeps the chat if asked to, streams, reports. No Qt.

Runs on the main thread; the engine is used directly, without the window's second thread.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

import psutil

from app.asked_chat import AskedChat
from app.cli import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    BadInputError,
    complain,
    sampling_from,
)
from app.errors import AppError, ProfileError
from app.failures import failure_from
from app.live_reply import LiveReply
from app.logs import end_log, start_log
from app.messages import ReplyEnded, ReplyId, ReplyProgressed
from app.paths import Paths
from app.preload import import_engine
from app.prompting import engine_messages
from app.settings import Settings, SettingsStore
from app.starter_model import choose_model, find_starter_model
from app.texts import without_controls
from inference.config import EngineConfig, SamplingParams
from inference.errors import EngineError
from inference.metrics import ModelInfo, RequestMetrics
from inference.request import ChatMessage, FinishReason, StepOutput

logger = logging.getLogger(__name__)

_REPLY_ID = ReplyId(1)  # there is only one


class AskedEngine(Protocol):
    """What `ask` needs of an engine."""

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""

    def generate(
        self,
        *,
        conversation_id: str,
        messages: Sequence[ChatMessage],
        params: SamplingParams,
        plain_text: bool,
    ) -> Iterator[StepOutput]:
        """Make one reply; refuses at once what it cannot answer."""

    def close(self) -> None:
        """Give all memory back."""


def open_engine(path: str, config: EngineConfig) -> AskedEngine:
    """Open a model with the real engine."""
    return import_engine().load(path, config)


def answer(
    options: argparse.Namespace,
    question: str,
    paths: Paths,
    *,
    opener: Callable[[str, EngineConfig], AskedEngine] = open_engine,
) -> int:
    """Answer `question` as the options say; returns the exit code.

    Args:
        options: What `parse_ask_arguments` gave.
        question: Not empty.
        paths: Of the profile.
        opener: Opens the model.

    Raises:
        BadInputError, AppError, EngineError: For the caller to word in one line.
    """
    with contextlib.ExitStack() as cleanup:
        _prepare(paths, cleanup, is_needed=bool(options.profile or options.conversation))
        settings = SettingsStore(paths.settings_file).value
        model = _model_path(options.model, settings)
        chat = AskedChat(paths.database_file, options.conversation)
        cleanup.callback(chat.close)
        # Checked before the model is opened, which takes seconds.
        params = sampling_from(options, chat.settings.sampling or settings.sampling)
        engine = opener(
            model,
            EngineConfig(context_tokens=settings.context_tokens, num_threads=settings.num_threads),
        )
        cleanup.callback(engine.close)
        history = chat.say(question, system_prompt=options.system)
        live = LiveReply(_REPLY_ID, chat.begin_reply(), history=history, settings=chat.settings)
        live.key = engine.info.fingerprint
        answering = _Answering(engine, chat, live, is_streaming=not options.json)
        general = settings.system_prompt
        code = answering.run(
            engine_messages(
                history, system_prompt=chat.settings.system_prompt or general, key=live.key
            ),
            params,
        )
        if options.json and code != EXIT_BROKEN_PIPE:
            code = _print_report(live, answering.finish_reason, engine.info) or code
    return code


def _prepare(paths: Paths, cleanup: contextlib.ExitStack, *, is_needed: bool) -> None:
    """Make the profile's folders and open its log; a bare question works without them too."""
    try:
        paths.prepare()
    except ProfileError:
        if is_needed:
            raise
        # Without any handler warnings would land on the terminal.
        logging.getLogger().addHandler(logging.NullHandler())
    else:
        cleanup.callback(end_log, start_log(paths.log_file))
        cleanup.push(_log_bug)  # while the log is still open


def _log_bug(
    kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    expected = (BadInputError, AppError, EngineError)
    if isinstance(error, Exception) and not isinstance(error, expected):
        logger.critical("Quire ended with an error", exc_info=error)


def _model_path(requested: Path | None, settings: Settings) -> str:
    choice = choose_model(settings, requested, starter=find_starter_model())
    if choice.path is None:
        raise BadInputError(choice.notice or "no model is installed; name one with --model")
    if choice.notice:
        complain(choice.notice)
    # As the window names it, so that one chat's token ids are known again.
    return os.path.abspath(choice.path.expanduser())


class _Answering:
    """One reply on its way from the engine to the chat and to standard output.

    Attributes:
        finish_reason: Why it ended.
    """

    def __init__(
        self, engine: AskedEngine, chat: AskedChat, live: LiveReply, *, is_streaming: bool
    ) -> None:
        self.finish_reason: FinishReason = "aborted"
        self._engine = engine
        self._chat = chat
        self._live = live
        self._is_streaming = is_streaming
        self._is_ended = False

    def run(self, prompt: tuple[ChatMessage, ...], params: SamplingParams) -> int:
        """Make the whole reply; returns the exit code. Whatever ends it, what came is kept."""
        info = self._engine.info
        if not info.has_chat_template:
            complain(f"{info.name} is not made for chats; it continues the text.")
        try:
            for output in self._engine.generate(
                conversation_id=self._live.conversation_id,
                messages=prompt,
                params=params,
                plain_text=not info.has_chat_template,
            ):
                self._take(output)
            if self._is_streaming:
                _write("\n")
        except KeyboardInterrupt:
            self._end("aborted", self._live.metrics)
            return EXIT_INTERRUPTED
        except BrokenPipeError:
            self._end("aborted", self._live.metrics)
            return EXIT_BROKEN_PIPE
        except EngineError as error:
            self._end("error", self._live.metrics, error)
            raise
        return EXIT_OK

    def _take(self, output: StepOutput) -> None:
        now = time.time()
        self._live.grow(
            ReplyProgressed(
                _REPLY_ID,
                output.text,
                output.token_ids,
                output.prefilled_tokens,
                output.metrics,
            ),
            now,
        )
        if output.error is not None:
            raise output.error
        if output.finish_reason is not None:
            self._end(output.finish_reason, output.metrics, token_ids=output.reply_token_ids)
        elif self._live.take_due(now):
            self._chat.save(self._live.message)
        if self._is_streaming and output.text:
            _write(output.text)

    def _end(
        self,
        reason: FinishReason,
        metrics: RequestMetrics,
        error: EngineError | None = None,
        token_ids: tuple[int, ...] | None = None,
    ) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self.finish_reason = reason
        failure = None if error is None else failure_from(error)
        self._chat.save(
            self._live.ended(ReplyEnded(_REPLY_ID, reason, metrics, failure, token_ids))
        )


def _print_report(live: LiveReply, reason: FinishReason, info: ModelInfo) -> int:
    metrics = live.metrics
    report = {
        "text": live.message.content,
        "finish_reason": reason,
        "prompt_tokens": metrics.prompt_tokens,
        "reused_tokens": metrics.reused_tokens,
        "completion_tokens": metrics.completion_tokens,
        "ttft_ms": metrics.ttft_ms,
        "prefill_tps": metrics.prefill_tps,
        "decode_tps": metrics.decode_tps,
        "load_ms": info.load_ms,
        "peak_rss_bytes": peak_rss_bytes(),
        "model": info.name,
        "backend": info.backend,
    }
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    try:
        _write(json.dumps(report, ensure_ascii=not is_unicode) + "\n")
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    return EXIT_OK


def peak_rss_bytes() -> int:
    """The most memory that this process has had resident."""
    if sys.platform == "win32":  # pragma: no cover
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _write(text: str) -> None:
    """To standard output, at once.

    Raises:
        BrokenPipeError: Nobody reads it; from then on output goes nowhere.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors == "strict":
        out.reconfigure(errors="replace")  # an old terminal's encoding lacks most characters
    try:
        out.write(without_controls(text) if out.isatty() else text)
        out.flush()
    except OSError as error:
        # Else the interpreter would complain when it flushes at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        raise BrokenPipeError from error
