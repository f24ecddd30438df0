"""`--self-test`: does this installation work, from the model's file to the window? Main thread."""

import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path

from app.asking import open_engine
from app.cli import EXIT_OK, complain, exit_code_of
from app.engine_like import EngineLike, outputs_of
from app.errors import AppError
from app.failures import terminal_words
from app.paths import Paths
from app.settings import Settings
from app.starter_model import choose_model, find_starter_model
from app.version import quire_version, version_of
from inference.config import EngineConfig, SamplingParams
from inference.errors import EngineError
from inference.request import ChatMessage, GenerateRequest

NUM_TOKENS = 8


class SelfTestError(Exception):
    """A part does not work; the message is one line."""


def self_test(
    open_and_close_window: Callable[[Paths], None],
    *,
    model: Path | None,
    profile: Path | None,
    opener: Callable[[str, EngineConfig], EngineLike] = open_engine,
) -> int:
    """Load a model, generate 8 tokens, open and close the window without a screen, report.

    Args:
        open_and_close_window: Opens the window of this profile, waits until it is painted, and
            closes it; raises if that fails.
        model: None takes the starter model.
        profile: None takes an empty one, removed afterwards.
        opener: Opens the model.

    Returns:
        The exit code; a failure prints one line on stderr.
    """
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    try:
        _print_versions()
        _try_model(model, opener)
        with tempfile.TemporaryDirectory(prefix="quire-") as folder:
            paths = Paths(profile or Path(folder))
            paths.prepare()
            open_and_close_window(paths)
        print("window: opened and closed")
    except EngineError as error:
        complain(f"self-test failed: {terminal_words(error)}")
        return exit_code_of(error)
    except (SelfTestError, AppError, ImportError, OSError) as error:
        complain(f"self-test failed: {error} {getattr(error, 'hint', '')}".strip())
        return exit_code_of(error)
    print("self-test passed")
    return EXIT_OK


def _print_versions() -> None:
    print(f"Quire {quire_version()}")
    print(f"Python {platform.python_version()} on {platform.platform()}")
    for name, distribution in (
        ("torch", "torch"),
        ("transformers", "transformers"),
        ("PySide6", "PySide6-Essentials"),
    ):
        print(f"{name} {version_of(distribution)}")


def _try_model(requested: Path | None, opener: Callable[[str, EngineConfig], EngineLike]) -> None:
    choice = choose_model(Settings(), requested, starter=find_starter_model())
    if choice.path is None:
        raise SelfTestError("the starter model is not installed, and no --model was given")
    engine = opener(str(choice.path), EngineConfig())
    try:
        info = engine.info
        print(f"model: {info.name}, {info.quantization}, loaded in {info.load_ms:.0f} ms")
        print(f"backend: {info.backend}")
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
        request = GenerateRequest(
            "self-test",
            messages=(ChatMessage("user", "Count from one to twenty in words."),),
            params=params,
            plain_text=not info.has_chat_template,
        )
        outputs = list(outputs_of(engine, request))
    finally:
        engine.close()
    last = outputs[-1]
    if last.error is not None:
        raise last.error
    if last.finish_reason not in ("length", "stop"):
        raise SelfTestError(f"the reply ended with {last.finish_reason!r}")
    rate = last.metrics.decode_tps
    print(
        f"generated {last.metrics.completion_tokens} tokens"
        + (f" at {rate:.1f} tokens/s" if rate is not None else "")
    )
