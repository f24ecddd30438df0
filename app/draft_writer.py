"""Stores what is written and not sent yet, on a thread of its own. Pure Python.

A person goes on typing meanwhile: a text may be long, and another process may hold the database. What
could not be stored is tried again, and until then it is known here.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from app.conversation import ConversationId
from app.database import open_beside
from app.errors import StorageError
from app.sqlite_errors import SQLITE_ERRORS, storage_error

logger = logging.getLogger(__name__)

RETRY_S = 5.0

_INSERT = """
INSERT INTO drafts(conversation_id, content) SELECT :id, :text
WHERE :id IS NULL OR EXISTS (SELECT 1 FROM conversations WHERE id = :id)
"""


class DraftWriter:
    """Follows one database; its thread starts with the first text.

    Args:
        path: The database's file.
        committed: Called on the thread after each commit.

    Attributes:
        problem: Why the newest texts are not stored; None while all goes well.
    """

    def __init__(self, path: Path, *, committed: Callable[[], None]) -> None:
        self.problem: StorageError | None = None
        self._path = path
        self._committed = committed
        self._changed = threading.Condition()
        self._pending: dict[ConversationId | None, str] = {}
        self._is_wanted = False
        self._is_over = False
        self._thread: threading.Thread | None = None

    def keep(self, conversation_id: ConversationId | None, text: str) -> None:
        """Store this soon, in place of what the chat had; "" removes it. Returns at once."""
        with self._changed:
            self._pending[conversation_id] = text
            self._is_wanted = True
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="drafts", daemon=True)
            self._thread.start()

    def pending(self, conversation_id: ConversationId | None) -> str | None:
        """What is not stored yet of this chat; None if nothing is."""
        with self._changed:
            return self._pending.get(conversation_id)

    def close(self) -> None:
        """Wait until everything is stored, or was refused once more."""
        if self._thread is not None:
            with self._changed:
                self._is_over = True
                self._changed.notify()
            self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            with self._changed:
                wait_s = RETRY_S if self._pending else None
                self._changed.wait_for(lambda: self._is_wanted or self._is_over, wait_s)
                self._is_wanted = False
                is_last = self._is_over
                taken = dict(self._pending)
            if taken:
                self._store(taken)

    def _store(self, taken: dict[ConversationId | None, str]) -> None:
        try:
            self._write(taken)
        except SQLITE_ERRORS as error:
            if self.problem is None:
                logger.error("Unsent text could not be stored: %s", type(error).__name__)
            self.problem = storage_error(error, self._path)
            return
        self.problem = None
        with self._changed:
            for conversation_id, text in taken.items():
                if self._pending[conversation_id] is text:
                    del self._pending[conversation_id]
        self._committed()

    def _write(self, taken: dict[ConversationId | None, str]) -> None:
        with contextlib.closing(open_beside(self._path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for conversation_id, text in taken.items():
                connection.execute(
                    "DELETE FROM drafts WHERE conversation_id IS ?", (conversation_id,)
                )
                if text:
                    connection.execute(_INSERT, {"id": conversation_id, "text": text})
            connection.execute("COMMIT")  # without it, closing undoes all
