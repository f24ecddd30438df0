import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.migrations import STEPS, migrate, stored_version


def make_connection() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


def make_chat(steps: Sequence[str]) -> sqlite3.Connection:
    """A database of an older version with one chat."""
    connection = make_connection()
    migrate(connection, steps)
    connection.execute(
        "INSERT INTO conversations(id, title, created_at, updated_at, settings)"
        " VALUES ('a', 'Title', 1.0, 2.0, '{}')"
    )
    return connection


def tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [row[0] for row in rows]


def test_new_database_has_version_zero() -> None:
    assert stored_version(make_connection()) == 0


def test_migrate_runs_all_steps_and_stores_the_number() -> None:
    connection = make_connection()
    migrate(connection)
    assert stored_version(connection) == len(STEPS) == 4
    assert {"conversations", "messages", "message_index", "title_index"} <= set(tables(connection))
    migrate(connection)
    assert stored_version(connection) == len(STEPS)


def test_version_1_gets_the_kind_of_failure_and_keeps_its_rows() -> None:
    connection = make_chat(STEPS[:1])
    connection.execute(
        "INSERT INTO messages(conversation_id, role, content, created_at, status, error)"
        " VALUES ('a', 'assistant', 'half', 3.0, 'error', 'Lost.')"
    )
    migrate(connection, STEPS[:2])
    assert stored_version(connection) == 2
    rows = connection.execute("SELECT id, content, error, failure_kind FROM messages").fetchall()
    assert rows == [(1, "half", "Lost.", None)]
    found = connection.execute("SELECT rowid FROM message_index WHERE message_index MATCH 'half'")
    assert found.fetchall() == [(1,)]


def test_version_2_gets_parts_of_prompts_and_keeps_its_rows() -> None:
    connection = make_chat(STEPS[:2])
    connection.execute(
        "INSERT INTO messages(conversation_id, role, content, created_at, status, token_ids)"
        " VALUES ('a', 'assistant', 'half', 3.0, 'complete', x'01000000')"
    )
    migrate(connection)
    assert stored_version(connection) == len(STEPS)
    rows = connection.execute(
        "SELECT content, token_ids, part_ids, part_digest, left_out FROM messages"
    )
    assert rows.fetchall() == [("half", b"\1\0\0\0", None, None, 0)]


def test_migrate_runs_only_the_steps_that_lack() -> None:
    connection = make_connection()
    migrate(connection, ["CREATE TABLE a(x);"])
    migrate(connection, ["CREATE TABLE a(x);", "CREATE TABLE b(x);\nINSERT INTO b VALUES (1);"])
    assert tables(connection) == ["a", "b"]
    assert stored_version(connection) == 2
    assert connection.execute("SELECT x FROM b").fetchall() == [(1,)]


def test_step_that_fails_leaves_the_version_before_it_whole() -> None:
    connection = make_connection()
    steps = ["CREATE TABLE a(x);", "CREATE TABLE b(x);\nCREATE TABLE a(x);"]
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        migrate(connection, steps)
    assert tables(connection) == ["a"]
    assert stored_version(connection) == 1
    assert not connection.in_transaction


def test_step_that_cannot_begin_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    connection = sqlite3.connect(path, isolation_level=None, timeout=0.0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        migrate(connection)
    holder.close()
    connection.close()


def test_step_that_another_process_has_done_is_left_out(tmp_path: Path) -> None:
    """Two first starts at once: the second finds the tables made while it waited."""
    path = tmp_path / "a.db"
    steps = ["CREATE TABLE a(x);"]
    connection = sqlite3.connect(path, isolation_level=None)
    other = sqlite3.connect(path, isolation_level=None)

    def on_statement(statement: str) -> None:
        if statement == "BEGIN IMMEDIATE" and stored_version(other) == 0:
            migrate(other, steps)

    connection.set_trace_callback(on_statement)
    migrate(connection, steps)
    connection.set_trace_callback(None)
    assert stored_version(connection) == 1
    other.close()
    connection.close()


def test_step_on_a_full_disk_is_undone_whole() -> None:
    connection = make_connection()
    connection.execute("PRAGMA max_page_count = 8").fetchall()
    with pytest.raises(sqlite3.OperationalError, match="full"):
        migrate(connection)
    assert not connection.in_transaction
    assert tables(connection) == []
    assert stored_version(connection) == 0


def test_step_that_sqlite_undid_by_itself_raises_all_the_same() -> None:
    connection = make_connection()
    step = "CREATE TABLE a(x UNIQUE);\nINSERT INTO a VALUES (1);\nINSERT OR ROLLBACK INTO a VALUES (1);"
    with pytest.raises(sqlite3.IntegrityError):
        migrate(connection, [step])
    assert tables(connection) == []
    assert stored_version(connection) == 0
