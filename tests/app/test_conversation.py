import pytest

from app.conversation import Conversation, ConversationId, Message, MessageId

CHAT = ConversationId("c")


def make_message(number: int, parent: int | None = None, content: str = "") -> Message:
    return Message(
        MessageId(number),
        CHAT,
        None if parent is None else MessageId(parent),
        "user" if number % 2 else "assistant",
        content,
        float(number),
    )


def make_conversation(*parents: int | None, leaf: int | None = None) -> Conversation:
    """Messages 1, 2, … with these parents."""
    messages = {
        MessageId(number): make_message(number, parent)
        for number, parent in enumerate(parents, start=1)
    }
    return Conversation(
        CHAT, "t", 0.0, 0.0, messages=messages, leaf_id=None if leaf is None else MessageId(leaf)
    )


# 1 ─ 2 ─ 3 ─ 4
#  \      \─ 6
#   5
BRANCHED = make_conversation(None, 1, 2, 3, 1, 3, leaf=4)


def ids(messages: list[Message]) -> list[int]:
    return [message.id for message in messages]


def test_path_of_an_empty_conversation_is_empty() -> None:
    assert make_conversation().path() == []


def test_path_runs_from_the_first_message_to_the_leaf() -> None:
    assert ids(BRANCHED.path()) == [1, 2, 3, 4]
    assert ids(BRANCHED.path_to(MessageId(6))) == [1, 2, 3, 6]
    assert ids(BRANCHED.path_to(MessageId(5))) == [1, 5]
    assert BRANCHED.path_to(None) == []


def test_path_to_an_unknown_message_raises() -> None:
    with pytest.raises(KeyError):
        BRANCHED.path_to(MessageId(99))


def test_versions_are_the_siblings_oldest_first() -> None:
    assert BRANCHED.versions(MessageId(5)) == [2, 5]
    assert BRANCHED.versions(MessageId(4)) == [4, 6]
    assert BRANCHED.versions(MessageId(3)) == [3]


def test_versions_on_path_are_those_of_each_visible_message() -> None:
    assert BRANCHED.versions_on_path() == {1: [1], 2: [2, 5], 3: [3], 4: [4, 6]}
    assert make_conversation().versions_on_path() == {}


def test_versions_of_a_first_message_are_all_first_messages() -> None:
    assert make_conversation(None, 1, None).versions(MessageId(3)) == [1, 3]


@pytest.mark.parametrize(("start", "leaf"), [(1, 5), (2, 6), (3, 6), (4, 4), (5, 5), (6, 6)])
def test_newest_leaf_below_follows_the_newest_children(start: int, leaf: int) -> None:
    assert BRANCHED.newest_leaf_below(MessageId(start)) == leaf


def test_with_message_adds_and_leaves_the_old_value_alone() -> None:
    added = make_message(7, parent=4)
    changed = BRANCHED.with_message(added, as_leaf=True)
    assert ids(changed.path()) == [1, 2, 3, 4, 7]
    assert len(BRANCHED.messages) == 6
    assert BRANCHED.leaf_id == 4


def test_with_message_replaces_and_keeps_the_leaf() -> None:
    changed = BRANCHED.with_message(make_message(2, parent=1, content="new"))
    assert changed.messages[MessageId(2)].content == "new"
    assert changed.leaf_id == 4
