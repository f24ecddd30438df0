"""Damage in the file of the chats: what can be read is shown, and nothing of it is quoted."""

import contextlib
import os
import random
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app import salvage
from app.conversation import ConversationId
from app.damage import damage
from app.database import FULL_CHECK_BYTES, open_beside
from app.disk_sync import DiskSync
from app.errors import DatabaseDamagedError, StorageError
from app.migrations import STEPS, migrate
from app.sqlite_errors import is_marked, storage_error
from app.storage import ConversationStore
from tests.app.asker import Asker
from tests.app.stored_chats import add_chat, hits, make_store

EMPTY = "Start again to go on with an empty list, or put a backup in its place."
COPIED = (
    "Start again to go on with what could be read of it, which is copied into a new file, or put a"
    " backup in its place."
)
LATER = (
    "Start Quire again: it then looks at the whole file, and keeps it under another name if it is"
    " damaged."
)
SECRET = "plane tree"


def make_chats(tmp_path: Path, number: int = 3) -> Path:
    """A database of chats whose text begins with the secret; and its file, closed."""
    store = make_store(tmp_path)
    for index in range(number):
        add_chat(store, str(index), f"{SECRET} {index} " + "text " * 500, "answer")
    store.close()
    return tmp_path / "chats.db"


def all_texts(store: ConversationStore) -> list[str]:
    found = []
    for chat in sorted(store.conversations(), key=lambda chat: chat.id):
        loaded = store.load(chat.id)
        assert loaded is not None
        found += [message.content for message in loaded.path()]
    return found


def salvaged_texts(path: Path) -> list[str]:
    """What the copy of a damaged file holds, put into its place."""
    copy = salvage.salvaged(path, STEPS)
    assert copy is not None
    copy.rename(path)
    store = make_store(path.parent)
    texts = all_texts(store)
    store.close()
    return texts


