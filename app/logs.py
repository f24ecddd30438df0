"""The log: one small rotating file per profile. Never any text of a chat.

Our own records give lengths, not texts. What could slip through is the message of an unexpected
exception, since a ValueError or KeyError may quote what it choked on: such messages are left out,
the type and the places in the code remain. The home folder, which names the person, is "~".

A log that cannot be written stops nothing: standard error says so, once.
"""

import contextlib
import logging
import os
import sys
import threading
import traceback
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType

from app.complaint import complain
from app.errors import AppError
from app.private_files import make_private_folder, private_opener
from inference.errors import ComputeError, ModelFileError, NotEnoughMemoryError

logger = logging.getLogger(__name__)

MAX_BYTES = 1_000_000
NUM_OLD_FILES = 3
OWN_PACKAGES = ("app", "inference", "ui")

# Their messages speak of code, files and memory, not of values that were being processed.
_TELLING = (
    AppError,
    ModelFileError,
    NotEnoughMemoryError,
    ComputeError,
    OSError,
    ImportError,
    MemoryError,
    NameError,
    AttributeError,
    TypeError,
    IndexError,
    RuntimeError,
    AssertionError,
)


class PrivateFormatter(logging.Formatter):
    """Formats records; of exceptions that may quote a text only type and places."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s")
        home = os.path.expanduser("~")
        # Without a home it is "/" or stays "~": nothing to hide then.
        self._home = home + os.sep if len(home) > 1 else None

    def format(self, record: logging.LogRecord) -> str:
        """The line, and below it the exception if there is one."""
        # Another handler may have left its own, full text of the exception in the record.
        known, record.exc_text = record.exc_text, None
        try:
            line = super().format(record)
            return line if self._home is None else line.replace(self._home, "~" + os.sep)
        finally:
            record.exc_text = known

    def formatException(  # noqa: N802  # logging's name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """The whole chain of causes, oldest first."""
        lines: list[str] = []
        error = ei[1]
        while error is not None:
            text = f": {error}" if isinstance(error, _TELLING) else ""
            frames = "".join(traceback.format_tb(error.__traceback__))
            lines.insert(0, f"{frames}{type(error).__qualname__}{text}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n".join(lines)


class PrivateFileHandler(RotatingFileHandler):
    """Its files are for nobody else to read; a record that cannot be written is told of once."""

    _has_complained = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Say why, the first time. logging's own way is a traceback, with the record's values, each time."""
        if not self._has_complained:
            self._has_complained = True
            _complain_of(self.baseFilename, sys.exc_info()[1])

    def close(self) -> None:
        """Close it; a last record that cannot be written was told of already."""
        with contextlib.suppress(OSError):
            super().close()

    def _open(self) -> TextIOWrapper:
        return open(
            self.baseFilename,
            "a",
            encoding=self.encoding,
            errors=self.errors,
            opener=_waiting_for_nobody,
        )


def _waiting_for_nobody(path: str, flags: int) -> int:
    """As `private_opener`, but a pipe in the log's place that nobody reads is an error, not a wait."""
    return private_opener(path, flags | getattr(os, "O_NONBLOCK", 0))


def _complain_of(file: str | Path, error: BaseException | None) -> None:
    place = getattr(error, "filename", None) or file  # which may be the folder
    reason = getattr(error, "strerror", None) or type(error).__name__
    with contextlib.suppress(OSError, ValueError):  # standard error may be gone as well
        complain(f"the log cannot be written. {place}: {reason[:1].lower()}{reason[1:]}.")


def start_log(file: Path, level: int = logging.INFO) -> logging.Handler:
    """Write records of Quire from `level` on, of libraries from warnings on, to `file`.

    If it cannot be written, standard error says why, and there is no log.

    Args:
        file: Its folder is made if it is not there.
        level: Of Quire's own packages.

    Returns:
        The handler, for `end_log`.
    """
    handler = _handler_for(file)
    root = logging.getLogger()
    root.addHandler(handler)
    for package in OWN_PACKAGES:
        logging.getLogger(package).setLevel(level)
    return handler


def _handler_for(file: Path) -> logging.Handler:
    try:
        make_private_folder(file.parent)
        handler = PrivateFileHandler(
            file, maxBytes=MAX_BYTES, backupCount=NUM_OLD_FILES, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        _complain_of(file, error)
        return logging.NullHandler()  # without any, warnings would land on the terminal
    handler.setFormatter(PrivateFormatter())
    return handler


def end_log(handler: logging.Handler) -> None:
    """Undo `start_log`."""
    logging.getLogger().removeHandler(handler)
    for package in OWN_PACKAGES:
        logging.getLogger(package).setLevel(logging.NOTSET)
    handler.close()


def log_uncaught_exceptions() -> None:
    """From now on an exception that nobody caught goes to the log, on any thread."""

    def on_main(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            logger.critical("Uncaught exception", exc_info=(kind, error, trace))

    def on_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            on_main(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook = on_main
    threading.excepthook = on_thread
