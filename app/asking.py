"""How `ask` answers: opens the model, keeps the chat if asked to, streams, reports. No Qt.

Runs on the main thread; the engine is used directly, without the window's second thread.
"""

import argparse
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import psutil

from app.asked_chat import AskedChat
from app.asked_guesses import asked_draft, errors_name_draft, use_set_draft
from app.asked_notes import read_settings, tell_deleted, tell_unfinished
from app.asked_reply import REPLY_ID, AskedReply
from app.asked_room import is_too_long
from app.breaking_off import ending_at_once
from app.chat_prompt import chat_prompt
from app.cli import (
    EXIT_BROKEN_PIPE,
    EXIT_OK,
    BadInputError,
    complain,
    errors_name_options,
    output_exit_code,
    sampling_from,
    write_out,
)
from app.engine_like import EngineLike
from app.engine_setup import engine_config
from app.errors import AppError, ProfileError
from app.failures import is_scheme_refused
from app.live_reply import LiveReply
from app.logs import end_log, start_log
from app.paths import Paths
from app.preload import import_engine, weights_ahead
from app.settings import Settings
from app.starter_model import choose_model, find_starter_model
from inference.config import EngineConfig
from inference.errors import EngineError, InvalidRequestError
from inference.kernels.library import why_no_kernels
from inference.metrics import COMPATIBILITY_KERNELS, ModelInfo
from inference.request import TRYING_INT4, FinishReason, LoadProgress

logger = logging.getLogger(__name__)

DISK_TIMEOUT_S = 60.0


def open_engine(path: str, config: EngineConfig) -> EngineLike:
    """Open a model with the real engine."""
    told: set[str] = set()

    def tell(progress: LoadProgress) -> None:
        if progress.stage.startswith(TRYING_INT4) and not told:
            told.add(progress.stage)
            complain(f"{TRYING_INT4}; this is done once")

    # Some seconds in which nothing is printed, computed or stored: there is nothing to wait for.
    with weights_ahead(path, config):
        with ending_at_once():
            engine = import_engine()
        return engine.load(path, config, on_progress=tell)