def replace_bytes(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    assert len(old) == len(new)
    path.write_bytes(content.replace(old, new))


def run(path: Path, *statements: str) -> None:
    """Change the file behind Quire's back; also its schema."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    for statement in statements:
        connection.execute(statement)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


def fill_root(path: Path, name: str) -> None:
    """Noise in the first page of a table or index."""
    connection = sqlite3.connect(path)
    (number,) = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)
    ).fetchone()
    connection.close()
    content = bytearray(path.read_bytes())
    content[(number - 1) * 4096 : number * 4096] = b"\xa5" * 4096
    path.write_bytes(content)


def told(tmp_path: Path) -> DatabaseDamagedError:
    with pytest.raises(DatabaseDamagedError) as caught:
        make_store(tmp_path)
    return caught.value


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file counts as too long to look at all of it at each start."""
    assert FULL_CHECK_BYTES > 1_000_000
    monkeypatch.setattr("app.database.FULL_CHECK_BYTES", 100)


# ---------------------------------------------------------------- text that is no text any more


def test_damaged_letter_of_a_message_is_shown_as_a_sign(tmp_path: Path) -> None:
    path = make_chats(tmp_path, 1)
    replace_bytes(path, b"plane tree 0", b"p\xecane tree 0")
    store = make_store(tmp_path)
    chat = store.load(ConversationId("0"))
    assert chat is not None
    assert chat.path()[0].content == "p\ufffdane tree 0 " + "text " * 500
    assert [hit.snippet[:12] for hit in store.search("ee 0")] == ["p\ufffdane tree 0"]
    store.add_message(chat.id, parent_id=chat.leaf_id, role="user", content="next")
    store.close()


def test_damaged_letter_of_a_title_and_of_a_draft_is_shown_as_a_sign(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    add_chat(store, "0", "one")
    store.keep_draft(ConversationId("0"), "not sent")
    store.close()
    replace_bytes(tmp_path / "chats.db", b"Title 0", b"T\xe9tle 0")
    replace_bytes(tmp_path / "chats.db", b"not sent", b"n\xeft sent")
    store = make_store(tmp_path)
    assert [chat.title for chat in store.conversations()] == ["T\ufffdtle 0"]
    assert [hit.conversation.title for hit in store.search("e 0")] == ["T\ufffdtle 0"]
    assert store.draft_of(ConversationId("0")) == "n\ufffdt sent"
    chat = store.load(ConversationId("0"))
    assert chat is not None
    assert chat.title == "T\ufffdtle 0"
    store.close()


def test_connection_beside_reads_a_damaged_letter(tmp_path: Path) -> None:
    path = make_chats(tmp_path, 1)
    replace_bytes(path, b"plane tree 0", b"p\xecane tree 0")
    beside = open_beside(path)
    (text,) = beside.execute("SELECT content FROM messages").fetchone()
    beside.close()
    assert text.startswith("p\ufffdane tree")


def test_ask_goes_on_in_a_chat_with_a_damaged_letter(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asker.ask(SECRET, "--conversation", "two") == 0
    replace_bytes(asker.paths.database_file, b"plane tree", b"p\xecane tree")
    assert asker.ask("hi", "--conversation", "two") == 0
    assert capsys.readouterr().err == ""
    assert [m.content for m in asker.chat("two").path()][::2] == ["p\ufffdane tree", "hi"]
    assert "ane tree" not in asker.paths.log_file.read_text()


def test_odd_values_of_a_row_do_not_hide_its_chat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_chats(tmp_path, 1)
    run(
        path,
        "UPDATE messages SET role = CAST(x'75f36572' AS TEXT), status = 'completf',"
        " created_at = 'then', model_key = x'ff', error = x'e9' WHERE id = 1",
        "UPDATE messages SET role = 'assistbnt', parent_id = 77, content = x'e96e' WHERE id = 2",
        "UPDATE conversations SET settings = 3, created_at = 'then', updated_at = x'00'",
    )
    store = make_store(tmp_path)
    chat = store.load(ConversationId("0"))
    assert chat is not None
    first, second = chat.path()
    assert (first.role, first.status, first.created_at) == ("user", "complete", 0.0)
    assert (first.model_key, first.error) == ("\ufffd", "\ufffd")
    assert (second.role, second.parent_id, second.content) == ("assistant", 1, "\ufffdn")
    store.close()
    assert "The role of message 1 is damaged; it counts as user" in caplog.text
    assert "completf" not in caplog.text


# ---------------------------------------------------------------- a damaged file is kept aside


@pytest.mark.parametrize("content", [b"not a database " * 100, b"<html>" + b"x" * 5000])
def test_file_that_is_no_database_is_kept_aside(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.damage.time.strftime", lambda _: "20261129-120000")
    path = tmp_path / "chats.db"
    path.write_bytes(content)
    (tmp_path / "chats.db-wal").write_bytes(b"newest changes")
    with pytest.raises(DatabaseDamagedError) as caught:
        make_store(tmp_path)
    kept = caught.value.kept_as
    assert kept is not None
    assert kept.with_name(kept.name + "-wal").read_bytes() == b"newest changes"
    assert str(kept) in str(caught.value)
    assert kept.read_bytes() == content
    path.write_bytes(content)
    with pytest.raises(DatabaseDamagedError) as second:
        make_store(tmp_path)
    assert kept.name == "chats.damaged-20261129-120000.db"
    assert second.value.kept_as == tmp_path / "chats.damaged-20261129-120000-2.db"
    store = make_store(tmp_path)
    assert store.conversations() == []
    store.close()


def make_damaged_database(tmp_path: Path) -> Path:
    """A sound header and a page in the middle that is noise."""
    store = make_store(tmp_path)
    for number in range(50):
        add_chat(store, str(number), "text " * 500)
    store.close()
    path = tmp_path / "chats.db"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    return path


def test_database_with_a_damaged_page_is_kept_aside(tmp_path: Path) -> None:
    path = make_damaged_database(tmp_path)
    content = path.read_bytes()
    with pytest.raises(DatabaseDamagedError) as caught:
        make_store(tmp_path)
    kept = caught.value.kept_as
    assert kept is not None
    assert kept.read_bytes() == content
    store = make_store(tmp_path)
    assert len(store.conversations()) == 50
    assert all_texts(store) == ["text " * 500] * 49  # the page held a part of one of them
    store.close()


def test_database_too_big_for_a_whole_check_is_opened_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FULL_CHECK_BYTES > 1_000_000
    make_damaged_database(tmp_path)
    monkeypatch.setattr("app.database.FULL_CHECK_BYTES", 100)
    store = make_store(tmp_path)
    with pytest.raises(DatabaseDamagedError) as caught:
        [store.load(ConversationId(str(number))) for number in range(50)]
    assert caught.value.kept_as is None
    store.close()


def test_damaged_file_that_cannot_be_moved_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chats.db"
    path.write_bytes(b"noise " * 1000)

    def refuse(source: object, target: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr("app.damage.os.rename", refuse)
    with pytest.raises(DatabaseDamagedError, match="left as it is"):
        make_store(tmp_path)
    assert path.read_bytes() == b"noise " * 1000


def test_copy_of_a_file_that_cannot_be_moved_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_chats(tmp_path)
    fill_root(path, "message_index_data")
    content = path.read_bytes()

    def refuse(source: object, target: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr("app.damage.os.rename", refuse)
    error = told(tmp_path)
    assert error.hint == (
        "Move it away and put a backup in its place, or choose another folder with --profile."
    )
    assert path.read_bytes() == content
    assert list(tmp_path.glob("chats.db.copy*")) == []


def test_chats_are_copied_if_their_tables_can_be_read(tmp_path: Path) -> None:
    path = make_chats(tmp_path)
    fill_root(path, "message_index_data")
    content = path.read_bytes()
    error = told(tmp_path)
    assert error.kept_as is not None
    assert error.hint == COPIED
    assert error.kept_as.read_bytes() == content
    assert path.stat().st_mode & 0o077 == 0
    store = make_store(tmp_path)
    assert [text[:12] for text in all_texts(store)[::2]] == [f"{SECRET} {n}" for n in range(3)]
    assert hits(store, "plane") == [("2", 5), ("1", 3), ("0", 1)]
    add_chat(store, "new", "stored again")
    assert hits(store, "stored") == [("new", 7)]
    store.close()
    assert sorted(p.name for p in tmp_path.glob("chats.db*")) == ["chats.db"]


def test_chats_of_an_older_format_are_copied_and_lifted(tmp_path: Path) -> None:
    make_store(tmp_path, steps=STEPS[:1]).close()
    path = tmp_path / "chats.db"
    run(
        path,
        "INSERT INTO conversations(id, title, created_at, updated_at, settings)"
        " VALUES ('0', 'Old', 1, 2, '{}')",
        "INSERT INTO messages(conversation_id, role, content, created_at, status)"
        " VALUES ('0', 'user', 'old text', 3, 'complete')",
    )
    fill_root(path, "title_index_data")
    assert told(tmp_path).hint == COPIED
    store = make_store(tmp_path)
    assert [chat.title for chat in store.conversations()] == ["Old"]
    assert all_texts(store) == ["old text"]
    store.close()


def test_damaged_table_of_messages_leaves_an_empty_list(tmp_path: Path) -> None:
    path = make_chats(tmp_path)
    fill_root(path, "messages")
    content = path.read_bytes()
    error = told(tmp_path)
    assert error.kept_as is not None
    assert error.hint == EMPTY
    assert error.kept_as.read_bytes() == content
    store = make_store(tmp_path)
    assert store.conversations() == []
    store.close()
    assert list(tmp_path.glob("chats.db.copy*")) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"REFERENCES conversations(id)", b"REFERENCES #onversations(id)"),
        (b"CREATE TABLE messages", b"CREATE TABL\xc5 messages"),
        (b"tablemessages", b"tablemesrages"),
        (b"tabledrafts", b"tacledrafts"),
        (b"CREATE TABLE conversations", b"DREATE TABLE conversations"),
        (b"id TEXT NOT NULL UNIQUE", b"id TEXT NOT NULL,UNIQUE"),
        (b"CREATE TABLE drafts (", b"CREATE TABLE drafts )"),
        (
            b"conversations_by_update ON conversations(",
            b"conversations_by_update ON conversations ",
        ),
        (b"CREATE TRIGGER message_added", b"CREATE TRIGGES message_added"),
        (b"USING fts5(\n    content", b"USING fts7(\n    content"),
        (b"CREATE TABLE 'message_index_data'", b"CREATE TABLE 'message_index_data "),
        (b"CREATE TABLE sqlite_sequence", b"CREATE TABLE`sqlite_sequence"),
    ],
)
def test_damaged_list_of_tables_hides_no_chat(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = make_chats(tmp_path)
    store = make_store(tmp_path)
    store.keep_draft(ConversationId("0"), "not sent")
    texts = all_texts(store)
    store.close()
    replace_bytes(path, old, new)
    content = path.read_bytes()
    error = told_at_last(tmp_path)
    assert error.hint == COPIED
    assert error.kept_as is not None
    assert error.kept_as.read_bytes() == content
    store = make_store(tmp_path)
    assert [chat.title for chat in store.conversations()] == ["Title 2", "Title 1", "Title 0"]
    assert all_texts(store) == texts
    assert store.draft_of(ConversationId("0")) == "not sent"
    store.close()
    assert list(tmp_path.glob("chats.db.copy*")) == []


def test_wrong_letter_anywhere_in_the_list_of_tables_hides_no_chat(tmp_path: Path) -> None:
    path = make_chats(tmp_path, 1)
    content = path.read_bytes()
    randomly = random.Random(7)
    places = [place for place in places_of_schema(path) if randomly.random() < 0.01]
    assert len(places) > 20
    for place in places:
        path.write_bytes(content[:place] + bytes((content[place] ^ 1,)) + content[place + 1 :])
        assert salvaged_texts(path)[1] == "answer", content[place - 20 : place + 20]


def places_of_schema(path: Path) -> list[int]:
    """Where in the file the texts are that made the tables."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        texts = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    content = path.read_bytes()
    found = [(content.index(text.encode()), len(text.encode())) for (text,) in texts]
    return [place + offset for place, length in found for offset in range(length)]


def told_at_last(tmp_path: Path) -> DatabaseDamagedError:
    """Where SQLite only finds a statement odd, the next start looks at the whole file."""
    try:
        store = make_store(tmp_path)
        with contextlib.suppress(StorageError):
            all_texts(store)
            store.search("plane")
        store.close()
    except DatabaseDamagedError as error:
        return error
    except StorageError:
        pass
    return told(tmp_path)


def test_page_of_the_list_of_tables_that_is_noise_hides_no_chat(tmp_path: Path) -> None:
    path = make_chats(tmp_path)
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xa5" * 3996
    path.write_bytes(content)
    assert told(tmp_path).hint == COPIED
    store = make_store(tmp_path)
    assert len(all_texts(store)) == 6
    store.close()


@pytest.mark.parametrize("letter", [b"E", b"X"])
@pytest.mark.parametrize("wrong", [4, 13, 0, 99])
def test_wrong_first_page_of_a_table_hides_no_chat(
    tmp_path: Path, wrong: int, letter: bytes
) -> None:
    path = make_chats(tmp_path)
    run(path, f"UPDATE sqlite_master SET rootpage = {wrong} WHERE name = 'messages'")
    replace_bytes(path, b"CREATE TABLE messages", b"CREATE TABL%s messages" % letter)
    assert len(salvaged_texts(path)) == 6


def test_file_whose_tables_begin_elsewhere_is_read_by_its_own_list(tmp_path: Path) -> None:
    path = make_chats(tmp_path)
    run(path, "VACUUM")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'messages'"
        ).fetchone()
    assert root != 5  # as in a file that was made new
    replace_bytes(path, b"CREATE TABLE messages", b"CREATE TABLX messages")
    assert len(salvaged_texts(path)) == 6


def test_what_is_in_the_log_alone_is_found_without_a_list_of_tables(tmp_path: Path) -> None:
    path = make_chats(tmp_path, 1)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("UPDATE messages SET content = 'newest' WHERE content = 'answer'")
    damaged = tmp_path / "damaged" / "chats.db"
    damaged.parent.mkdir()
    for ending in ("", "-wal"):
        shutil.copyfile(f"{path}{ending}", f"{damaged}{ending}")
    writer.close()
    assert b"newest" not in damaged.read_bytes()
    replace_bytes(damaged, b"CREATE TABLE messages", b"CREATE TABLX messages")
    content = damaged.read_bytes()
    copy = salvage.salvaged(damaged, STEPS)
    assert copy is not None
    assert damaged.read_bytes() == content
    copy.rename(damaged)
    (damaged.parent / "chats.db-wal").unlink(missing_ok=True)
    store = make_store(damaged.parent)
    assert all_texts(store)[1] == "newest"
    store.close()


def test_file_that_is_cut_off_is_kept_aside(tmp_path: Path) -> None:
    path = make_chats(tmp_path, 1)
    content = path.read_bytes()
    path.write_bytes(content[:60])
    assert told(tmp_path).hint == EMPTY
    store = make_store(tmp_path)
    assert store.conversations() == []
    store.close()


@pytest.mark.parametrize("named", [0, 1, 4, 77])
def test_number_of_the_format_that_is_wrong_too_hides_no_chat(tmp_path: Path, named: int) -> None:
    path = make_chats(tmp_path, 1)
    store = make_store(tmp_path)
    question, answer = store.messages_from(ConversationId("0"))
    store.update_message(replace(answer, left_out=2))
    store.close()
    run(path, f"PRAGMA user_version = {named}")
    replace_bytes(path, b"CREATE TABLE messages", b"CREATE TABLX messages")
    copy = salvage.salvaged(path, STEPS)
    assert copy is not None
    copy.rename(path)
    store = make_store(tmp_path)
    found = store.messages_from(ConversationId("0"))
    assert [(m.content, m.left_out) for m in found] == [(question.content, 0), ("answer", 2)]
    store.close()


def test_chats_of_an_older_format_are_found_without_a_list_of_tables(tmp_path: Path) -> None:
    make_store(tmp_path, steps=STEPS[:2]).close()
    path = tmp_path / "chats.db"
    run(
        path,
        "INSERT INTO conversations(id, title, created_at, updated_at, settings)"
        " VALUES ('0', 'Old', 1, 2, '{}')",
        "INSERT INTO messages(conversation_id, role, content, created_at, status, failure_kind)"
        " VALUES ('0', 'user', 'old text', 3, 'error', 'memory')",
    )
    replace_bytes(path, b"CREATE TABLE messages", b"CREATE TABLX messages")
    assert told(tmp_path).hint == COPIED
    store = make_store(tmp_path)
    (message,) = store.messages_from(ConversationId("0"))
    assert (message.content, message.failure_kind, message.left_out) == ("old text", "memory", 0)
    store.close()


@pytest.mark.parametrize(
    ("refusal", "is_told"), [(damage(sqlite3.SQLITE_FULL), True), (OSError("no"), False)]
)
def test_copy_to_read_from_that_cannot_be_made_leaves_nothing_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refusal: Exception,
    is_told: bool,
) -> None:
    path = make_chats(tmp_path)
    replace_bytes(path, b"CREATE TABLE messages", b"CREATE TABL\xc5 messages")
    content = path.read_bytes()

    def refuse(copy: Path) -> None:
        assert copy.stat().st_size == len(content)
        assert os.name != "posix" or copy.stat().st_mode & 0o077 == 0
        raise refusal

    monkeypatch.setattr("app.known_schema._mend_header", refuse)
    with pytest.raises(StorageError) as caught:
        make_store(tmp_path)
    assert str(caught.value).endswith("The disk is full.") == is_told
    assert list(tmp_path.glob("chats.db.copy*")) == []
    if is_told:
        assert path.read_bytes() == content
    else:
        assert caught.value.hint == EMPTY
        assert "The tables of the database could not be found: OSError" in caplog.text
        assert "The database is damaged: UnicodeDecodeError" in caplog.text


@pytest.mark.parametrize("named", [0, -1, 4 - 2**31])
def test_damaged_version_of_the_format_is_kept_aside(tmp_path: Path, named: int) -> None:
    path = make_chats(tmp_path)
    run(path, f"PRAGMA user_version = {named}")
    assert told(tmp_path).hint == COPIED
    store = make_store(tmp_path)
    assert len(all_texts(store)) == 6
    store.close()


def test_full_disk_while_copying_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_chats(tmp_path)
    fill_root(path, "message_index_data")
    content = path.read_bytes()

    def migrate_and_fill(connection: sqlite3.Connection, steps: Sequence[str]) -> None:
        migrate(connection, steps)
        (pages,) = connection.execute("PRAGMA main.page_count").fetchone()
        connection.execute(f"PRAGMA main.max_page_count = {pages}").fetchall()

    monkeypatch.setattr(salvage, "migrate", migrate_and_fill)
    with pytest.raises(StorageError, match=r"The disk is full\.$"):
        make_store(tmp_path)
    assert path.read_bytes() == content
    assert not list(tmp_path.glob("chats.damaged*"))
    assert list(tmp_path.glob("chats.db.copy*")) == []


def test_copy_that_fails_in_a_way_nobody_knows_does_not_keep_the_file_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill_root(make_chats(tmp_path), "message_index_data")

    def refuse(*_arguments: object) -> None:
        raise sqlite3.OperationalError(SECRET)

    monkeypatch.setattr(salvage, "migrate", refuse)
    error = told(tmp_path)
    assert error.hint == EMPTY
    assert error.kept_as is not None
    assert "Nothing could be copied: OperationalError" in caplog.text
    assert SECRET not in caplog.text
    assert list(tmp_path.glob("chats.db.copy*")) == []


def test_damaged_file_that_another_process_has_open_stays(
    tmp_path: Path, unchecked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_chats(tmp_path)
    window = make_store(tmp_path)
    fill_root(path, "message_index_data")
    monkeypatch.setattr("app.database.FULL_CHECK_BYTES", FULL_CHECK_BYTES)
    error = told(tmp_path)
    assert error.kept_as is None
    assert error.hint == "Close the other Quire that has it open, then start again."
    assert len(all_texts(window)) == 6
    window.close()
    assert told(tmp_path).hint == COPIED


@pytest.mark.parametrize("is_new_there", [True, False])
def test_file_that_another_process_puts_aside_meanwhile_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new_there: bool
) -> None:
    path = make_chats(tmp_path)
    fill_root(path, "message_index_data")
    aside, copied = tmp_path / "aside", salvage.salvaged

    def copied_late(path: Path, steps: Sequence[str]) -> Path | None:
        copy = copied(path, steps)
        path.rename(aside)
        if is_new_there:
            path.write_bytes(b"of the other one")
        return copy

    monkeypatch.setattr("app.damage.salvaged", copied_late)
    error = told(tmp_path)
    assert error.kept_as is None
    assert error.hint == "Another Quire has kept it under another name meanwhile. Start again."
    assert path.exists() == is_new_there
    assert not is_new_there or path.read_bytes() == b"of the other one"
    assert list(tmp_path.glob("chats.damaged*")) == []
    assert list(tmp_path.glob("chats.db.copy*")) == []


def test_copy_that_cannot_take_the_place_leaves_all_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_chats(tmp_path)
    fill_root(path, "message_index_data")
    path.with_name("chats.db-wal").write_bytes(b"")
    content = path.read_bytes()

    def refuse(source: object, target: object) -> None:
        raise PermissionError("no")

    with monkeypatch.context() as patch:
        patch.setattr("app.damage.os.replace", refuse)
        assert told(tmp_path).kept_as is None
    assert path.read_bytes() == content
    assert list(tmp_path.glob("chats.damaged*")) == []
    assert list(tmp_path.glob("chats.db.copy*")) == []
    assert told(tmp_path).hint == COPIED


def test_index_that_somebody_added_is_no_damage(tmp_path: Path) -> None:
    path = make_chats(tmp_path)
    run(path, "CREATE INDEX mine ON messages(created_at)")
    (tmp_path / "chats.db.check").touch()
    store = make_store(tmp_path)
    assert len(all_texts(store)) == 6
    store.close()
    assert [p.name for p in tmp_path.glob("chats*")] == ["chats.db"]


def test_sqlite_that_cannot_make_our_tables_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_chats(tmp_path)
    (tmp_path / "chats.db.check").touch()
    content = path.read_bytes()

    def lacking(*_arguments: object) -> None:
        sqlite3.connect(":memory:").execute("CREATE VIRTUAL TABLE t USING no_such_module")

    with monkeypatch.context() as patch:
        patch.setattr("app.known_schema.migrate", lacking)
        with pytest.raises(StorageError, match=r"SQLite refused it \(SQLITE_ERROR\)\.$"):
            make_store(tmp_path)
    assert path.read_bytes() == content
    make_store(tmp_path).close()
    assert [p.name for p in tmp_path.glob("chats*")] == ["chats.db"]


@pytest.mark.parametrize("num_refused", [2, 3])
def test_sqlite_that_looks_at_text_indexes_has_them_made_anew_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_refused: int
) -> None:
    """As releases from 3.44 on do; the outline, then the whole, then the whole with new indexes."""
    path = make_chats(tmp_path)
    answers = [["malformed inverted index for FTS5 table main.message_index"]] * num_refused
    monkeypatch.setattr("app.damage._complaints", lambda *_: answers.pop() if answers else [])
    if num_refused == 3:
        assert told(tmp_path).hint == COPIED
    store = make_store(tmp_path)
    assert hits(store, "plane") == [("2", 5), ("1", 3), ("0", 1)]
    store.close()
    assert path.exists()
    assert bool(list(tmp_path.glob("chats.damaged*"))) == (num_refused == 3)


def test_nothing_is_written_to_a_file_whose_list_of_free_pages_names_a_page_of_messages(
    tmp_path: Path,
) -> None:
    path = make_chats(tmp_path)
    before = all_texts(store := make_store(tmp_path))
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE junk AS SELECT randomblob(40000) AS number")
        connection.execute("DROP TABLE junk")
        connection.commit()
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'messages'"
        ).fetchone()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    content = bytearray(path.read_bytes())
    trunk = (int.from_bytes(content[32:36], "big") - 1) * page_bytes
    assert int.from_bytes(content[trunk + 4 : trunk + 8], "big") > 5  # free pages that it lists
    for entry in range(trunk + 8, trunk + 28, 4):
        content[entry : entry + 4] = root.to_bytes(4, "big")
    path.write_bytes(content)
    error = told(tmp_path)
    assert error.hint == COPIED
    assert error.kept_as is not None
    assert error.kept_as.read_bytes() == content
    store = make_store(tmp_path)
    assert all_texts(store) == before
    store.close()


def test_search_for_a_thousand_words_is_no_sign_of_damage(tmp_path: Path) -> None:
    path = make_chats(tmp_path)
    store = make_store(tmp_path)
    assert store.search(" ".join(f"w{number}" for number in range(1_100))) == []
    assert len(store.search("plane " * 1_100)) == 3
    store.close()
    assert not is_marked(path)


# ---------------------------------------------------------------- damage that is met later


def test_damage_that_is_met_has_the_next_start_look_at_the_whole_file(
    tmp_path: Path, unchecked: None
) -> None:
    path = make_chats(tmp_path)
    fill_root(path, "messages")
    store = make_store(tmp_path)
    assert not is_marked(path)
    with pytest.raises(DatabaseDamagedError, match=r"It was left as it is\.$") as caught:
        store.load(ConversationId("0"))
    assert caught.value.kept_as is None
    assert caught.value.hint == LATER
    store.close()
    assert is_marked(path)
    assert told(tmp_path).kept_as is not None
    assert not is_marked(path)
    make_store(tmp_path).close()


def test_text_index_that_contradicts_itself_is_made_anew(tmp_path: Path) -> None:
    path = make_chats(tmp_path)
    run(path, "UPDATE message_index_data SET block = x'ffffffffffff' WHERE id > 10")
    store = make_store(tmp_path)
    with pytest.raises(DatabaseDamagedError):
        store.search("plane")
    store.close()
    store = make_store(tmp_path)
    assert hits(store, "plane") == [("2", 5), ("1", 3), ("0", 1)]
    store.close()
    assert not is_marked(path)
    assert [p.name for p in tmp_path.glob("chats*")] == ["chats.db"]


def test_index_of_a_table_that_lacks_a_row_is_found_and_the_chats_copied(tmp_path: Path) -> None:
    path = make_chats(tmp_path)
    run(
        path,
        "UPDATE sqlite_master SET sql = 'CREATE INDEX messages_by_parent ON messages(role)'"
        " WHERE name = 'messages_by_parent'",
    )
    (tmp_path / "chats.db.check").touch()
    assert told(tmp_path).hint == COPIED
    store = make_store(tmp_path)
    assert len(all_texts(store)) == 6
    store.close()


def test_table_of_another_shape_is_damage_at_the_next_start(tmp_path: Path) -> None:
    path = make_chats(tmp_path)
    run(
        path,
        "UPDATE sqlite_master SET sql = replace(sql, 'metrics TEXT', 'metrigs TEXT')"
        " WHERE name = 'messages'",
    )
    store = make_store(tmp_path)
    with pytest.raises(StorageError, match=r"SQLite refused it \(SQLITE_ERROR\)\.$") as caught:
        store.load(ConversationId("0"))
    assert caught.value.hint == LATER
    store.close()
    assert told(tmp_path).hint == COPIED
    store = make_store(tmp_path)
    assert len(all_texts(store)) == 6
    store.close()


def test_messages_of_chats_that_are_lost_are_found_in_new_ones(
    tmp_path: Path, unchecked: None
) -> None:
    path = make_chats(tmp_path)
    before = make_store(tmp_path)
    texts = all_texts(before)
    before.close()
    fill_root(path, "conversations")
    assert told(tmp_path).hint == LATER
    assert told(tmp_path).hint == COPIED
    store = make_store(tmp_path)
    assert [chat.title for chat in store.conversations()] == ["Recovered chat"] * 3
    assert all_texts(store) == texts
    store.close()


def test_number_of_the_format_that_sqlite_does_not_know_is_damage_at_the_next_start(
    tmp_path: Path,
) -> None:
    path = make_chats(tmp_path)
    content = bytearray(path.read_bytes())
    content[44:48] = (9).to_bytes(4, "big")  # https://sqlite.org/fileformat.html
    path.write_bytes(content)
    with pytest.raises(StorageError, match="SQLITE_ERROR") as caught:
        make_store(tmp_path)
    assert caught.value.hint == LATER
    assert told(tmp_path).hint == COPIED
    store = make_store(tmp_path)
    assert len(all_texts(store)) == 6
    store.close()


def test_mark_beside_a_new_file_goes(tmp_path: Path) -> None:
    (tmp_path / "chats.db.check").touch()
    make_store(tmp_path).close()
    assert not is_marked(tmp_path / "chats.db")


# ---------------------------------------------------------------- nothing stored is quoted


def test_words_of_sqlite_are_never_told(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    quoting = sqlite3.OperationalError(f"Could not decode column with text '{SECRET}'")
    unreadable = UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, SECRET)
    for error in (quoting, unreadable):
        found = storage_error(error, path)
        assert SECRET not in f"{found} {found.hint}"
    assert isinstance(storage_error(unreadable, path), DatabaseDamagedError)


def test_disk_sync_and_drafts_outlive_words_that_python_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_chats(tmp_path, 1)

    def refuse(*_arguments: object) -> None:
        raise UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, SECRET)

    monkeypatch.setattr(DiskSync, "_sync", refuse)
    monkeypatch.setattr("app.draft_writer.open_beside", refuse)
    store = ConversationStore(path)
    add_chat(store, "new", "Hi")
    store.keep_draft(None, "draft")
    store.close()
    assert "The chats may not be on the disk yet: UnicodeDecodeError" in caplog.text
    assert "Unsent text could not be stored: UnicodeDecodeError" in caplog.text
    assert isinstance(store.draft_problem, DatabaseDamagedError)
    assert SECRET not in caplog.text


# ---------------------------------------------------------------- what is no database of ours


def test_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    run(path, "CREATE TABLE conversations_of_others(x)", "CREATE TABLE y(z)")
    content = path.read_bytes()
    with pytest.raises(StorageError) as caught:
        make_store(tmp_path)
    assert str(caught.value) == (
        f"The chats in {path} could not be read or stored: it is a database of another program."
    )
    assert caught.value.hint == "Take it away, or choose another folder with --profile."
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal"])
def test_folder_in_the_place_of_a_file_is_named(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / f"chats.db{ending}"
    folder.mkdir()
    subject = folder if ending else "it"
    with pytest.raises(StorageError) as caught:
        make_store(tmp_path)
    assert str(caught.value) == (
        f"The chats in {tmp_path / 'chats.db'} could not be read or stored:"
        f" {subject} is a folder, not a file."
    )
    assert caught.value.hint == "Take it away, or choose another folder with --profile."


@pytest.mark.skipif(os.name != "posix", reason="links want rights on Windows")
def test_link_that_leads_back_to_itself_is_named(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    path.symlink_to(path)
    with pytest.raises(
        StorageError, match="stored: it is a link that leads back to itself"
    ) as caught:
        make_store(tmp_path)
    assert caught.value.hint == "Take it away, or choose another folder with --profile."
