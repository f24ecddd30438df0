"""Brings what was stored to the disk itself, on a thread of its own. Pure Python.

A commit leaves the change with the system, where it survives the end of this program, however that
comes. Only a power cut can still undo it until the disk has it, and an fsync may take far longer than
a frame: so it happens here, a moment later, and so does folding a long log into the database.
"""

import contextlib
import logging
import os
import sqlite3
import threading
from pathlib import Path

from app.sqlite_errors import SQLITE_ERRORS

logger = logging.getLogger(__name__)

LOG_BYTES = 4 * 2**20
"""A longer write-ahead log is folded into the database."""


class DiskSync:
    """Follows one database; its thread starts with the first request.

    Args:
        path: The database's file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._is_wanted = threading.Event()
        self._is_over = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        """Something was committed; from any thread, returns at once."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="disk sync", daemon=True)
                self._thread.start()
        self._is_wanted.set()

    def close(self) -> None:
        """Wait until the disk has everything; afterwards nothing may be requested."""
        if self._thread is not None:
            self._is_over = True
            self._is_wanted.set()
            self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._is_wanted.wait()
            self._is_wanted.clear()
            is_last = self._is_over
            try:
                self._sync()
            except (OSError, *SQLITE_ERRORS) as error:
                logger.error("The chats may not be on the disk yet: %s", type(error).__name__)

    def _sync(self) -> None:
        log = os.open(self._log, os.O_RDWR)
        try:
            os.fsync(log)
            is_long = os.fstat(log).st_size > LOG_BYTES
        finally:
            os.close(log)
        if is_long:
            # PASSIVE waits for nobody and makes nobody wait.
            # Never made anew: if the file was taken away, it is put back when it is closed.
            uri = f"{self._path.absolute().as_uri()}?mode=rw"
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
