"""Opens the window of a profile and runs it until it is closed. Main thread."""

import gc
import logging
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import psutil
from PySide6.QtCore import (
    QEventLoop,
    QMessageLogContext,
    QTimer,
    QtMsgType,
    qInstallMessageHandler,
)
from PySide6.QtWidgets import QApplication

from app.cli import complain
from app.errors import AppError, StorageError
from app.paths import Paths
from ui.dialogs.error import ErrorDialog
from ui.interrupts import Interrupts
from ui.look.fonts import load_fonts
from ui.look.theme import Theme
from ui.program import Program
from ui.single_instance import SingleInstance
from ui.uncaught import UncaughtErrors

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1
TRACE_VARIABLE = "QUIRE_TRACE_STARTUP"
_PAINT_TIMEOUT_MS = 20_000
_SWITCH_S = 0.0005
"""After so long a thread that computes in Python gives the interpreter's lock to one that waits for it.
With Python's own 5 ms the window stands still for up to 90 ms while a model is opened: whoever paints
gives the lock back and wants it again dozens of times. With 0.5 ms it is half of that or less."""

_LEVELS = {
    QtMsgType.QtDebugMsg: logging.DEBUG,
    QtMsgType.QtInfoMsg: logging.INFO,
    QtMsgType.QtWarningMsg: logging.WARNING,
    QtMsgType.QtCriticalMsg: logging.ERROR,
    QtMsgType.QtFatalMsg: logging.CRITICAL,
}


class WindowError(AppError):
    """The window did not come up."""


def run(paths: Paths, *, model_path: Path | None = None) -> int:
    """Show the window and serve it until it is closed.

    Args:
        paths: The profile, prepared.
        model_path: The model to open; None takes the last one, or the starter model.

    Returns:
        The exit code; 0 as well when another Quire has the profile and comes forward.
    """
    qInstallMessageHandler(_log_qt_message)
    application = make_application()
    instance = SingleInstance(paths.socket_name)
    if not instance.claim():
        return _tell_other(instance)
    try:
        program = Program(application, paths)
    except StorageError as error:
        _tell_storage_error(error, paths)
        return EXIT_FAILED
    instance.raise_requested.connect(program.bring_forward)
    program.window.first_painted.connect(_note_first_paint)
    program.window.first_painted.connect(_spare_collector)
    program.window.first_painted.connect(lambda: program.start_engine(model_path))
    interrupts = Interrupts(application.quit)
    uncaught = UncaughtErrors(program.controller.tell_bug)
    program.show()
    code = application.exec()
    uncaught.close()
    interrupts.close()
    instance.release()
    if not program.close():
        logging.shutdown()
        os._exit(code)  # the engine thread is stuck; everything of the person is stored
    return code


def open_and_close(paths: Paths) -> None:
    """Open the window of this profile without an engine, wait until it is painted, close it.

    Raises:
        AppError: It was not painted, or the profile cannot be used.
    """
    application = make_application()
    program = Program(application, paths)
    loop = QEventLoop()
    program.window.first_painted.connect(loop.quit)
    QTimer.singleShot(_PAINT_TIMEOUT_MS, loop.quit)
    program.show()
    loop.exec()
    was_painted = program.window.was_painted
    program.window.close()
    program.close()
    if not was_painted:
        raise WindowError("The window was not painted in time.")


def make_application() -> QApplication:
    """The Qt application with our name and fonts; the one that runs if there is one.

    Its thread has not to wait long for the interpreter's lock from now on.
    """
    sys.setswitchinterval(_SWITCH_S)
    known = QApplication.instance()
    if isinstance(known, QApplication):
        application = known
    else:
        application = QApplication([sys.argv[0] if sys.argv else "quire"])
    application.setApplicationName("quire")
    application.setApplicationDisplayName("Quire")
    application.setDesktopFileName("quire")
    load_fonts()
    return application


def _tell_other(instance: SingleInstance) -> int:
    """Another process has the profile: say what it does, and give the exit code."""
    if instance.is_answered:
        logger.info("This profile is open already; its window was asked to come forward")
        complain("Quire is open already; its window comes forward.")
        return EXIT_OK
    logger.error("Another process has this profile and does not answer")
    complain(
        "Quire is open already, but does not answer. Wait a moment, or end it, and start again."
    )
    return EXIT_FAILED


def _note_first_paint() -> None:
    since_start_ms = (time.time() - psutil.Process().create_time()) * 1000
    logger.info("Window painted %.0f ms after the process started", since_start_ms)
    if os.environ.get(TRACE_VARIABLE):
        sys.stderr.write(f"window painted after {since_start_ms:.0f} ms\n")


def _spare_collector() -> None:
    """Take what a start makes, and keeps, out of the garbage collector's sight.

    To search these 50,000 objects stops all threads for 25 to 50 ms, each time; `first_import` of the
    models does the same for what comes with a model, which may be long after the first chat is read.
    """
    gc.freeze()


def _tell_storage_error(error: StorageError, paths: Paths) -> None:
    dialog = ErrorDialog(
        Theme(),
        "Your chats cannot be opened",
        f"{error} {error.hint}".strip(),
        log_file=paths.log_file,
    )
    dialog.exec()


def _log_qt_message(kind: QtMsgType, context: QMessageLogContext, message: str) -> None:
    logger.log(_LEVELS.get(kind, logging.WARNING), "Qt: %s", message)
    if kind == QtMsgType.QtFatalMsg:
        _end_without_window(message)


def _end_without_window(message: str) -> NoReturn:
    """Say why there is no window; Qt would abort the process without a word."""
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    reason = message.split("\n", 1)[0]
    if "platform plugin" in message and sys.platform.startswith("linux"):
        reason = "The display does not answer, or a system library of Qt is missing."
        if not has_display:
            reason = "There is no display."
    complain(f"the window cannot open. {reason} `ask` works without one; the log says more.")
    logging.shutdown()
    os._exit(EXIT_FAILED)
