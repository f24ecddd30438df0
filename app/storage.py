"""All chats in one SQLite file: write-ahead log, foreign keys, full-text search. GUI thread.

One writer by design (the window); `ask` may write beside it, so a short busy wait is set. What is
stored survives the end of the program once a call returns, and a power cut a moment later.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.conversation import (
    ChatSettings,
    Conversation,
    ConversationId,
    ConversationSummary,
    Message,
    MessageId,
    MessageStatus,
)
from app.database import close_database, open_database
from app.disk_sync import DiskSync
from app.draft_writer import DraftWriter
from app.errors import StorageError
from app.migrations import STEPS
from app.search import MAX_WORDS, SearchHit, hit_from_row, search_query
from app.sqlite_errors import errors_for_people
from app.stored_values import (
    chat_settings_to_text,
    conversation_from_row,
    ids_to_blob,
    message_from_row,
    metrics_to_text,
    part_to_blobs,
    status_from,
    summary_from_row,
    text_from,
)
from inference.request import PromptPart, Role

NO_MESSAGE = MessageId(0)
"""Lower than the id of any message."""


@dataclass(frozen=True, slots=True)
class StoredEnd:
    """The message that ends a chat's path, without its text.

    Attributes:
        num_chars: How long its text is.
    """

    message_id: MessageId
    status: MessageStatus
    num_chars: int


class ConversationStore:
    """The database of one profile.

    Args:
        path: The file; made if missing.
        clock: Seconds since the epoch.
        steps: The migrations; others only in tests.

    Raises:
        DatabaseTooNewError: Made by a newer Quire; nothing was touched.
        DatabaseDamagedError: Not a sound database; kept aside, opening again makes a new one.
        StorageError: It cannot be opened or written.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        steps: Sequence[str] = STEPS,
    ) -> None:
        self.path = path
        self._clock = clock
        self._connection = open_database(path, steps)
        self._disk = DiskSync(path)
        self._drafts = DraftWriter(path, committed=self._disk.request)
        try:
            self._seen_version = self._data_version()
            self._seen_list = self._list_state()
        except StorageError:
            self._connection.close()
            raise

    # ------------------------------------------------------------------ conversations

    def conversations(self) -> list[ConversationSummary]:
        """All chats that are not deleted, the last used first."""
        rows = self._read(
            "SELECT id, title, updated_at FROM conversations WHERE deleted_at IS NULL"
            " ORDER BY updated_at DESC, key DESC"
        )
        return list(map(summary_from_row, rows))

    def find_by_title(self, title: str) -> ConversationId | None:
        """The last used chat with exactly this title."""
        rows = self._read(
            "SELECT id FROM conversations WHERE title = ? AND deleted_at IS NULL"
            " ORDER BY updated_at DESC, key DESC LIMIT 1",
            (title,),
        )
        return ConversationId(rows[0][0]) if rows else None

    def add_conversation(self, conversation: Conversation) -> None:
        """Store a new chat, without its messages."""
        self._write(
            "INSERT INTO conversations(id, title, created_at, updated_at, settings)"
            " VALUES (?, ?, ?, ?, ?)",
            (
                conversation.id,
                conversation.title,
                conversation.created_at,
                conversation.updated_at,
                chat_settings_to_text(conversation.settings),
            ),
        )

    def load(self, conversation_id: ConversationId) -> Conversation | None:
        """A whole chat; None if it is not there or deleted."""
        rows = self._read(
            "SELECT :chat AS id, title, created_at, updated_at, settings, leaf_id"
            " FROM conversations WHERE id = :chat AND deleted_at IS NULL",
            {"chat": conversation_id},
        )
        if not rows:
            return None
        return conversation_from_row(rows[0], self.messages_from(conversation_id))

    def messages_from(
        self, conversation_id: ConversationId, first_id: MessageId = NO_MESSAGE
    ) -> list[Message]:
        """A chat's messages with this id or a higher one, which are all that were added since it."""
        found = self._read(
            "SELECT id, :chat AS conversation_id, parent_id, role, content, created_at, status,"
            " token_ids, model_key, metrics, error, failure_kind, part_ids, part_digest, left_out"
            " FROM messages WHERE conversation_id = :chat AND id >= :first ORDER BY id",
            {"chat": conversation_id, "first": first_id},
        )
        return list(map(message_from_row, found))

    def rename(self, conversation_id: ConversationId, title: str) -> None:
        """Give a chat another title; its place in the list stays."""
        self._write("UPDATE conversations SET title = ? WHERE id = ?", (title, conversation_id))

    def set_settings(self, conversation_id: ConversationId, settings: ChatSettings) -> None:
        """Store a chat's own settings."""
        self._write(
            "UPDATE conversations SET settings = ? WHERE id = ?",
            (chat_settings_to_text(settings), conversation_id),
        )

    def set_leaf(self, conversation_id: ConversationId, leaf_id: MessageId) -> None:
        """Store which branch is shown."""
        self._write("UPDATE conversations SET leaf_id = ? WHERE id = ?", (leaf_id, conversation_id))

    def leaf_of(self, conversation_id: ConversationId) -> MessageId | None:
        """The end of a chat's stored path; None if it is empty or gone."""
        rows = self._read("SELECT leaf_id FROM conversations WHERE id = ?", (conversation_id,))
        return rows[0][0] if rows else None

    def end_of(self, conversation_id: ConversationId) -> StoredEnd | None:
        """The end of a chat's stored path as it is now; None if it is empty or gone."""
        rows = self._read(
            "SELECT messages.id, status, length(content) FROM conversations"
            " JOIN messages ON messages.id = leaf_id"
            " WHERE conversations.id = ? AND deleted_at IS NULL",
            (conversation_id,),
        )
        if not rows:
            return None
        return StoredEnd(MessageId(rows[0][0]), status_from(rows[0][1]), rows[0][2] or 0)

    def touch(self, conversation_id: ConversationId) -> float:
        """Move a chat to the top of the list; returns the time that was stored."""
        now = self._clock()
        self._write("UPDATE conversations SET updated_at = ? WHERE id = ?", (now, conversation_id))
        return now

    def delete(self, conversation_id: ConversationId) -> None:
        """Hide a chat; `restore` brings it back until `purge_deleted`."""
        self._write(
            "UPDATE conversations SET deleted_at = ? WHERE id = ? AND deleted_at IS NULL",
            (self._clock(), conversation_id),
        )

    def restore(self, conversation_id: ConversationId) -> None:
        """Bring a deleted chat back."""
        self._write("UPDATE conversations SET deleted_at = NULL WHERE id = ?", (conversation_id,))

    def purge_deleted(self) -> int:
        """Remove deleted chats for good, their text overwritten; returns how many."""
        with self.transaction():
            count = self._write("DELETE FROM conversations WHERE deleted_at IS NOT NULL")
            if count:
                # The text index keeps words of removed rows until it is merged.
                self._write("INSERT INTO message_index(message_index) VALUES ('optimize')")
                self._write("INSERT INTO title_index(title_index) VALUES ('optimize')")
        return count

    # ------------------------------------------------------------------ messages

    def add_message(
        self,
        conversation_id: ConversationId,
        *,
        parent_id: MessageId | None,
        role: Role,
        content: str,
        status: MessageStatus = "complete",
    ) -> Message:
        """Store a new message as the end of the visible path."""
        with self.transaction():
            now = self.touch(conversation_id)
            cursor = self._execute(
                "INSERT INTO messages(conversation_id, parent_id, role, content, created_at,"
                " status) VALUES (?, ?, ?, ?, ?, ?)",
                (conversation_id, parent_id, role, content, now, status),
            )
            message_id = MessageId(cursor.lastrowid or 0)
            self.set_leaf(conversation_id, message_id)
        return Message(message_id, conversation_id, parent_id, role, content, now, status)

    def add_replies(
        self, conversation_id: ConversationId, question_id: MessageId, num_replies: int
    ) -> list[Message]:
        """Store so many empty replies to a message, all or none; the visible path ends with the first."""
        with self.transaction():
            replies = [
                self.add_message(
                    conversation_id,
                    parent_id=question_id,
                    role="assistant",
                    content="",
                    status="streaming",
                )
                for _ in range(num_replies)
            ]
            self.set_leaf(conversation_id, replies[0].id)
        return replies

    def update_message(self, message: Message) -> None:
        """Store a message's new content and state."""
        self._write(
            "UPDATE messages SET content = ?, status = ?, token_ids = ?, model_key = ?,"
            " metrics = ?, error = ?, failure_kind = ?, part_ids = ?, part_digest = ?, left_out = ?"
            " WHERE id = ?",
            (
                message.content,
                message.status,
                ids_to_blob(message.token_ids),
                message.model_key,
                metrics_to_text(message.metrics),
                message.error,
                message.failure_kind,
                *part_to_blobs(message.part),
                message.left_out,
                message.id,
            ),
        )

    def set_parts(self, parts: Mapping[MessageId, PromptPart], model_key: str) -> None:
        """Keep ids of the prompt with messages, in place of what another model made of them."""
        with self.transaction():
            for message_id, part in parts.items():
                self._write(
                    "UPDATE messages SET part_ids = ?, part_digest = ?, model_key = ? WHERE id = ?",
                    (*part_to_blobs(part), model_key, message_id),
                )

    # ------------------------------------------------------------------ what is not sent yet

    def keep_draft(self, conversation_id: ConversationId | None, text: str) -> None:
        """Store what is written in a chat, soon, and return at once; None is a chat yet to come."""
        self._drafts.keep(conversation_id, text)

    def draft_of(self, conversation_id: ConversationId | None) -> str:
        """What was written in a chat and not sent; "" if nothing was."""
        pending = self._drafts.pending(conversation_id)
        if pending is not None:
            return pending
        rows = self._read(
            "SELECT content FROM drafts WHERE conversation_id IS ?", (conversation_id,)
        )
        return text_from(rows[0][0]) if rows else ""

    @property
    def draft_problem(self) -> StorageError | None:
        """Why what is written is not stored; it is tried again. None while all goes well."""
        return self._drafts.problem

    # ------------------------------------------------------------------ search

    def search(self, text: str) -> list[SearchHit]:
        """Chats whose title or messages hold all words of `text`, the last used first.

        Each chat comes once, by its newest matching message if there is one. Words match from
        their beginning; very short ones, signs and languages without spaces match anywhere.
        """
        words = list(dict.fromkeys(text.split()))[:MAX_WORDS]
        if not words:
            return []
        return [hit_from_row(row, words) for row in self._read(*search_query(words))]

    # ------------------------------------------------------------------ the connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is stored together or not at all; may be nested.

        Raises:
            StorageError: In words for people; nothing of it was stored.
        """
        is_inner = self._connection.in_transaction
        if is_inner:
            yield  # the one around it commits
            return
        with errors_for_people(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            with errors_for_people(self.path):
                self._connection.execute("COMMIT")
            self._disk.request()
        finally:
            # A full disk makes SQLite roll back by itself.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def was_changed_elsewhere(self) -> bool:
        """Whether another process, or the thread of the drafts, has stored anything since this was asked last.

        Takes microseconds.
        """
        seen, self._seen_version = self._seen_version, self._data_version()
        return seen != self._seen_version

    def list_was_changed(self) -> bool:
        """Whether a chat may have been stored, used or removed since this was asked last."""
        seen, self._seen_list = self._seen_list, self._list_state()
        return seen != self._seen_list

    def close(self) -> None:
        """Close the file; the write-ahead log is folded in."""
        self._drafts.close()  # first: it requests the disk
        self._disk.close()
        close_database(self._connection, self.path)

    def _data_version(self) -> int:
        # Another number after each commit that did not come from this connection.
        return int(self._read("PRAGMA data_version")[0][0])

    def _list_state(self) -> tuple[int, float | None]:
        row = self._read(
            "SELECT count(*), max(updated_at) FROM conversations WHERE deleted_at IS NULL"
        )[0]
        return row[0], row[1]

    def _read(
        self, sql: str, arguments: Sequence[object] | Mapping[str, object] = ()
    ) -> list[sqlite3.Row]:
        with errors_for_people(self.path):
            return self._connection.execute(sql, arguments).fetchall()

    def _write(self, sql: str, arguments: Sequence[object] = ()) -> int:
        with self.transaction():
            return self._execute(sql, arguments).rowcount

    def _execute(self, sql: str, arguments: Sequence[object]) -> sqlite3.Cursor:
        with errors_for_people(self.path):
            return self._connection.execute(sql, arguments)
