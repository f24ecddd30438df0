"""The engine thread as the window sees it: one queue in, one signal out.

The QThread object lives on the GUI thread; only `run` and what it calls are on the engine thread.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, QThread, Signal

from app.engine_like import EngineFactory, EngineLike, ModelCheck
from app.engine_loop import EngineLoop
from app.messages import Command, Shutdown
from app.preload import import_engine, weights_ahead
from inference.config import EngineConfig
from inference.request import LoadProgress

SHUTDOWN_TIMEOUT_S = 5.0


class EngineWorker(QThread):
    """Owns the engine for as long as the program runs.

    Args:
        engine_factory: Opens a model, on the engine thread; None takes the real engine, which
            is imported there, so that the window is on the screen before torch is loaded.
        kv_dir: Where blocks are kept on disk; None if they are not.
        check: Looks at a model before another is closed for it; None takes what fits the factory.

    Signals:
        event: An `app.messages.Event`; delivered to the GUI thread.
    """

    event = Signal(object)  # type: ignore[assignment]  # Qt calls its own event() in C++ still

    def __init__(
        self,
        engine_factory: EngineFactory | None = None,
        parent: QObject | None = None,
        *,
        kv_dir: Path | None = None,
        check: ModelCheck | None = None,
    ) -> None:
        super().__init__(parent)
        if engine_factory is None:
            engine_factory, check = open_engine, check_model
        self._loop = EngineLoop(engine_factory, self.event.emit, kv_dir=kv_dir, check=check)

    def post(self, command: Command) -> None:
        """Queue a command; returns at once."""
        self._loop.post(command)

    def run(self) -> None:
        """Serve commands until the end; Qt calls this on the engine thread."""
        threading.current_thread().name = "engine"  # in the log
        self._loop.run()

    def shutdown(self, timeout_s: float = SHUTDOWN_TIMEOUT_S) -> bool:
        """End the thread: replies end as aborted, the model is closed.

        A step that is stuck cannot be broken off safely; after the timeout the caller ends the
        process without waiting for it.

        Returns:
            Whether the thread has ended.
        """
        self.post(Shutdown())
        return bool(self.wait(round(timeout_s * 1000)))


def check_model(path: str) -> None:
    """Look at a model for the real engine.

    Raises:
        ModelFileError: It cannot be opened.
    """
    import_engine().check(path)


def open_engine(
    path: str, config: EngineConfig, on_progress: Callable[[LoadProgress], None]
) -> EngineLike:
    """Open a model with the real engine."""
    with weights_ahead(path, config):
        return import_engine().load(path, config, on_progress=on_progress)