def answer(
    options: argparse.Namespace,
    question: str,
    paths: Paths,
    *,
    opener: Callable[[str, EngineConfig], EngineLike] = open_engine,
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
        settings = read_settings(paths.settings_file)
        model = _model_path(options.model, settings)
        chat = AskedChat(paths.database_file, options.conversation)
        cleanup.callback(chat.close)
        # Checked before the model is opened, which takes seconds.
        params = sampling_from(options, chat.settings.sampling or settings.sampling)
        engine = _open(opener, model, settings, _kv_dir(options, paths), options)
        cleanup.callback(engine.close)
        use_set_draft(engine, options, model, settings)
        _tell_missing_kernels(engine.info, options.backend)
        _tell_kept_weights(engine.info, options.weights)
        _tell_converted(engine.info)
        _tell_fewer_threads(engine.info.num_threads, options.threads)
        reply = chat.begin(
            question,
            system_prompt=options.system,
            is_too_long=lambda asked: is_too_long(engine, asked, settings),
        )
        tell_unfinished(chat)
        info = engine.info
        prompt = chat_prompt(chat.history, settings=chat.settings, general=settings, info=info)
        live = LiveReply(REPLY_ID, reply, history=chat.history, settings=chat.settings)
        live.sent(prompt, info.fingerprint)
        answering = AskedReply(engine, chat, live, prompt, is_streaming=not options.json)
        code = answering.run(params)
        if options.json and code != EXIT_BROKEN_PIPE:
            reported = _print_report(live, answering.finish_reason, info)
            code = code or reported
        _wait_for_disk(engine, code)
        if options.conversation is not None and code != EXIT_BROKEN_PIPE:
            tell_deleted(chat)
            _tell_disk_problem(engine)
    return code


def _tell_missing_kernels(info: ModelInfo, backend: str) -> None:
    """Say why replies take longer than they need to, unless that was asked for."""
    why = why_no_kernels() if info.kernels == COMPATIBILITY_KERNELS and backend == "auto" else ""
    if why:
        logger.warning("Our kernels are not used: %s", why)
        complain(f"{COMPATIBILITY_KERNELS}, so replies take longer: {why}")


def _tell_kept_weights(info: ModelInfo, weights: str) -> None:
    """Say that there was nothing to round, if that was asked for."""
    if weights not in ("auto", "float") and not info.quantization.startswith(f"{weights} of "):
        complain(
            f"--weights {weights} changes nothing: it rounds weights that are floats, and those of"
            f" {info.name} are {info.quantization} already"
        )


def _tell_converted(info: ModelInfo) -> None:
    """Say what a file of a rare type costs: it takes longer to load, and more memory."""
    if info.converted:
        complain(f"there are no kernels for all weights of {info.name}: {info.converted}")


def _tell_fewer_threads(used: int, wanted: int | None) -> None:
    if wanted is not None and used < wanted:
        complain(f"--threads {wanted} is more than this computer can run at a time: {used} compute")


def _wait_for_disk(engine: EngineLike, code: int) -> None:
    """Give a slow disk its time: the answer is there, and the next question is to find its blocks."""
    if code != EXIT_OK:
        return
    try:
        is_kept = engine.flush(DISK_TIMEOUT_S)
    except KeyboardInterrupt:
        logger.info("Saving was broken off")
        return
    if not is_kept and not engine.stats().disk_problem:
        complain("the disk is slow: not all of this chat could be kept for the next question")


def _tell_disk_problem(engine: EngineLike) -> None:
    """Say why the next question of this chat will find less than it could; the answer is none the worse."""
    problem = engine.stats().disk_problem
    if problem:
        logger.warning("Blocks are not kept on disk: %s", problem)
        complain(problem)


def _kv_dir(options: argparse.Namespace, paths: Paths) -> Path | None:
    """Where blocks are kept; a question without a chat keeps none, and makes no folder either.

    What takes a while is remembered there, though: what int4 costs the model, and rounded weights.
    """
    is_rounded = options.weights not in ("auto", "float")
    is_wanted = options.conversation is not None or options.kv == "int4" or is_rounded
    if is_wanted:
        paths.prepare_cache()
    if is_wanted or os.path.isdir(paths.kv_dir):
        return paths.kv_dir
    return None


def _open(
    opener: Callable[[str, EngineConfig], EngineLike],
    model: str,
    settings: Settings,
    kv_dir: Path | None,
    options: argparse.Namespace,
) -> EngineLike:
    """Open the model; a way of storing that is only set, not asked for, may give way to another."""
    with errors_name_options():
        draft = asked_draft(options, model, settings)
        config = engine_config(
            settings,
            model,
            kv_dir=kv_dir,
            kv_scheme=options.kv,
            num_threads=options.threads,
            backend=options.backend,
            weights=options.weights,
            guess=options.guess,
            draft_model=draft,
            draft_tokens=options.draft_tokens,
        )
        with errors_name_draft(options, draft):
            try:
                return opener(model, config)
            except InvalidRequestError as error:
                if options.kv is not None or not is_scheme_refused(error):
                    raise
                complain(error.reason)
            return opener(model, replace(config, kv_scheme="auto"))


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
    return os.path.abspath(os.path.expanduser(choice.path))


def _print_report(live: LiveReply, reason: FinishReason, info: ModelInfo) -> int:
    metrics = live.metrics
    speedup = metrics.guess_speedup
    report = {
        "text": live.message.content,
        "finish_reason": reason,
        "prompt_tokens": metrics.prompt_tokens,
        "reused_tokens": metrics.reused_tokens,
        "reused_from": {
            "device": metrics.reused_device_tokens,
            "ram": metrics.reused_ram_tokens,
            "disk": metrics.reused_disk_tokens,
        },
        "reuse_stopped": metrics.reuse_stop,
        "completion_tokens": metrics.completion_tokens,
        "ttft_ms": metrics.ttft_ms,
        "prefill_tps": metrics.prefill_tps,
        "decode_tps": metrics.decode_tps,
        "drafted_tokens": metrics.drafted_tokens,
        "accepted_tokens": metrics.accepted_tokens,
        "verify_steps": metrics.verify_steps,
        "guess_speedup": None if speedup is None else round(speedup, 3),
        "load_ms": info.load_ms,
        "peak_rss_bytes": peak_rss_bytes(),
        "model": info.name,
        "backend": info.backend,
        "path": info.compute_path,
        "kernels": info.kernels,
        "threads": info.num_threads,
    }
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    try:
        write_out(json.dumps(report, ensure_ascii=not is_unicode) + "\n")
    except BrokenPipeError as error:
        return output_exit_code(error)
    return EXIT_OK


def peak_rss_bytes() -> int:
    """The most memory that this process has had resident."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
