"""Finds the tables of a database whose own list of them is damaged, by what Quire knows. GUI thread.

SQLite finds tables by the texts that made them, which lie on the first page. One wrong letter there hides
that table and all after it, though their own pages are whole. Quire knows these texts; of the file it
only needs to know at which page each table begins.
"""

import contextlib
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from app.migrations import migrate
from app.private_files import make_private_file
from app.sqlite_errors import SQLITE_ERRORS, error_name, is_of_the_system
from app.stored_values import text_from

logger = logging.getLogger(__name__)

TABLES = ("conversations", "messages", "drafts")
"""All that is worth to be read."""

_COUNTERS = "sqlite_sequence"  # SQLite's own: the highest number of a message so far
_HEADER_BYTES = 100  # before the page that begins that list
_MOST_ROWS = 100  # of the list of tables, which has 25

# The tables of a text index are SQLite's own, and not the same in each release of it.
_SCHEMA = """
SELECT type, name, tbl_name, sql FROM sqlite_master
WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!' AND name NOT LIKE '%!_index!_%' ESCAPE '!'
"""


def schema_of(connection: sqlite3.Connection) -> set[tuple[object, ...]]:
    """What the file says of tables, indexes and triggers of ours.

    Raises:
        sqlite3.DatabaseError: That is damaged.
    """
    return set(map(tuple, connection.execute(_SCHEMA)))


def known_schema(steps: Sequence[str]) -> set[tuple[object, ...]]:
    """What a sound file says, made by these migrations."""
    with contextlib.closing(_new(steps)) as sound:
        return schema_of(sound)


def is_schema_sound(path: Path, steps: Sequence[str]) -> bool:
    """Whether all that these migrations made can be found, and tables where they surely are."""
    with contextlib.closing(open_to_read(path)) as connection:
        try:
            if not known_schema(steps) <= schema_of(connection):
                return False
        except SQLITE_ERRORS:
            return False
        found = {row[:4] for row in _rows(connection)}
        roots = _roots(connection, steps)
    return found.issuperset(("table", name, name, root) for name, root in roots.items())


def likely_version(path: Path, steps: Sequence[str]) -> int:
    """The format of the file, whose number may be damaged: that which most of the schema fits.

    Where several fit alike it is the one that the file names, or the newest: values that a file of an
    older one lacks are read as their defaults.
    """
    with contextlib.closing(open_to_read(path)) as source:
        found = {row[:3] + row[4:] for row in _rows(source)}
        stored = number_of(source, "PRAGMA user_version")
    versions = range(1, len(steps) + 1)
    fitting = {version: len(known_schema(steps[:version]) & found) for version in versions}
    likely = [version for version in versions if fitting[version] == max(fitting.values())]
    return stored if stored in likely else likely[-1]


def make_readable(path: Path, copy: Path, steps: Sequence[str]) -> bool:
    """Copy a damaged file so that its tables are found; gives whether that was possible.

    The copy can be read, and that is all: it has no indexes, triggers or rules.

    Args:
        path: The damaged file; what is only in the log beside it is copied too.
        copy: A new file.
        steps: The migrations that made it.

    Raises:
        sqlite3.Error: The disk is full, say.
    """
    make_private_file(copy)
    try:
        _copy_pages(path, copy)
        _mend_header(copy)
        with contextlib.closing(open_to_read(copy)) as source:
            roots = _roots(source, steps)
        _empty_schema(copy)
        _write_schema(copy, roots, steps)
    except (*SQLITE_ERRORS, OSError) as error:
        if is_of_the_system(error):
            raise
        logger.error("The tables of the database could not be found: %s", error_name(error))
        return False
    logger.info("The list of tables is damaged; they were found all the same")
    return True


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing and takes of a damaged file what it can."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None
    )
    connection.text_factory = text_from
    return connection


def number_of(connection: sqlite3.Connection, question: str) -> int:
    """What SQLite answers; 0 where it cannot."""
    try:
        (value,) = connection.execute(question).fetchone()
    except SQLITE_ERRORS:
        return 0
    return value if isinstance(value, int) else 0


