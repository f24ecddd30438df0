"""What `ask` writes in the chat that is shown comes there by itself."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from app.chat_watch import QUIET_S
from app.conversation import Message
from app.errors import StorageError
from app.session_changes import ConversationShown, MessageAdded, MessageChanged
from app.storage import ConversationStore
from tests.app.session_bench import LONG, Bench


class Asker:
    """Another process that goes on with the chat."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.store = ConversationStore(bench.path, clock=lambda: bench.now)

    def asks(self, text: str) -> Message:
        chat = self.store.load(self.bench.chat.id)
        assert chat is not None
        return self.store.add_message(chat.id, parent_id=chat.leaf_id, role="user", content=text)

    def begins(self, question: Message) -> Message:
        return self.store.add_message(
            question.conversation_id,
            parent_id=question.id,
            role="assistant",
            content="",
            status="streaming",
        )

    def says(self, reply: Message, text: str) -> None:
        self.store.update_message(replace(reply, content=text))

    def ends(self, reply: Message, text: str) -> None:
        self.store.update_message(replace(reply, content=text, status="complete"))

    def turn(self, question: str, answer: str) -> None:
        self.ends(self.begins(self.asks(question)), answer)


@pytest.fixture
def chat(ready: Bench) -> Bench:
    """A chat with one turn."""
    ready.turn("a", "b")
    ready.session.notice_others()
    ready.changes.clear()
    return ready


@pytest.fixture
def asker(chat: Bench) -> Iterator[Asker]:
    asker = Asker(chat)
    yield asker
    asker.store.close()


def told(bench: Bench) -> list[tuple[str, str, str]]:
    """What was told of messages since the last call: which change, text and status."""
    messages: list[tuple[str, str, str]] = [
        (type(change).__name__, change.message.content, change.message.status)
        for change in bench.changes
        if isinstance(change, MessageAdded | MessageChanged)
    ]
    assert not any(isinstance(change, ConversationShown) for change in bench.changes)
    bench.changes.clear()
    return messages


def test_turn_of_another_process_is_added_to_the_chat(chat: Bench, asker: Asker) -> None:
    before = chat.chat.path()
    asker.turn("c", "d")
    chat.session.notice_others()
    assert told(chat) == [("MessageAdded", "c", "complete"), ("MessageAdded", "d", "complete")]
    assert chat.texts == ["a", "b", "c", "d"]
    assert chat.chat.path()[:2] == before
    chat.session.notice_others()
    assert told(chat) == []
    chat.session.send("e")
    assert chat.asked() == ["a", "b", "c", "d", "e"]


def test_reply_of_another_process_grows_and_ends(chat: Bench, asker: Asker) -> None:
    reply = asker.begins(asker.asks("c"))
    chat.session.notice_others()
    assert told(chat) == [("MessageAdded", "c", "complete"), ("MessageAdded", "", "streaming")]
    asker.says(reply, "d")
    chat.session.notice_others()
    assert told(chat) == [("MessageChanged", "d", "streaming")]
    assert not chat.session.is_replying
    asker.ends(reply, "d e")
    chat.session.notice_others()
    assert told(chat) == [("MessageChanged", "d e", "complete")]


def test_reply_of_a_process_that_says_no_more_is_shown_as_stopped(
    chat: Bench, asker: Asker
) -> None:
    reply = asker.begins(asker.asks("c"))
    asker.says(reply, "d")
    chat.session.notice_others()
    told(chat)
    chat.now += QUIET_S - 1
    chat.session.notice_others()
    assert told(chat) == []
    chat.now += 1
    chat.session.notice_others()
    assert told(chat) == [("MessageChanged", "d", "stopped")]
    chat.session.rename_chat(chat.chat.id, "Otherwise")
    asker.store.touch(chat.chat.id)  # something else is stored
    chat.session.notice_others()
    assert told(chat) == []
    asker.says(reply, "d e")
    chat.session.notice_others()
    assert told(chat) == [("MessageChanged", "d e", "streaming")]


