"""What is written and not sent: stored beside the chats, on a thread of its own."""

import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.conversation import Conversation, ConversationId
from app.database import open_beside
from app.draft_writer import DraftWriter
from app.session_changes import DraftReturned, StorageFailed
from app.storage import ConversationStore
from tests.app.session_bench import LONG, Bench

A = ConversationId("a")
SECRET = "nobody else may read quixotic words"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@pytest.fixture
def store(path: Path) -> Iterator[ConversationStore]:
    store = ConversationStore(path)
    store.add_conversation(Conversation(A, "A", 0.0, 0.0))
    yield store
    store.close()


def settled(store: ConversationStore) -> None:
    """Wait until the thread has stored everything."""
    store._drafts.close()
    store._drafts = DraftWriter(store.path, committed=store._disk.request)


def until(is_so: Callable[[], bool]) -> None:
    """Wait for the thread."""
    deadline = time.monotonic() + 10.0
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def stored(path: Path) -> list[tuple[str | None, str]]:
    """What another process finds."""
    other = sqlite3.connect(path)
    rows = other.execute("SELECT conversation_id, content FROM drafts ORDER BY 1").fetchall()
    other.close()
    return rows


# ---------------------------------------------------------------- the store


def test_drafts_are_there_when_the_store_is_opened_again(path: Path) -> None:
    store = ConversationStore(path)
    store.add_conversation(Conversation(A, "A", 0.0, 0.0))
    store.keep_draft(A, "half a thou")
    store.keep_draft(None, "new")
    store.keep_draft(None, "new one")
    assert (store.draft_of(A), store.draft_of(None)) == ("half a thou", "new one")
    store.close()
    assert stored(path) == [(None, "new one"), ("a", "half a thou")]
    again = ConversationStore(path)
    assert (again.draft_of(A), again.draft_of(None)) == ("half a thou", "new one")
    assert again.draft_of(ConversationId("b")) == ""
    again.close()


def test_draft_that_is_emptied_leaves_no_row(store: ConversationStore, path: Path) -> None:
    store.keep_draft(A, "x")
    store.keep_draft(None, "y")
    settled(store)
    store.keep_draft(A, "")
    store.keep_draft(None, "")
    assert store.draft_of(A) == ""
    settled(store)
    assert stored(path) == []
    assert store.draft_of(A) == ""


def test_draft_goes_with_its_chat_and_its_text_from_the_file(
    store: ConversationStore, path: Path
) -> None:
    store.keep_draft(A, SECRET)
    settled(store)
    store.delete(A)
    assert store.draft_of(A) == SECRET  # it may still be restored
    store.purge_deleted()
    store.keep_draft(A, SECRET)  # from a window that had not heard of it
    settled(store)
    assert stored(path) == []
    store.close()
    assert SECRET.encode() not in path.read_bytes()


def test_draft_that_was_removed_is_overwritten_in_the_file(
    store: ConversationStore, path: Path
) -> None:
    store.keep_draft(None, SECRET)
    settled(store)
    store.keep_draft(None, "")
    settled(store)
    store.close()
    assert SECRET.encode() not in path.read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="no modes on this system")
def test_files_with_drafts_are_their_owner_s_alone(store: ConversationStore, path: Path) -> None:
    store.keep_draft(None, SECRET)
    settled(store)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert f"{path.name}-wal" in modes


def test_draft_waits_for_a_database_that_another_program_holds(
    store: ConversationStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.database.BUSY_TIMEOUT_MS", 0)
    monkeypatch.setattr("app.draft_writer.RETRY_S", 0.005)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.keep_draft(A, "x")  # returns at once
    until(lambda: store.draft_problem is not None)
    assert "Another program holds the file" in str(store.draft_problem)
    assert store.draft_of(A) == "x"
    other.execute("ROLLBACK")
    other.close()
    until(lambda: store.draft_problem is None)  # it is tried again by itself
    assert stored(path) == [("a", "x")]


def test_text_of_a_draft_never_stands_in_the_log(
    store: ConversationStore,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("app.database.BUSY_TIMEOUT_MS", 0)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.DEBUG):
        store.keep_draft(A, SECRET)
        settled(store)
    assert [record.message for record in caplog.records] == [
        "Unsent text could not be stored: OperationalError"
    ]
    other.close()


def test_newer_text_is_stored_after_one_that_is_being_stored(
    store: ConversationStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = DraftWriter._write
    texts = iter(["second"])

    def write_and_go_on(self: DraftWriter, taken: dict[ConversationId | None, str]) -> None:
        write(self, taken)
        for text in texts:  # the person has typed on meanwhile
            store.keep_draft(A, text)

    monkeypatch.setattr(DraftWriter, "_write", write_and_go_on)
    store.keep_draft(A, "first")
    until(lambda: stored(path) == [("a", "second")])


def test_drafts_do_not_change_the_list_of_chats(store: ConversationStore) -> None:
    store.list_was_changed()  # the chat itself was added since the store was opened
    store.keep_draft(A, "y")
    settled(store)
    assert not store.list_was_changed()


KILLED = """
import sys, time
from pathlib import Path
from app.storage import ConversationStore

store = ConversationStore(Path(sys.argv[1]))
store.keep_draft(None, "not sent yet")
while store._drafts.pending(None) is not None:
    time.sleep(0.001)
print("stored", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_draft_outlives_a_program_that_is_killed(path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "stored\n"
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    store = ConversationStore(path)
    assert store.draft_of(None) == "not sent yet"
    store.close()


# ---------------------------------------------------------------- the session


def test_text_that_waits_to_be_sent_is_kept_with_what_is_written_since(ready: Bench) -> None:
    drafts, chat_id = ready.session.drafts, None
    assert ready.session.send(LONG)
    drafts.keep(chat_id, "")
    assert drafts.of(chat_id) == LONG
    drafts.keep(chat_id, "more")
    assert drafts.of(chat_id) == f"{LONG}\n\nmore"
    ready.session.stop()  # it goes back to the composer
    assert any(isinstance(change, DraftReturned) for change in ready.take())
    drafts.keep(chat_id, "more")
    assert drafts.of(chat_id) == "more"


def test_half_of_a_pair_in_a_draft_can_be_stored(ready: Bench) -> None:
    ready.session.drafts.keep(None, "a\ud800b")
    settled(ready.store)
    assert ready.session.drafts.of(None) == "a\ufffdb"


def test_draft_that_cannot_be_stored_is_told_once(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.database.BUSY_TIMEOUT_MS", 0)
    other = sqlite3.connect(ready.store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    drafts = ready.session.drafts
    drafts.keep(None, "x")
    until(lambda: ready.store.draft_problem is not None)
    drafts.keep(None, "x")
    drafts.keep(None, "x")
    told = [change for change in ready.take() if isinstance(change, StorageFailed)]
    assert len(told) == 1
    other.close()


def test_draft_that_cannot_be_stored_is_told_though_nothing_more_is_written(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.database.BUSY_TIMEOUT_MS", 0)
    other = sqlite3.connect(ready.store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    may_write = threading.Event()  # else keeping it may already tell

    def opened_later(path: Path) -> sqlite3.Connection:
        may_write.wait(10.0)
        return open_beside(path)

    monkeypatch.setattr("app.draft_writer.open_beside", opened_later)
    ready.session.drafts.keep(None, "x")
    assert ready.take() == []
    may_write.set()
    until(lambda: ready.store.draft_problem is not None)
    ready.session.notice_others()
    ready.session.notice_others()
    assert [type(change) for change in ready.take()] == [StorageFailed]
    other.close()
