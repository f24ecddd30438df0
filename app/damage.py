"""A damaged database: found, kept under another name, with what can be read in its place. GUI thread."""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from app.errors import DatabaseDamagedError
from app.known_schema import known_schema, schema_of
from app.migrations import make_text_indexes
from app.salvage import remove, salvaged
from app.sqlite_errors import (
    SQLITE_ERRORS,
    clear_mark,
    error_name,
    errors_for_people,
    primary_code,
)
from app.stored_values import text_from

logger = logging.getLogger(__name__)

_EMPTY = "Start again to go on with an empty list, or put a backup in its place."
_COPIED = (
    "Start again to go on with what could be read of it, which is copied into a new file, or put a"
    " backup in its place."
)
_IN_USE = "Close the other Quire that has it open, then start again."
_MOVED_BY_ANOTHER = "Another Quire has kept it under another name meanwhile. Start again."
_NOT_MOVED = "Move it away and put a backup in its place, or choose another folder with --profile."

# As SQLite begins what it finds wrong with a text index, from release 3.44 on; before, it does not look.
_INDEX_COMPLAINT = "FTS5 table"


def damage(code: int = sqlite3.SQLITE_CORRUPT) -> sqlite3.DatabaseError:
    """An error as SQLite raises it."""
    error = sqlite3.DatabaseError("the file is damaged")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "SQLITE_NOTADB" if code == sqlite3.SQLITE_NOTADB else "SQLITE_CORRUPT"
    return error


def is_outline_sound(connection: sqlite3.Connection) -> bool:
    """Look at all pages, but not whether indexes and tables agree.

    Raises:
        sqlite3.DatabaseError: It is damaged.
    """
    return not _complaints(connection, "quick_check")


def check_whole(connection: sqlite3.Connection, path: Path, steps: Sequence[str]) -> None:
    """Look at everything, and make the text indexes anew: no check proves all of them.

    Args:
        connection: To the database.
        path: Its file.
        steps: The migrations that made it.

    Raises:
        sqlite3.DatabaseError: It is damaged.
        StorageError: This SQLite cannot make such a database.
    """
    with errors_for_people(path):
        wanted = known_schema(steps)
    complaints = _complaints(connection, "integrity_check")
    # First, as nothing may be written to a file whose tables are damaged: pages of theirs may count as free.
    is_index_alone = all(_INDEX_COMPLAINT in complaint for complaint in complaints)
    if not is_index_alone or not wanted <= schema_of(connection):
        raise damage()
    if steps:
        make_text_indexes(connection)
    if complaints and _complaints(connection, "integrity_check"):
        raise damage()


def put_aside(path: Path, steps: Sequence[str], error: Exception) -> DatabaseDamagedError:
    """Keep the damaged file under another name, and put a copy of what can be read in its place.

    Args:
        path: The file; it stays where it is while another process has it open, as far as it can be asked.
        steps: The migrations.
        error: How the damage shows.

    Returns:
        What to tell.

    Raises:
        sqlite3.Error: The disk is full, say; the file was left as it is.
    """
    logger.error("The database is damaged: %s", error_name(error))
    copy: Path | None = None
    file = _identity(path)
    # Of what is no database nothing can be read, and SQLite might remove the log beside it.
    if primary_code(error) != sqlite3.SQLITE_NOTADB:
        if _is_open_elsewhere(path):
            return DatabaseDamagedError(path, None, hint=_IN_USE)
        copy = salvaged(path, steps)
    kept = _free_name(path)
    if _identity(path) != file or not _swap(path, kept, copy):
        remove(copy)
        hint = _NOT_MOVED if _identity(path) == file else _MOVED_BY_ANOTHER
        return DatabaseDamagedError(path, None, hint=hint)
    clear_mark(path)
    return DatabaseDamagedError(path, kept, hint=_EMPTY if copy is None else _COPIED)


def _is_open_elsewhere(path: Path) -> bool:
    """Whether a process has it open, which would go on storing in the file that was moved aside."""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=0.0)) as connection:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except SQLITE_ERRORS as error:
        return primary_code(error) == sqlite3.SQLITE_BUSY
    return False


def _complaints(connection: sqlite3.Connection, check: str) -> list[str]:
    """What SQLite finds wrong, in its words."""
    found = [text_from(words) for (words,) in connection.execute(f"PRAGMA {check}")]
    return [] if found == ["ok"] else found


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _free_name(path: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    kept = path.with_name(f"{path.stem}.damaged-{stamp}{path.suffix}")
    number = 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.stem}.damaged-{stamp}-{number}{path.suffix}")
    return kept


def _swap(path: Path, kept: Path, copy: Path | None) -> bool:
    """Give the damaged file and its log another name, and the copy their place; False if that is refused.

    Then all is as it was.
    """
    moved: list[tuple[Path, Path]] = []
    try:
        for ending in ("-wal", "-shm", ""):
            old, new = (file.with_name(file.name + ending) for file in (path, kept))
            if old.exists():
                os.rename(old, new)
                moved.append((old, new))
        if copy is not None:
            os.replace(copy, path)
    except OSError as error:
        logger.error("The damaged database could not be moved: %s", error)
        for old, new in reversed(moved):
            with contextlib.suppress(OSError):
                os.rename(new, old)
        return False
    return True
