"""`ask` with a database that refuses, and with other processes in the same chat."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from app.conversation import Message
from app.errors import StorageError
from app.storage import ConversationStore
from inference.errors import ComputeError
from inference.request import ChatMessage, PromptPart
from tests.app.asker import Asker

FULL = StorageError("The disk is full.", hint="Free some space, then try again.")
NOT_KEPT = (
    "quire: this answer could not be kept in its chat. The disk is full."
    " Free some space, then try again.\n"
)
PART = PromptPart((1, 2, 3), b"d" * 16)


@pytest.fixture(autouse=True)
def _no_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.database.BUSY_TIMEOUT_MS", 0)


@pytest.fixture
def each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second goes by with each look at the clock."""
    times = iter(range(1000, 100_000))
    monkeypatch.setattr("app.asked_reply.time.time", lambda: float(next(times)))


class Holder:
    """Another program that holds the database of a profile."""

    def __init__(self, asker: Asker) -> None:
        self._connection = sqlite3.connect(asker.paths.database_file, isolation_level=None)

    def hold(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def let_go(self) -> None:
        self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def holder(asker: Asker) -> Iterator[Holder]:
    """It comes to a profile that has a chat already."""
    asker.ask("first", "--conversation", "c")
    with closing(Holder(asker)) as holder:
        yield holder


def contents(asker: Asker) -> list[tuple[str, str]]:
    return [(message.content, message.status) for message in asker.chat("c").path()]


# ---------------------------------------------------------------- a store that refuses


@pytest.mark.usefixtures("each_second")
@pytest.mark.parametrize("first_step", [1, 2, 3])
def test_reply_goes_on_while_another_program_holds_the_database_and_is_kept_whole(
    asker: Asker, holder: Holder, capsys: pytest.CaptureFixture[str], first_step: int
) -> None:
    capsys.readouterr()
    asker.script.replies = ["one two three four"]
    asker.script.prompt_parts = ((2, PART),)
    actions = {first_step: holder.hold, 4: holder.let_go}
    steps = iter(range(1, 100))
    asker.script.before_step = lambda: actions.get(next(steps), lambda: None)()
    assert asker.ask("second", "--conversation", "c") == 0
    assert capsys.readouterr() == ("one two three four\n", "")
    assert contents(asker)[2:] == [("second", "complete"), ("one two three four", "complete")]
    assert asker.chat("c").path()[2].part == PART


@pytest.mark.usefixtures("each_second")
def test_reply_that_can_be_stored_again_in_the_middle_is_stored_there(
    asker: Asker, holder: Holder
) -> None:
    asker.script.replies = ["one two three four five six"]
    seen: list[str] = []
    actions = {2: holder.hold, 4: holder.let_go}
    steps = iter(range(1, 100))

    def look() -> None:
        actions.get(next(steps), lambda: None)()
        seen.append(asker.replies("c")[-1].content)

    asker.script.before_step = look
    asker.ask("second", "--conversation", "c")
    assert seen[1:6] == ["one", "one", "one", "one", "one two three four five"]


@pytest.mark.usefixtures("each_second")
def test_answer_that_cannot_be_stored_is_printed_whole_and_told_with_code_1(
    asker: Asker, holder: Holder, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    asker.script.replies = ["one two three"]
    asker.before_step(2, holder.hold)
    assert asker.ask("second", "--conversation", "c") == 1
    out, err = capsys.readouterr()
    assert out == "one two three\n"
    assert err == (
        f"quire: this answer could not be kept in its chat. The chats in {asker.paths.database_file}"
        " could not be read or stored. Another program holds the file. Try again in a moment.\n"
    )
    assert contents(asker)[2:] == [("second", "complete"), ("one", "streaming")]


def test_report_comes_though_the_answer_cannot_be_stored(
    asker: Asker, holder: Holder, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    asker.before_step(1, holder.hold)
    assert asker.ask("second", "--conversation", "c", "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["text"] == "Hi you"
    assert err.count("\n") == 1


def test_question_that_cannot_be_stored_at_once_is_answered_and_stored_with_its_answer(
    asker: Asker, holder: Holder, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    asker.script.prompt_parts = ((0, PART), (2, PART))
    holder.hold()
    asker.before_step(3, holder.let_go)
    assert asker.ask("second", "--conversation", "c", "--system", "Be brief.") == 0
    assert capsys.readouterr() == ("Hi you\n", "")
    assert asker.engines[1].requests[0].messages == (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "first"),
        ChatMessage("assistant", "Hi you", (100, 101)),
        ChatMessage("user", "second"),
    )
    chat = asker.chat("c")
    assert chat.settings.system_prompt == "Be brief."
    assert contents(asker)[2:] == [("second", "complete"), ("Hi you", "complete")]
    assert chat.path()[3].token_ids == (100, 101)


def test_disk_that_is_full_from_the_start_costs_no_answer(
    asker: Asker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> Message:
        raise FULL

    monkeypatch.setattr(ConversationStore, "add_message", refuse)
    assert asker.ask("x", "--conversation", "c") == 1
    assert capsys.readouterr() == ("Hi you\n", NOT_KEPT)
    store = ConversationStore(asker.paths.database_file)
    assert store.conversations() == []
    store.close()


def test_ids_of_the_prompt_that_alone_cannot_be_stored_are_no_matter(
    asker: Asker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise FULL

    monkeypatch.setattr(ConversationStore, "set_parts", refuse)
    asker.script.prompt_parts = ((0, PART),)
    assert asker.ask("x", "--conversation", "c") == 0
    assert capsys.readouterr() == ("Hi you\n", "")
    assert contents(asker) == [("x", "complete"), ("Hi you", "complete")]
    log = asker.paths.log_file.read_text("utf-8")
    assert log.count("A reply could not be stored yet: The disk is full.") == 1


def test_reply_that_fails_and_cannot_be_stored_says_both(
    asker: Asker, holder: Holder, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.script.error_after_tokens = 1
    asker.script.reply_error = ComputeError("Lost.")
    asker.before_step(1, holder.hold)
    with pytest.raises(ComputeError):
        asker.ask("second", "--conversation", "c")
    assert "this answer could not be kept in its chat." in capsys.readouterr().err


def test_reply_that_is_interrupted_and_cannot_be_stored_keeps_its_code(
    asker: Asker, holder: Holder, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        holder.hold()
        raise KeyboardInterrupt

    asker.before_step(2, interrupt)
    assert asker.ask("second", "--conversation", "c") == 130
    assert "this answer could not be kept in its chat." in capsys.readouterr().err


# ---------------------------------------------------------------- other processes in the chat


def test_two_questions_at_once_in_a_new_chat_are_in_one_chat(asker: Asker) -> None:
    asker.during_load(lambda: asker.ask("other", "--conversation", "c"))
    assert asker.ask("mine", "--conversation", "c", "--system", "Be brief.") == 0
    store = ConversationStore(asker.paths.database_file)
    assert [chat.title for chat in store.conversations()] == ["c"]
    store.close()
    assert [text for text, _ in contents(asker)] == ["other", "Hi you", "mine", "Hi you"]
    assert asker.chat("c").settings.system_prompt == "Be brief."


def test_question_goes_on_from_what_another_process_said_since_the_model_was_opened(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.ask("first", "--conversation", "c")
    asker.during_load(lambda: asker.ask("other", "--conversation", "c"))
    asker.ask("mine", "--conversation", "c")
    assert [text for text, _ in contents(asker)][2:] == ["other", "Hi you", "mine", "Hi you"]
    assert capsys.readouterr().err == ""
    messages = asker.engines[-1].requests[0].messages
    assert messages is not None
    assert [message.content for message in messages][2:] == ["other", "Hi you", "mine"]


def test_question_beside_a_reply_in_the_making_follows_what_there_is_of_it_and_says_so(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.before_step(2, lambda: asker.ask("mine", "--conversation", "c"))
    assert asker.ask("other", "--conversation", "c") == 0
    told = "quire: the reply before is not finished: the model sees what there is of it by now.\n"
    assert capsys.readouterr().err == told
    messages = asker.engines[-1].requests[0].messages
    assert messages is not None
    assert [message.content for message in messages] == ["other", "Hi", "mine"]
    assert contents(asker) == [
        ("other", "complete"),
        ("Hi you", "complete"),
        ("mine", "complete"),
        ("Hi you", "complete"),
    ]


def test_question_goes_on_in_a_chat_that_gets_another_title_while_the_model_is_opened(
    asker: Asker,
) -> None:
    asker.ask("first", "--conversation", "c")

    def rename() -> None:
        with closing(ConversationStore(asker.paths.database_file)) as store:
            store.rename(store.conversations()[0].id, "other")

    asker.during_load(rename)
    assert asker.ask("mine", "--conversation", "c") == 0
    with closing(ConversationStore(asker.paths.database_file)) as store:
        assert [chat.title for chat in store.conversations()] == ["other"]
    assert [message.content for message in asker.chat("other").path()][2:] == ["mine", "Hi you"]


def test_chat_that_is_deleted_while_the_model_is_opened_is_made_anew(asker: Asker) -> None:
    asker.ask("first", "--conversation", "c")
    asker.during_load(lambda: delete(asker))
    assert asker.ask("mine", "--conversation", "c") == 0
    assert contents(asker) == [("mine", "complete"), ("Hi you", "complete")]


@pytest.mark.parametrize("is_purged", [True, False])
def test_chat_that_is_deleted_meanwhile_is_told_after_the_answer(
    asker: Asker, capsys: pytest.CaptureFixture[str], is_purged: bool
) -> None:
    asker.before_step(2, lambda: delete(asker, is_purged=is_purged))
    assert asker.ask("x", "--conversation", "c") == 0
    told = "quire: the chat was deleted meanwhile, and this answer with it.\n"
    assert capsys.readouterr() == ("Hi you\n", told)


def test_chat_that_cannot_be_looked_for_at_the_end_is_no_matter(
    asker: Asker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise FULL

    monkeypatch.setattr(ConversationStore, "end_of", refuse)
    assert asker.ask("x", "--conversation", "c") == 0
    assert capsys.readouterr() == ("Hi you\n", "")


def delete(asker: Asker, *, is_purged: bool = False) -> None:
    """As a person would in the window."""
    store = ConversationStore(asker.paths.database_file)
    store.delete(store.conversations()[0].id)
    if is_purged:
        store.purge_deleted()
    store.close()
