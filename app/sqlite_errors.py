"""SQLite's errors in words for people, which never quote what is stored. Any thread.

SQLite's own words may hold a whole message, or bytes that are no text any more: so only the name of
an error is told and logged. Damage that is met leaves a mark beside the database: the next start
looks at the whole file.
"""

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from app.errors import DatabaseDamagedError, StorageError
from app.private_files import make_private_file

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""The second: SQLite's words quote a damaged name, and Python cannot read them."""

_NEXT_TO_NOTHING_BYTES = 256 * 1024  # SQLite makes files of 32 KiB, file systems round that up
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_REASONS = {
    sqlite3.SQLITE_FULL: ("The disk is full.", "Free some space, then try again."),
    sqlite3.SQLITE_IOERR: ("The disk reported an error.", "Check the disk and its free space."),
    sqlite3.SQLITE_READONLY: (
        "The file may not be written.",
        "Change its rights, or choose another folder with --profile.",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "The file cannot be opened.",
        "Check the folder's rights, or choose another one with --profile.",
    ),
    sqlite3.SQLITE_BUSY: ("Another program holds the file.", "Try again in a moment."),
}
_LOOKED_AT_LATER = (
    "Start Quire again: it then looks at the whole file, and keeps it under another name if it is"
    " damaged."
)
_AGAIN = "Start Quire again, or choose another folder with --profile."


@contextlib.contextmanager
def errors_for_people(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into StorageError."""
    try:
        yield
    except SQLITE_ERRORS as error:
        raise storage_error(error, path) from error


def storage_error(error: Exception, path: Path) -> StorageError:
    """The error in words for people; what may be damage is marked for the next start."""
    if is_damage(error) or is_odd(error):
        mark(path)
    if is_damage(error):
        return DatabaseDamagedError(path, None, hint=_LOOKED_AT_LATER)
    unknown = (
        f"SQLite refused it ({error_name(error)}).",
        _LOOKED_AT_LATER if is_odd(error) else _AGAIN,
    )
    code = primary_code(error)
    if code == sqlite3.SQLITE_IOERR and _is_full(path.parent):
        code = sqlite3.SQLITE_FULL
    reason, hint = _REASONS.get(code, unknown)
    return StorageError(f"The chats in {path} could not be read or stored. {reason}", hint=hint)


def _is_full(folder: Path) -> bool:
    """Whether the disk has no room: of files that SQLite cannot make for that, it only says that they failed."""
    try:
        return shutil.disk_usage(folder).free < _NEXT_TO_NOTHING_BYTES
    except OSError:
        return False


def is_damage(error: Exception) -> bool:
    """Whether the file is damaged."""
    return primary_code(error) in _DAMAGED


def is_odd(error: Exception) -> bool:
    """Whether SQLite does not understand a statement: of ours, only where a table has another shape."""
    return primary_code(error) == sqlite3.SQLITE_ERROR


def is_of_the_system(error: Exception) -> bool:
    """Whether a full disk or the like is the reason, not what is in the file."""
    return primary_code(error) in _REASONS


def error_name(error: Exception) -> str:
    """The error for the log, without its words."""
    return getattr(error, "sqlite_errorname", type(error).__name__)


def primary_code(error: Exception) -> int:
    """Which kind of error it is."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    # The low byte is the kind, the rest its detail: https://sqlite.org/rescode.html
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF


def mark(path: Path) -> None:
    """Have the next start look at the whole file."""
    make_private_file(_mark_of(path))


def is_marked(path: Path) -> bool:
    """Whether damage was met since the whole file was looked at last."""
    return _mark_of(path).exists()


def clear_mark(path: Path) -> None:
    """The whole file was looked at."""
    with contextlib.suppress(OSError):
        _mark_of(path).unlink(missing_ok=True)


def _mark_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.check")
