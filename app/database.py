"""Opening the SQLite file, and SQLite's errors in words for people. GUI thread."""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.disk_sync import LOG_BYTES
from app.errors import DatabaseDamagedError, DatabaseTooNewError, StorageError
from app.migrations import migrate, stored_version
from app.private_files import make_private_file
from app.search import holds
from inference.regular_file import NotAFileError, open_regular

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 2000
# A whole check reads the whole file; above this size only its outline is checked at start.
FULL_CHECK_BYTES = 16 * 2**20

_HEADER = b"SQLite format 3\0"
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


def open_database(path: Path, steps: Sequence[str]) -> sqlite3.Connection:
    """Open or make the file, bring it to the newest format, set how it works.

    Args:
        path: The file.
        steps: The migrations.

    Raises:
        DatabaseTooNewError: Nothing was touched.
        DatabaseDamagedError: The file was moved aside.
        StorageError: It cannot be opened or written.
    """
    try:
        return _opened(path, steps)
    except sqlite3.DatabaseError as error:
        if _primary_code(error) not in _DAMAGED:
            raise storage_error(error, path) from error
        logger.error("The database is damaged: %s", error)
        raise DatabaseDamagedError(path, _keep_aside(path)) from error


def open_beside(path: Path) -> sqlite3.Connection:
    """One more connection to a database that is open: for another thread, which closes it.

    Raises:
        sqlite3.Error: It cannot be opened; it is not made anew.
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT_MS / 1000,
    )
    _set_up(connection)
    return connection


def _set_up(connection: sqlite3.Connection) -> None:
    """What holds for each connection alone."""
    # Commits do not wait for the disk, and do not fold the log in: `disk_sync` does both.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON").fetchall()


def _opened(path: Path, steps: Sequence[str]) -> sqlite3.Connection:
    _check_header(path)
    make_private_file(path)  # what SQLite puts beside it gets the same rights
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000)
    try:
        found = stored_version(connection)
        if found > len(steps):
            raise DatabaseTooNewError(path, found, len(steps))
        _check(connection, path)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}").fetchall()
        _set_up(connection)
        connection.create_function("holds", 2, holds, deterministic=True)
        if 0 < found < len(steps):
            _keep_backup(connection, path, found)
        migrate(connection, steps)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_header(path: Path) -> None:
    """Look before SQLite does: it may remove the newest changes beside a file it cannot read."""
    try:
        with open_regular(path) as file:
            header = file.read(len(_HEADER))
    except NotAFileError as error:
        raise StorageError(
            f"The chats in {path} could not be read or stored: {error.strerror}.",
            hint="Take it away, or choose another folder with --profile.",
        ) from error
    except OSError:
        return  # missing, or SQLite says better what is wrong
    if header not in (b"", _HEADER):
        raise _damage("file is not a database")


def _damage(message: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(message)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Find damage while nothing was written yet."""
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if path.stat().st_size <= FULL_CHECK_BYTES:
        (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise _damage(str(result))


def _keep_backup(connection: sqlite3.Connection, path: Path, version: int) -> None:
    kept = path.with_name(f"{path.stem}.format-{version}{path.suffix}")
    make_private_file(kept)
    copy = sqlite3.connect(kept)
    with contextlib.closing(copy):
        connection.backup(copy)


def _keep_aside(path: Path) -> Path | None:
    """Give the damaged file and its log another name; None if that is refused."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    kept = path.with_name(f"{path.stem}.damaged-{stamp}{path.suffix}")
    number = 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.stem}.damaged-{stamp}-{number}{path.suffix}")
    try:
        for ending in ("-wal", "-shm"):
            beside = path.with_name(path.name + ending)
            if beside.exists():
                os.rename(beside, kept.with_name(kept.name + ending))
        os.rename(path, kept)
    except OSError as error:
        logger.error("The damaged database could not be moved: %s", error)
        return None
    return kept


@contextlib.contextmanager
def errors_for_people(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into StorageError."""
    try:
        yield
    except sqlite3.Error as error:
        raise storage_error(error, path) from error


def storage_error(error: sqlite3.Error, path: Path) -> StorageError:
    """The error in words for people."""
    code = _primary_code(error)
    if code in _DAMAGED:
        return DatabaseDamagedError(path, None)
    reason, hint = _REASONS.get(code, (f"{error}.", ""))
    return StorageError(f"The chats in {path} could not be read or stored. {reason}", hint=hint)


def _primary_code(error: sqlite3.Error) -> int:
    # The low byte is the kind, the rest its detail: https://sqlite.org/rescode.html
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
