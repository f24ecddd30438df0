"""Opening the SQLite file: what is in its place, whether it is sound, how it works. GUI thread."""

import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from app.damage import check_whole, damage, is_outline_sound, put_aside
from app.disk_sync import LOG_BYTES
from app.errors import DatabaseTooNewError, StorageError
from app.migrations import migrate, stored_version
from app.private_files import make_private_file
from app.search import holds
from app.sqlite_errors import (
    SQLITE_ERRORS,
    clear_mark,
    errors_for_people,
    is_damage,
    is_marked,
    is_odd,
    storage_error,
)
from app.stored_values import text_from
from inference.regular_file import NotAFileError, check_regular, open_regular

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 2000
# A whole check reads the whole file; above this size only its outline is checked at start.
FULL_CHECK_BYTES = 16 * 2**20

_HEADER = b"SQLite format 3\0"
_OUR_TABLES = {"conversations", "messages"}
_TAKE_AWAY = "Take it away, or choose another folder with --profile."


def open_database(path: Path, steps: Sequence[str]) -> sqlite3.Connection:
    """Open or make the file, bring it to the newest format, set how it works.

    Args:
        path: The file.
        steps: The migrations.

    Raises:
        DatabaseTooNewError: Nothing was touched.
        DatabaseDamagedError: The file was moved aside; what could be read is in its place.
        StorageError: It cannot be opened or written.
    """
    was_marked = is_marked(path)
    try:
        return _opened(path, steps)
    except SQLITE_ERRORS as error:
        # What SQLite does not understand twice is damage as well: a bit of the format's number, say.
        if not is_damage(error) and not (was_marked and is_odd(error)):
            raise storage_error(error, path) from error
        with errors_for_people(path):
            told = put_aside(path, steps, error)
        raise told from error


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


def close_database(connection: sqlite3.Connection, path: Path) -> None:
    """Close a database, and put it back if nothing is in its place any more.

    Where a system lets an open file be removed, it lives on until it is closed, and everything in it is read
    and written as before: nobody notices before the next start, and then it is gone.
    """
    copy = None if path.exists() else _copied(connection, path)
    connection.close()
    if copy is None:
        return
    # Those of the file that is gone must not be taken for the copy's.
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    copy.replace(path)
    logger.warning("%s was taken away while it was open, and was put back", path.name)


def _copied(connection: sqlite3.Connection, path: Path) -> Path | None:
    copy = path.with_name(f"{path.name}.put-back")
    try:
        copy.unlink(missing_ok=True)
        _copy_to(copy, connection)
    except (OSError, *SQLITE_ERRORS) as error:
        reason = type(error).__name__
        logger.error("%s was taken away and could not be put back: %s", path.name, reason)
        return None
    return copy


def _set_up(connection: sqlite3.Connection) -> None:
    """What holds for each connection alone."""
    # A damaged letter must not hide the text around it.
    connection.text_factory = text_from
    # Commits do not wait for the disk, and do not fold the log in: `disk_sync` does both.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON").fetchall()


def _opened(path: Path, steps: Sequence[str]) -> sqlite3.Connection:
    _check_files(path)
    _check_header(path)
    make_private_file(path)  # what SQLite puts beside it gets the same rights
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000)
    connection.text_factory = text_from
    try:
        found = _known_version(connection, path, len(steps))
        _check(connection, path, steps[:found])
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


def _check_files(path: Path) -> None:
    """Say what is in the place of the file, or of those that SQLite puts beside it, if that is no file."""
    for ending in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(path.name + ending)
        try:
            check_regular(os.stat(file).st_mode, file)
        except OSError as error:
            reason = _not_a_file(error)
            if reason is not None:
                subject = str(file) if ending else "it"
                raise StorageError(
                    f"The chats in {path} could not be read or stored: {subject} {reason}.",
                    hint=_TAKE_AWAY,
                ) from error


def _not_a_file(error: OSError) -> str | None:
    """What is there instead of a file; None if it is missing, or SQLite says better what is wrong."""
    if isinstance(error, NotAFileError):
        return str(error.strerror).removeprefix("it ")
    if isinstance(error, IsADirectoryError):
        return "is a folder, not a file"
    if error.errno == errno.ELOOP:
        return "is a link that leads back to itself"
    return None


def _check_header(path: Path) -> None:
    """Look before SQLite does: it may remove the newest changes beside a file it cannot read."""
    try:
        with open_regular(path) as file:
            header = file.read(len(_HEADER))
    except OSError:
        return  # missing, or SQLite says better what is wrong
    if header not in (b"", _HEADER):
        raise damage(sqlite3.SQLITE_NOTADB)


def _known_version(connection: sqlite3.Connection, path: Path, num_known: int) -> int:
    """The format of the file, which is ours; 0 for a new one."""
    # The tables first: another process may make them, and the version with them, meanwhile.
    tables = {
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    found = stored_version(connection)
    if found > num_known:
        raise DatabaseTooNewError(path, found, num_known)
    if tables and tables.isdisjoint(_OUR_TABLES):
        raise StorageError(
            f"The chats in {path} could not be read or stored: it is a database of another program.",
            hint=_TAKE_AWAY,
        )
    if found < 0 or (tables and found == 0):
        raise damage()
    return found


def _check(connection: sqlite3.Connection, path: Path, steps: Sequence[str]) -> None:
    """Find damage while nothing was written yet."""
    is_large = path.stat().st_size > FULL_CHECK_BYTES
    if is_marked(path) or not (is_large or is_outline_sound(connection)):
        check_whole(connection, path, steps)
        clear_mark(path)


def _keep_backup(connection: sqlite3.Connection, path: Path, version: int) -> None:
    kept = path.with_name(f"{path.stem}.format-{version}{path.suffix}")
    _copy_to(kept, connection)


def _copy_to(path: Path, connection: sqlite3.Connection) -> None:
    make_private_file(path)
    with contextlib.closing(sqlite3.connect(path)) as copy:
        connection.backup(copy)