def _new(steps: Sequence[str]) -> sqlite3.Connection:
    """An empty database in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, steps)
    return connection


def _rows(source: sqlite3.Connection) -> list[tuple[object, ...]]:
    """What can be read of the list of tables: type, name, table, first page and text of each row."""
    # With it SQLite refuses one statement for the damage, and then goes on with what came before that.
    source.execute("PRAGMA writable_schema = ON")
    number_of(source, "SELECT count(*) FROM sqlite_master")
    found: list[tuple[object, ...]] = []
    for key in range(1, _MOST_ROWS + 1):  # each alone: the page may be damaged, too
        with contextlib.suppress(*SQLITE_ERRORS):
            found += source.execute(
                f"SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE rowid = {key}"
            )
    return found


def _roots(source: sqlite3.Connection, steps: Sequence[str]) -> dict[str, int]:
    """At which page each table begins: as the file says, or as in any file that was made new.

    The latter holds for what the first migration makes, if it holds for most of that: somebody may have
    had SQLite write the file anew (VACUUM). Where other migrations put their tables depends on what was
    stored by then.
    """
    with contextlib.closing(_new(steps[:1])) as sound:
        as_new = [row[:4] for row in _rows(sound) if row[3]]
    as_found = [row[:4] for row in _rows(source)]
    is_as_new = 2 * len(set(as_new) & set(as_found)) > len(as_new)
    roots: dict[str, int] = {}
    for kind, name, table, root in as_found + as_new if is_as_new else as_new + as_found:
        for wanted in (*TABLES, _COUNTERS):
            # One of the three may be damaged. Of an index it is the last one alone that fits.
            fitting = (kind == "table") + (name == wanted) + (table == wanted)
            if fitting > 1 and isinstance(root, int) and root > 1:
                roots[wanted] = root
    return roots


def _copy_pages(path: Path, copy: Path) -> None:
    with (
        contextlib.closing(open_to_read(path)) as source,
        contextlib.closing(_opened(copy)) as target,
    ):
        source.backup(target)


def _opened(copy: Path) -> sqlite3.Connection:
    """A connection to what nobody misses if this fails."""
    connection = sqlite3.connect(copy, isolation_level=None)
    connection.execute("PRAGMA journal_mode = OFF").fetchall()
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _write_schema(copy: Path, roots: dict[str, int], steps: Sequence[str]) -> None:
    """Put the tables into the empty list: short texts, as the first page alone is surely free for them."""
    with contextlib.closing(_opened(copy)) as target, contextlib.closing(_new(steps)) as sound:
        target.execute("PRAGMA writable_schema = ON")
        for table, root in roots.items():
            text = _short_text(sound, table)
            target.execute(
                "INSERT INTO sqlite_master VALUES ('table', ?, ?, ?, ?)", (table, table, root, text)
            )


def _short_text(sound: sqlite3.Connection, table: str) -> str:
    """Its columns, and what rows say that lack one; without rules, which only indexes can keep."""
    columns = [
        f"{name} {kind}{' PRIMARY KEY' * key}{'' if default is None else f' DEFAULT {default}'}"
        for _, name, kind, _, default, key in sound.execute(f"PRAGMA table_info({table})")
    ]
    return f"CREATE TABLE {table}({', '.join(columns)})"


def _mend_header(copy: Path) -> None:
    """Set what is the same in all files of ours; see https://sqlite.org/fileformat.html for places."""
    _write(copy, 18, bytes((1, 1)))  # there is no log beside it any more
    _write(copy, 44, (4).to_bytes(4, "big"))  # the format of SQLite
    _write(copy, 56, (1).to_bytes(4, "big"))  # texts are UTF-8


def _empty_schema(copy: Path) -> None:
    """Make the list of tables what it is in a new file: a page without rows, which grow from its end."""
    with open(copy, "rb") as file:
        header = file.read(_HEADER_BYTES)
    usable_bytes = (int.from_bytes(header[16:18], "big") - header[20]) % 2**16
    _write(
        copy, _HEADER_BYTES, bytes((13, 0, 0, 0, 0)) + usable_bytes.to_bytes(2, "big") + bytes(1)
    )


def _write(copy: Path, place: int, value: bytes) -> None:
    with open(copy, "r+b") as file:
        file.seek(place)
        file.write(value)
