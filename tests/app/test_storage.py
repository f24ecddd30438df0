import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.conversation import (
    ChatSettings,
    Conversation,
    ConversationId,
    ConversationSummary,
    Message,
    MessageId,
)
from app.disk_sync import LOG_BYTES
from app.errors import DatabaseTooNewError, StorageError
from app.migrations import STEPS, migrate, stored_version
from app.sqlite_errors import storage_error
from app.storage import ConversationStore, StoredEnd
from inference.config import SamplingParams
from inference.metrics import RequestMetrics
from inference.request import PromptPart
from tests.app.stored_chats import add_chat, hits, make_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConversationStore]:
    store = make_store(tmp_path)
    yield store
    store.close()


# ---------------------------------------------------------------- chats and messages


def test_chat_written_and_read_is_equal(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    settings = ChatSettings("Be brief.", SamplingParams(temperature=0.0), "leave_out")
    chat = Conversation(ConversationId("a"), "Été 中", 10.0, 11.0, settings)
    store.add_conversation(chat)
    store.close()
    again = make_store(tmp_path)
    assert again.load(chat.id) == chat
    again.close()


def test_chat_that_is_not_there_is_none(store: ConversationStore) -> None:
    assert store.load(ConversationId("a")) is None


def test_message_written_and_read_is_equal(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    chat = add_chat(store, "a", "Hi")
    added = store.add_message(
        chat.id, parent_id=MessageId(1), role="assistant", content="", status="streaming"
    )
    assert added == Message(
        MessageId(2), chat.id, MessageId(1), "assistant", "", 2.0, status="streaming"
    )
    done = replace(
        added,
        content="Hello \N{WAVING HAND SIGN}",
        status="complete",
        token_ids=(1, 70_000),
        model_key="m",
        metrics=RequestMetrics(prompt_tokens=3, completion_tokens=2, ttft_ms=0.5),
        error="none really",
        failure_kind="compute",
        part=PromptPart((4, 5), b"d" * 16),
        left_out=2,
    )
    store.update_message(done)
    store.close()
    again = make_store(tmp_path)
    loaded = again.load(chat.id)
    again.close()
    assert loaded is not None
    assert loaded.path() == [chat.messages[MessageId(1)], done]
    assert loaded.updated_at == 2.0


def test_parts_are_kept_with_their_messages_and_the_model_that_made_them(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    chat = add_chat(store, "a", "Hi", "Hello", "Bye")
    first, reply, last = chat.path()
    part, newer = PromptPart((1, 70_000), b"d" * 16), PromptPart((), b"e" * 16)
    store.set_parts({first.id: part, last.id: newer}, "m")
    store.set_parts({}, "m")
    store.set_parts({last.id: part}, "n")
    store.close()
    again = make_store(tmp_path)
    loaded = again.load(chat.id)
    again.close()
    assert loaded is not None
    assert loaded.path() == [
        replace(first, part=part, model_key="m"),
        reply,
        replace(last, part=part, model_key="n"),
    ]
    assert loaded.updated_at == chat.updated_at


def test_chats_are_listed_last_used_first(store: ConversationStore) -> None:
    add_chat(store, "a", "1")
    add_chat(store, "b", "2")
    add_chat(store, "c")
    store.touch(ConversationId("a"))
    assert store.conversations() == [
        ConversationSummary(ConversationId("a"), "Title a", 3.0),
        ConversationSummary(ConversationId("b"), "Title b", 2.0),
        ConversationSummary(ConversationId("c"), "Title c", 0.0),
    ]


def test_leaf_is_the_last_message_added_or_the_one_set(store: ConversationStore) -> None:
    chat = add_chat(store, "a", "1", "2", "3")
    assert chat.leaf_id == 3
    store.set_leaf(chat.id, MessageId(2))
    loaded = store.load(chat.id)
    assert loaded is not None
    assert loaded.leaf_id == 2


def test_leaf_that_is_lost_becomes_the_newest_message(
    store: ConversationStore, tmp_path: Path
) -> None:
    chat = add_chat(store, "a", "1", "2")
    other = sqlite3.connect(tmp_path / "chats.db")
    other.execute("UPDATE conversations SET leaf_id = NULL")
    other.commit()
    other.close()
    loaded = store.load(chat.id)
    assert loaded is not None
    assert loaded.leaf_id == 2


def test_rename_and_settings_are_kept(store: ConversationStore) -> None:
    chat = add_chat(store, "a", "1")
    store.rename(chat.id, "New")
    store.set_settings(chat.id, ChatSettings("S"))
    assert store.load(chat.id) == replace(chat, title="New", settings=ChatSettings("S"))


def test_find_by_title_takes_the_last_used(store: ConversationStore) -> None:
    add_chat(store, "a", "1")
    add_chat(store, "b", "2")
    store.rename(ConversationId("a"), "Title b")
    assert store.find_by_title("Title b") == "b"
    store.delete(ConversationId("b"))
    assert store.find_by_title("Title b") == "a"
    assert store.find_by_title("title b") is None


def test_deleted_chat_is_hidden_until_restored(store: ConversationStore) -> None:
    chat = add_chat(store, "a", "plane tree")
    store.delete(chat.id)
    assert store.conversations() == []
    assert store.load(chat.id) is None
    assert store.search("plane") == []
    store.restore(chat.id)
    assert store.load(chat.id) == chat
    assert hits(store, "plane") == [("a", 1)]


def test_purge_removes_deleted_chats_and_their_text_from_the_file(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    kept = add_chat(store, "a", "keep this")
    gone = add_chat(store, "b", "zyzzyva secret word", "answer")
    store.delete(gone.id)
    assert store.purge_deleted() == 1
    assert store.purge_deleted() == 0
    store.restore(gone.id)
    assert store.load(gone.id) is None
    assert store.load(kept.id) == kept
    store.close()
    for path in tmp_path.iterdir():
        assert b"zyzzyva" not in path.read_bytes()


def test_message_of_no_chat_is_refused_and_nothing_stays(store: ConversationStore) -> None:
    with pytest.raises(StorageError, match=r"SQLite refused it \(SQLITE_CONSTRAINT_FOREIGNKEY\)\."):
        store.add_message(ConversationId("x"), parent_id=None, role="user", content="Hi")
    assert store.search("Hi") == []


def test_transaction_that_fails_stores_nothing(store: ConversationStore) -> None:
    def add_and_fail() -> None:
        with store.transaction():
            add_chat(store, "a", "1")
            raise KeyError

    with pytest.raises(KeyError):
        add_and_fail()
    assert store.conversations() == []
    add_chat(store, "b", "2")
    assert [chat.id for chat in store.conversations()] == ["b"]


# ---------------------------------------------------------------- search


def test_search_finds_words_from_their_beginning_without_accents(store: ConversationStore) -> None:
    add_chat(store, "a", "Why do plane trees shed?", "Their écorce cannot stretch.")
    assert hits(store, "plan tree") == [("a", 1)]
    assert hits(store, "ECORCE") == [("a", 2)]
    assert hits(store, "lane") == []
    assert hits(store, "plane stretch") == []


def test_search_gives_each_chat_once_with_its_newest_message(store: ConversationStore) -> None:
    add_chat(store, "a", "bark one", "bark two")
    add_chat(store, "b", "bark three")
    found = store.search("bark")
    assert [(hit.conversation.id, hit.message_id, hit.snippet) for hit in found] == [
        ("b", 3, "bark three"),
        ("a", 2, "bark two"),
    ]


def test_search_finds_titles(store: ConversationStore) -> None:
    add_chat(store, "a", "text")
    store.rename(ConversationId("a"), "Sycamore maple")
    hit = store.search("sycam")[0]
    assert (hit.conversation.title, hit.message_id, hit.snippet) == ("Sycamore maple", None, "")
    assert hits(store, "title") == []


@pytest.mark.parametrize("text", ["梧桐", "c++", "ü", "ab", "ÖL", "100%"])
def test_search_for_short_words_signs_and_cjk_matches_anywhere(
    store: ConversationStore, text: str
) -> None:
    add_chat(store, "a", "为什么梧桐树掉皮? In C++, fürs Öl, cabs, 100% sure")
    add_chat(store, "b", "nothing")
    assert hits(store, text) == [("a", 1)]


def test_search_by_short_words_finds_titles(store: ConversationStore) -> None:
    add_chat(store, "a", "x")
    store.rename(ConversationId("a"), "梧桐树")
    assert hits(store, "桐") == [("a", None)]


@pytest.mark.parametrize("text", ["", "  ", '"', "AND", "NEAR(", "*", "a OR b", "'; DROP TABLE"])
def test_search_takes_any_text(store: ConversationStore, text: str) -> None:
    add_chat(store, "a", "x")
    assert store.search(text) == []


def test_search_follows_changes_of_a_message(store: ConversationStore) -> None:
    chat = add_chat(store, "a", "first text")
    store.update_message(replace(chat.messages[MessageId(1)], content="second text"))
    assert hits(store, "first") == []
    assert hits(store, "second") == [("a", 1)]


# ---------------------------------------------------------------- damage and trouble


def test_database_of_a_newer_quire_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.execute("CREATE TABLE x(y)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DatabaseTooNewError, match="format 99, this one knows 4"):
        make_store(tmp_path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_database_of_an_older_quire_is_copied_before_it_is_lifted(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    chat = add_chat(store, "a", "1")
    store.close()
    steps = (*STEPS, "CREATE TABLE later(x);")
    lifted = make_store(tmp_path, steps=steps)
    assert lifted.load(chat.id) == chat
    lifted.close()
    copy = ConversationStore(tmp_path / "chats.format-4.db")
    assert copy.load(chat.id) == chat
    copy.close()


def test_database_of_version_1_opens_and_takes_the_kind_of_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, STEPS[:1])
    connection.execute(
        "INSERT INTO conversations(id, title, created_at, updated_at, settings)"
        " VALUES ('a', 'Title', 1.0, 2.0, '{}')"
    )
    connection.execute(
        "INSERT INTO messages(conversation_id, role, content, created_at, status, error)"
        " VALUES ('a', 'assistant', 'half', 3.0, 'error', 'Lost.')"
    )
    connection.close()
    store = make_store(tmp_path)
    loaded = store.load(ConversationId("a"))
    old = Message(
        MessageId(1),
        ConversationId("a"),
        None,
        "assistant",
        "half",
        3.0,
        status="error",
        error="Lost.",
    )
    assert loaded is not None
    assert loaded.path() == [old]
    store.update_message(replace(old, failure_kind="context_full"))
    store.close()
    again = make_store(tmp_path)
    loaded = again.load(ConversationId("a"))
    again.close()
    assert loaded is not None
    assert loaded.path() == [replace(old, failure_kind="context_full")]
    copy = sqlite3.connect(tmp_path / "chats.format-1.db")
    assert stored_version(copy) == 1
    assert copy.execute("SELECT content FROM messages").fetchall() == [("half",)]
    copy.close()


def test_database_in_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be opened") as caught:
        make_store(tmp_path / "nowhere")
    assert "--profile" in caught.value.hint


def test_database_held_by_another_program_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.database.BUSY_TIMEOUT_MS", 0)
    store = make_store(tmp_path)
    other = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="Another program holds the file"):
        add_chat(store, "a", "1")
    other.execute("COMMIT")
    other.close()
    add_chat(store, "a", "1")
    store.close()


def test_disk_that_is_full_says_so_and_keeps_what_was_stored(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    chat = add_chat(store, "a", "first message")
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    with pytest.raises(StorageError, match="The disk is full") as caught:
        store.add_message(chat.id, parent_id=chat.leaf_id, role="user", content="x" * 100_000)
    assert caught.value.hint == "Free some space, then try again."
    assert store.load(chat.id) == chat
    store._connection.execute("PRAGMA max_page_count = 100000").fetchall()
    store.add_message(chat.id, parent_id=chat.leaf_id, role="user", content="x" * 100_000)
    store.close()


def test_commit_that_fails_is_rolled_back(tmp_path: Path) -> None:
    store = make_store(tmp_path)

    def add_an_orphan() -> None:
        with store.transaction():
            store._execute("PRAGMA defer_foreign_keys = ON", ())
            store.add_message(ConversationId("x"), parent_id=None, role="user", content="Hi")

    with pytest.raises(StorageError, match=r"SQLite refused it \(SQLITE_CONSTRAINT_FOREIGNKEY\)\."):
        add_an_orphan()
    add_chat(store, "a", "1")
    assert [chat.id for chat in store.conversations()] == ["a"]
    store.close()


def test_unknown_error_is_told_by_its_name_without_its_words(tmp_path: Path) -> None:
    error = storage_error(sqlite3.OperationalError("odd thing"), tmp_path / "chats.db")
    assert str(error) == (
        f"The chats in {tmp_path / 'chats.db'} could not be read or stored."
        " SQLite refused it (OperationalError)."
    )
    assert error.hint == "Start Quire again, or choose another folder with --profile."


@pytest.mark.parametrize(
    ("num_free_bytes", "words", "hint"),
    [
        (100_000, "The disk is full.", "Free some space, then try again."),
        (2**20, "The disk reported an error.", "Check the disk and its free space."),
        (None, "The disk reported an error.", "Check the disk and its free space."),
    ],
)
def test_files_that_a_full_disk_has_no_room_for_are_told_as_such(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_free_bytes: int | None,
    words: str,
    hint: str,
) -> None:
    def usage(folder: Path) -> SimpleNamespace:
        assert folder == tmp_path
        if num_free_bytes is None:
            raise FileNotFoundError(folder)
        return SimpleNamespace(free=num_free_bytes)

    monkeypatch.setattr("app.sqlite_errors.shutil.disk_usage", usage)
    refusal = sqlite3.OperationalError("disk I/O error")
    refusal.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    error = storage_error(refusal, tmp_path / "chats.db")
    assert str(error).endswith(f" could not be read or stored. {words}")
    assert error.hint == hint


WRITER = """
import sys
from collections.abc import Iterator
from pathlib import Path
from app.conversation import Conversation, ConversationId
from app.storage import ConversationStore, StoredEnd

store = ConversationStore(Path(sys.argv[1]))
store.add_conversation(Conversation(ConversationId("a"), "t", 0.0, 0.0))
parent = None
for number in range(100_000):
    message = store.add_message(
        ConversationId("a"), parent_id=parent, role="user", content=f"message {number}"
    )
    parent = message.id
    print(number, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
@pytest.mark.parametrize("num_seen", [1, 7, 40])
def test_process_killed_while_writing_loses_no_message(tmp_path: Path, num_seen: int) -> None:
    path = tmp_path / "chats.db"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    for _ in range(num_seen):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    said = num_seen + len(process.stdout.read().split())
    process.wait(10)
    process.stdout.close()
    store = ConversationStore(path)
    chat = store.load(ConversationId("a"))
    assert chat is not None
    contents = [message.content for message in chat.path()]
    assert contents == [f"message {number}" for number in range(len(contents))]
    # The one after the last that was printed may have been committed, and not been said yet.
    assert len(contents) in (said, said + 1)
    store.close()


# ---------------------------------------------------------------- time


def test_commit_leaves_waiting_for_the_disk_to_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def note(file: int) -> None:
        threads.append(threading.current_thread().name)

    monkeypatch.setattr(os, "fsync", note)
    store = make_store(tmp_path)
    add_chat(store, "a", "one")
    assert store._connection.execute("PRAGMA synchronous").fetchone()[0] == 1  # NORMAL
    assert store._connection.execute("PRAGMA wal_autocheckpoint").fetchone()[0] == 0
    store.close()
    assert set(threads) == {"disk sync"}


def test_search_takes_a_few_steps_for_each_message_that_matches(store: ConversationStore) -> None:
    for number in range(20):
        add_chat(store, f"c{number}", *["plane tree"] * 20)
    num_steps = 0

    def count() -> None:
        nonlocal num_steps
        num_steps += 100

    store._connection.set_progress_handler(count, 100)
    assert len(store.search("plane")) == 20
    assert num_steps < 400 * 60


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipe_in_the_place_of_the_database_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "chats.db")
    with pytest.raises(StorageError, match="it is a named pipe, not a file") as caught:
        ConversationStore(tmp_path / "chats.db")
    assert "--profile" in caught.value.hint


# ---------------------------------------------------------------- another process


def test_chats_that_another_connection_stores_are_noticed_once(tmp_path: Path) -> None:
    one, other = make_store(tmp_path), make_store(tmp_path)

    def is_noticed(store: ConversationStore) -> bool:
        return store.was_changed_elsewhere() and store.list_was_changed()

    assert not is_noticed(one)
    chat = add_chat(other, "a", "Hi")
    assert is_noticed(one)
    assert not is_noticed(one)
    other.touch(chat.id)
    assert is_noticed(one)
    other.delete(chat.id)
    assert is_noticed(one)
    add_chat(one, "b")
    assert not is_noticed(one)
    assert is_noticed(other)
    one.close()
    other.close()


def test_reply_that_grows_in_another_process_does_not_change_the_list(tmp_path: Path) -> None:
    one, other = make_store(tmp_path), make_store(tmp_path)
    chat = add_chat(other, "a", "Hi", "Half")
    assert one.was_changed_elsewhere()
    assert one.list_was_changed()
    reply = chat.path()[-1]
    other.update_message(replace(reply, content="Half of it"))
    assert one.was_changed_elsewhere()
    assert not one.list_was_changed()
    one.close()
    other.close()


def test_end_of_a_chat_is_its_last_message_without_its_text(store: ConversationStore) -> None:
    chat = add_chat(store, "a", "Hi", "Hälf")
    assert store.end_of(chat.id) == StoredEnd(chat.path()[-1].id, "complete", 4)
    assert store.messages_from(chat.id, chat.path()[-1].id) == chat.path()[-1:]
    store.delete(chat.id)
    assert store.end_of(chat.id) is None


# ---------------------------------------------------------------- a file that is taken away

needs_unlinking = pytest.mark.skipif(
    sys.platform == "win32", reason="an open file cannot be removed there"
)


@needs_unlinking
@pytest.mark.parametrize("endings", [("",), ("", "-wal", "-shm")])
def test_file_that_is_taken_away_while_it_is_open_is_there_again_after_closing(
    tmp_path: Path, endings: tuple[str, ...]
) -> None:
    store = make_store(tmp_path)
    before = add_chat(store, "before", "one")
    for ending in endings:
        store.path.with_name(store.path.name + ending).unlink()
    after = add_chat(store, "after", "two")
    store.close()
    again = make_store(tmp_path)
    assert {chat.id for chat in again.conversations()} == {before.id, after.id}
    assert again.load(before.id) == before
    assert again.load(after.id) == after
    again.close()
    assert [each.name for each in tmp_path.iterdir()] == [store.path.name]
    assert store.path.stat().st_mode & 0o077 == 0


@needs_unlinking
def test_file_that_cannot_be_put_back_ends_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "profile"
    folder.mkdir()
    store = make_store(folder)
    add_chat(store, "chat", "text")
    shutil.rmtree(folder)
    store.close()
    assert "could not be put back" in caplog.text
    assert not folder.exists()


@needs_unlinking
def test_long_log_makes_no_new_file_where_one_was_taken_away(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    chat = add_chat(store, "chat", "word " * (LOG_BYTES // 4))
    store.path.unlink()
    store.rename(chat.id, "another")
    store.close()
    again = make_store(tmp_path)
    assert [each.title for each in again.conversations()] == ["another"]
    again.close()
