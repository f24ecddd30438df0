"""A damaged database: found, kept under another name, with what can be read in its place. GUI thread."""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from app.errors import DatabaseDamagedError
from app.migrations import make_text_indexes, migrate
from app.salvage import remove, salvaged
from app.sqlite_errors import SQLITE_ERRORS, clear_mark, error_name, primary_code

logger = logging.getLogger(__name__)

_EMPTY = "Start again to go on with an empty list, or put a backup in its place."
_COPIED = (
    "Start again to go on with what could be read of it, which is copied into a new file, or put a"
    " backup in its place."
)
_IN_USE = "Close the other Quire that has it open, then start again."
_NOT_MOVED = "Move it away and put a backup in its place, or choose another folder with --profile."

# The tables of a text index are SQLite's own, and not the same in each release of it.
_SCHEMA = """
SELECT type, name, tbl_name, sql FROM sqlite_master
WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!' AND name NOT LIKE '%!_index!_%' ESCAPE '!'
"""


def damage(code: int = sqlite3.SQLITE_CORRUPT) -> sqlite3.DatabaseError:
    """An error as SQLite raises it."""
    error = sqlite3.DatabaseError("the file is damaged")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "SQLITE_NOTADB" if code == sqlite3.SQLITE_NOTADB else "SQLITE_CORRUPT"
    return error


def check_outline(connection: sqlite3.Connection) -> None:
    """Look at all pages, but not whether indexes and tables agree.

    Raises:
        sqlite3.DatabaseError: It is damaged.
    """
    _demand_ok(connection, "quick_check")


def check_whole(connection: sqlite3.Connection, steps: Sequence[str]) -> None:
    """Look at everything, and make the text indexes anew: no check proves all of them.

    Args:
        connection: To the database.
        steps: The migrations that made it.

    Raises:
        sqlite3.DatabaseError: It is damaged.
    """
    _demand_ok(connection, "integrity_check")
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as sound:
        migrate(sound, steps)
        wanted = set(map(tuple, sound.execute(_SCHEMA)))
    if set(map(tuple, connection.execute(_SCHEMA))) != wanted:
        raise damage()
    if steps:
        make_text_indexes(connection)


def put_aside(path: Path, steps: Sequence[str], error: Exception) -> DatabaseDamagedError:
    """Keep the damaged file under another name, and put a copy of what can be read in its place.

    Args:
        path: The file; it stays where it is while another process has it open.
        steps: The migrations.
        error: How the damage shows.

    Returns:
        What to tell.

    Raises:
        sqlite3.Error: The disk is full, say; the file was left as it is.
    """
    logger.error("The database is damaged: %s", error_name(error))
    copy: Path | None = None
    # Of what is no database nothing can be read, and SQLite might remove the log beside it.
    if primary_code(error) != sqlite3.SQLITE_NOTADB:
        if _is_open_elsewhere(path):
            return DatabaseDamagedError(path, None, hint=_IN_USE)
        copy = salvaged(path, steps)
    kept = _keep_aside(path)
    if kept is None:
        remove(copy)
        return DatabaseDamagedError(path, None, hint=_NOT_MOVED)
    clear_mark(path)
    if copy is not None:
        os.replace(copy, path)
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


def _demand_ok(connection: sqlite3.Connection, check: str) -> None:
    (result,) = connection.execute(f"PRAGMA {check}(1)").fetchone()
    if result != "ok":
        raise damage()


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
