import pytest

from app.conversation import ConversationId, Message, MessageId, MessageStatus
from app.prompting import prompt_messages, title_from
from inference.request import ChatMessage, PromptPart, Role

PART = PromptPart((8, 9), b"d" * 16)


def make_message(
    role: Role, content: str, *, status: MessageStatus = "complete", key: str | None = None
) -> Message:
    """With ids by the model `key`; a reply has its own, a person's message the prompt's."""
    is_reply = role == "assistant"
    return Message(
        MessageId(1),
        ConversationId("c"),
        None,
        role,
        content,
        0.0,
        status,
        token_ids=(1, 2) if key and is_reply else None,
        model_key=key,
        part=PART if key and not is_reply else None,
    )


def for_engine(
    path: list[Message], *, system_prompt: str = "", key: str | None = None, left_out: int = 0
) -> list[ChatMessage]:
    messages = prompt_messages(path, system_prompt=system_prompt, key=key, left_out=left_out)
    return [message.chat for message in messages]


def test_messages_begin_with_the_system_prompt_if_there_is_one() -> None:
    path = [make_message("user", "Hi")]
    assert for_engine(path, system_prompt="Be brief.") == [
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "Hi"),
    ]
    assert for_engine(path, system_prompt=" \n") == [ChatMessage("user", "Hi")]


def test_messages_carry_token_ids_of_the_same_model_only() -> None:
    path = [
        make_message("user", "a"),
        make_message("assistant", "b", key="m1"),
        make_message("user", "c"),
        make_message("assistant", "d", key="m2"),
        make_message("user", "e"),
    ]
    assert [m.token_ids for m in for_engine(path, key="m1")] == [
        None,
        (1, 2),
        None,
        None,
        None,
    ]
    assert [m.token_ids for m in for_engine(path)] == [None] * 5


def test_messages_carry_parts_of_the_same_model_only() -> None:
    path = [
        make_message("user", "a", key="m1"),
        make_message("assistant", "b"),
        make_message("user", "c", key="m2"),
    ]
    assert [m.part for m in for_engine(path, system_prompt="s", key="m1")] == [
        *(None, PART, None, None),
    ]
    assert [m.part for m in for_engine(path)] == [None] * 3


def test_messages_left_out_are_the_oldest_of_the_path_and_never_the_system_prompt() -> None:
    path = [
        make_message("user", "too long"),
        make_message("assistant", "", status="error"),
        make_message("user", "a"),
        make_message("assistant", "b"),
        make_message("user", "c"),
    ]

    def contents(left_out: int) -> list[str]:
        return [m.content for m in for_engine(path, system_prompt="s", left_out=left_out)]

    assert contents(0) == contents(2) == ["s", "a", "b", "c"]
    assert contents(4) == ["s", "c"]


def test_messages_of_a_prompt_know_where_they_come_from() -> None:
    path = [
        make_message("user", "a"),
        make_message("assistant", "", status="stopped"),
        make_message("user", "b"),
    ]
    messages = prompt_messages(path, system_prompt="s", key="m")
    assert [message.source for message in messages] == [None, path[0], path[2]]
    assert [message.chat.content for message in messages] == ["s", "a", "b"]


def test_messages_leave_out_empty_replies_and_keep_their_question() -> None:
    path = [
        make_message("user", "a"),
        make_message("assistant", "", status="stopped"),
        make_message("user", "b"),
    ]
    assert [m.content for m in for_engine(path)] == ["a", "b"]


def test_messages_leave_out_a_question_that_failed_at_once() -> None:
    path = [
        make_message("user", "far too long"),
        make_message("assistant", "", status="error"),
        make_message("user", "b"),
    ]
    assert [m.content for m in for_engine(path)] == ["b"]


def test_messages_keep_a_reply_that_failed_later() -> None:
    path = [
        make_message("user", "a"),
        make_message("assistant", "half", status="error"),
        make_message("user", "b"),
    ]
    contents = [m.content for m in for_engine(path)]
    assert contents == ["a", "half", "b"]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hi", "Hi"),
        ("  two \n lines  ", "two lines"),
        ("x" * 40, "x" * 40),
        ("Why do plane trees drop their bark in summer?", "Why do plane trees drop their bark in…"),
        ("a" * 60, "a" * 40 + "…"),
        ("为" * 60, "为" * 40 + "…"),
        ("Tell me, " + "b" * 60, "Tell me, " + "b" * 31 + "…"),
        ("Compare apples, pears and quinces, please do", "Compare apples, pears and quinces…"),
        ("word " * 8 + "x", "word word word word word word word word…"),
        ("\u202eabc\u202c \u2066d\u2069\u200e\u200f\u061c e", "abc d e"),
        ("a \u202d b", "a b"),
        ("a\x1b[1m\0 b", "a [1m b"),
        ("\u202e" * 50 + "x" * 40, "x" * 40),
        ("\u202e\u2066 \u200f", ""),
    ],
)
def test_title_is_one_line_cut_after_a_word(text: str, title: str) -> None:
    assert title_from(text) == title
