"""Copies out of a damaged database what can still be read. GUI thread."""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from app.known_schema import (
    TABLES,
    is_schema_sound,
    likely_version,
    make_readable,
    number_of,
    open_to_read,
)
from app.migrations import migrate
from app.private_files import make_private_file
from app.sqlite_errors import SQLITE_ERRORS, error_name, is_of_the_system

logger = logging.getLogger(__name__)

_MIN_ROW_BYTES = 16

# Messages of a chat that is lost get one in which they are found.
_ADOPT = """
INSERT INTO conversations(id, title, created_at, updated_at, settings, leaf_id)
SELECT conversation_id, 'Recovered chat', min(created_at), max(created_at), '{}', max(id)
FROM messages WHERE conversation_id NOT IN (SELECT id FROM conversations) GROUP BY conversation_id
"""


def salvaged(path: Path, steps: Sequence[str]) -> Path | None:
    """A new, sound database with all that can be read; None if that is nothing.

    Args:
        path: The damaged file, which is left as it is.
        steps: The migrations.

    Raises:
        sqlite3.Error: The disk is full, say.
    """
    copy = path.with_name(f"{path.name}.copy-{os.getpid()}")  # another process may make one too
    readable = copy.with_name(f"{copy.name}-readable")
    remove(copy)
    remove(readable)
    make_private_file(copy)
    try:
        known = steps[: likely_version(path, steps)]
        is_found = is_schema_sound(path, known) or not make_readable(path, readable, known)
        num_messages = _copy(path if is_found else readable, copy, known)
    except SQLITE_ERRORS as error:
        remove(copy)
        if is_of_the_system(error):
            raise
        logger.error("Nothing could be copied: %s", error_name(error))
        return None
    finally:
        remove(readable)
    if num_messages == 0:
        remove(copy)
        return None
    logger.info("%d messages could be copied", num_messages)
    return copy


def remove(copy: Path | None) -> None:
    """Take a copy away that is not wanted."""
    with contextlib.suppress(OSError):
        if copy is not None:
            copy.unlink(missing_ok=True)


def _copy(path: Path, copy: Path, steps: Sequence[str]) -> int:
    """Fill a new database; gives how many messages it has."""
    target = sqlite3.connect(copy, isolation_level=None)
    with contextlib.closing(open_to_read(path)) as source, contextlib.closing(target):
        # With it SQLite takes of a damaged schema what comes before the damage.
        source.execute("PRAGMA writable_schema = ON")
        number_of(source, "SELECT count(*) FROM sqlite_master")
        migrate(target, steps)
        highest = min(_highest_key(source), path.stat().st_size // _MIN_ROW_BYTES)
        target.execute("BEGIN")
        for table in _tables(target):
            _copy_table(source, target, table, highest)
        with contextlib.suppress(sqlite3.DatabaseError):  # what was copied is worth more
            target.execute(_ADOPT)
        num_messages = number_of(target, "SELECT count(*) FROM messages")
        target.execute("COMMIT")
    return num_messages


def _tables(target: sqlite3.Connection) -> list[str]:
    """Those that are copied: an older format has no drafts."""
    names = target.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    present = {name for (name,) in names}
    return [table for table in TABLES if table in present]


def _copy_table(
    source: sqlite3.Connection, target: sqlite3.Connection, table: str, highest: int
) -> None:
    """All rows; where the table cannot be read to its end, each that can be looked up."""
    columns = target.execute(f"PRAGMA table_info({table})").fetchall()
    # IGNORE: a row that cannot be stored, as it lacks a value, is left out.
    insert = f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(columns))})"

    def is_copied(select: str) -> bool:
        try:
            target.executemany(insert, source.execute(select))
        except SQLITE_ERRORS as error:
            if is_of_the_system(error):
                raise
            return False
        return True

    if not is_copied(f"SELECT * FROM {table}"):
        keys = range(1, highest + 1)
        num_lost = sum(not is_copied(f"SELECT * FROM {table} WHERE rowid = {key}") for key in keys)
        logger.error("Of the table %s up to %d rows are lost", table, num_lost)


def _highest_key(source: sqlite3.Connection) -> int:
    """The highest number of a row that there may be, as far as anything tells."""
    return max(
        number_of(source, "SELECT max(seq) FROM sqlite_sequence"),  # no chat is without a message
        number_of(source, "SELECT max(rowid) FROM messages"),
    )
