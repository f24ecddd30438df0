"""The database's format, as steps from one version to the next. GUI thread.

The version is SQLite's own `user_version`. Each step runs in one transaction together with the
new number, so a crash leaves the old format whole. A step that has been released is never edited.
"""

import sqlite3
from collections.abc import Sequence

VERSION_1 = """
CREATE TABLE conversations (
    key INTEGER PRIMARY KEY,                -- joins the text index; stays the same for good
    id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    settings TEXT NOT NULL,                 -- JSON
    leaf_id INTEGER REFERENCES messages(id) ON DELETE SET NULL,
    deleted_at REAL                         -- set: may still be restored
);
CREATE INDEX conversations_by_update ON conversations(updated_at);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- rising for good: a newer branch has a higher id
    conversation_id TEXT NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
    parent_id INTEGER REFERENCES messages(id) ON DELETE CASCADE,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    created_at REAL NOT NULL,
    status TEXT NOT NULL,
    token_ids BLOB,                         -- unsigned 32-bit, little-endian
    model_key TEXT,
    metrics TEXT,                           -- JSON
    error TEXT
);
CREATE INDEX messages_by_conversation ON messages(conversation_id);
CREATE INDEX messages_by_parent ON messages(parent_id);

CREATE VIRTUAL TABLE message_index USING fts5(
    content, content='messages', content_rowid='id', tokenize='unicode61 remove_diacritics 2');
CREATE TRIGGER message_added AFTER INSERT ON messages BEGIN
    INSERT INTO message_index(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER message_removed AFTER DELETE ON messages BEGIN
    INSERT INTO message_index(message_index, rowid, content) VALUES ('delete', old.id, old.content);
END;
CREATE TRIGGER message_changed AFTER UPDATE OF content ON messages BEGIN
    INSERT INTO message_index(message_index, rowid, content) VALUES ('delete', old.id, old.content);
    INSERT INTO message_index(rowid, content) VALUES (new.id, new.content);
END;

CREATE VIRTUAL TABLE title_index USING fts5(
    title, content='conversations', content_rowid='key', tokenize='unicode61 remove_diacritics 2');
CREATE TRIGGER title_added AFTER INSERT ON conversations BEGIN
    INSERT INTO title_index(rowid, title) VALUES (new.key, new.title);
END;
CREATE TRIGGER title_removed AFTER DELETE ON conversations BEGIN
    INSERT INTO title_index(title_index, rowid, title) VALUES ('delete', old.key, old.title);
END;
CREATE TRIGGER title_changed AFTER UPDATE OF title ON conversations BEGIN
    INSERT INTO title_index(title_index, rowid, title) VALUES ('delete', old.key, old.title);
    INSERT INTO title_index(rowid, title) VALUES (new.key, new.title);
END;
"""

VERSION_2 = """
ALTER TABLE messages ADD COLUMN failure_kind TEXT;
"""

# part_*: of a person's message, the prompt's ids that end with it. A reply has its ids in token_ids.
VERSION_3 = """
ALTER TABLE messages ADD COLUMN part_ids BLOB;          -- unsigned 32-bit, little-endian
ALTER TABLE messages ADD COLUMN part_digest BLOB;
ALTER TABLE messages ADD COLUMN left_out INTEGER NOT NULL DEFAULT 0;
"""

VERSION_4 = """
CREATE TABLE drafts (                       -- what is written and not sent yet
    -- NULL: of the chat that is stored with its first message. Unique all the same, see DraftWriter.
    conversation_id TEXT UNIQUE REFERENCES conversations(id) ON DELETE CASCADE,
    content TEXT NOT NULL
);
"""

_TEXT_INDEXES = ("message_index", "title_index")

# The step at index i leads from version i to version i + 1.
STEPS: tuple[str, ...] = (VERSION_1, VERSION_2, VERSION_3, VERSION_4)


def stored_version(connection: sqlite3.Connection) -> int:
    """The format of this database; 0 for a new one."""
    row = connection.execute("PRAGMA user_version").fetchone()
    return int(row[0])


def migrate(connection: sqlite3.Connection, steps: Sequence[str] = STEPS) -> None:
    """Bring the database to the newest format; each step whole or not at all."""
    for version in range(stored_version(connection), len(steps)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have been faster between the look and the lock.
            if stored_version(connection) == version:
                for statement in _statements(steps[version]):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def make_text_indexes(connection: sqlite3.Connection) -> None:
    """Make them anew from the texts, whatever they hold."""
    for index in _TEXT_INDEXES:
        connection.execute(f"INSERT INTO {index}({index}) VALUES ('rebuild')")


def _statements(script: str) -> list[str]:
    """Split a script; a trigger's body holds semicolons, so SQLite says where one ends."""
    found: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending)
            pending = ""
    return found