def test_message_after_a_reply_that_another_process_makes_finds_it_stopped(
    chat: Bench, asker: Asker
) -> None:
    asker.says(asker.begins(asker.asks("c")), "d")
    chat.session.notice_others()
    chat.session.send("e")
    statuses = [message.status for message in chat.chat.path()]
    assert statuses == ["complete", "complete", "complete", "stopped", "complete", "streaming"]
    assert chat.asked() == ["a", "b", "c", "d", "e"]


def test_reply_of_another_process_is_shown_whole_though_one_went_on_here(
    chat: Bench, asker: Asker
) -> None:
    reply = asker.begins(asker.asks("c"))
    asker.says(reply, "d")
    chat.session.notice_others()
    chat.turn("e", "f")
    chat.changes.clear()
    asker.says(reply, "d e")
    chat.session.notice_others()
    assert told(chat) == [("MessageChanged", "d e", "stopped")]
    asker.ends(reply, "d e f")
    chat.session.notice_others()
    assert told(chat) == [("MessageChanged", "d e f", "complete")]
    asker.store.touch(chat.chat.id)
    chat.session.notice_others()
    assert told(chat) == []
    assert chat.texts == ["a", "b", "c", "d e f", "e", "f"]


def test_nothing_comes_while_a_reply_is_made_here_and_all_of_it_afterwards(
    chat: Bench, asker: Asker
) -> None:
    chat.session.send("c")
    chat.says("d")
    own = chat.last
    chat.session.notice_others()
    chat.changes.clear()
    asked = asker.asks("x")  # after the reply that is made here
    chat.session.notice_others()
    assert told(chat) == []
    assert chat.texts == ["a", "b", "c", "d"]
    chat.ends()
    chat.changes.clear()
    chat.session.notice_others()
    assert told(chat) == [("MessageAdded", "x", "complete")]
    assert asked.parent_id == own.id
    assert chat.texts == ["a", "b", "c", "d", "x"]


def test_branch_of_another_process_is_shown_from_its_beginning(chat: Bench, asker: Asker) -> None:
    first = chat.chat.path()[0]
    asker.store.add_message(chat.chat.id, parent_id=first.id, role="assistant", content="otherwise")
    chat.session.notice_others()
    shown = [change for change in chat.changes if isinstance(change, ConversationShown)]
    assert len(shown) == 1
    assert chat.texts == ["a", "otherwise"]


def test_other_branch_that_is_chosen_here_stays(chat: Bench, asker: Asker) -> None:
    chat.session.regenerate(chat.last.id)
    chat.says("b2")
    chat.ends()
    chosen = chat.chat.versions(chat.last.id)[0]
    chat.session.show_version(chosen)
    asker.store.set_leaf(chat.chat.id, chat.chat.versions(chosen)[1])
    chat.changes.clear()
    chat.session.notice_others()
    assert chat.texts == ["a", "b"]
    assert told(chat) == []


def test_chat_stays_as_it_is_while_a_text_is_measured(chat: Bench, asker: Asker) -> None:
    assert chat.session.send(LONG)
    asker.turn("c", "d")
    chat.session.notice_others()
    assert chat.texts == ["a", "b"]
    chat.session.stop()
    chat.changes.clear()
    chat.session.notice_others()
    assert chat.texts == ["a", "b", "c", "d"]


def test_store_that_cannot_be_read_is_not_complained_of(
    chat: Bench, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise StorageError("The disk reported an error.", hint="")

    monkeypatch.setattr(chat.store, "end_of", refuse)
    asker.turn("c", "d")
    chat.changes.clear()
    chat.session.notice_others()
    assert chat.take() == []
    assert chat.texts == ["a", "b"]


def test_new_chat_and_other_chats_are_left_alone(chat: Bench, asker: Asker) -> None:
    chat_id = chat.chat.id
    asker.turn("c", "d")
    chat.session.new_chat()
    chat.changes.clear()
    chat.session.notice_others()
    assert chat.session.conversation is None
    assert told(chat) == []
    chat.session.open_chat(chat_id)
    chat.changes.clear()
    chat.session.notice_others()
    assert told(chat) == []
    assert chat.texts == ["a", "b", "c", "d"]
