import logging
import os
from pathlib import Path

import pytest

from app.conversation import Conversation, ConversationId
from app.disk_sync import LOG_BYTES, DiskSync
from app.storage import ConversationStore


def test_close_without_a_request_needs_no_file(tmp_path: Path) -> None:
    DiskSync(tmp_path / "none.db").close()


def test_close_comes_after_the_sync_that_was_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.db-wal").write_bytes(b"log")
    contents: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda file: contents.append(os.pread(file, 9, 0)))
    disk = DiskSync(tmp_path / "c.db")
    disk.request()
    disk.close()
    assert set(contents) == {b"log"}


def test_disk_that_refuses_is_noted_without_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "c.db-wal").write_bytes(b"log")

    def refuse(file: int) -> None:
        raise OSError(5, "Input/output error", str(tmp_path))

    monkeypatch.setattr(os, "fsync", refuse)
    disk = DiskSync(tmp_path / "c.db")
    with caplog.at_level(logging.ERROR):
        disk.request()
        disk.close()
    assert "The chats may not be on the disk yet: OSError" in caplog.text
    assert str(tmp_path) not in caplog.text


def test_long_log_is_folded_into_the_database_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    store = ConversationStore(path)
    chat = ConversationId("c")
    store.add_conversation(Conversation(chat, "t", 0.0, 0.0))
    before = path.stat().st_size
    text = "word " * (LOG_BYTES // 4)
    store.add_message(chat, parent_id=None, role="user", content=text)
    store._disk.close()
    assert before < LOG_BYTES < path.stat().st_size
    assert len(store.conversations()) == 1
    store.close()
