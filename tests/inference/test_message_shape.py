import pytest

from inference.request import ChatMessage
from inference.text.message_shape import MessageShape, shape_messages

STRICT = MessageShape.strictest(as_parts=False)


def chat(*turns: str) -> list[ChatMessage]:
    """Messages from "u:text" and the like."""
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [ChatMessage(roles[turn[0]], turn[2:]) for turn in turns]  # type: ignore[arg-type]


def test_free_shape_changes_nothing() -> None:
    messages = chat("s:S", "a:A", "a:B", "u:C", "s:D", "u:E")
    assert shape_messages(messages, MessageShape()) == messages


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["s:S", "u:Q"], ["u:S\n\nQ"]),
        (["s:S", "u:Q", "a:A", "u:R"], ["u:S\n\nQ", "a:A", "u:R"]),
        (["s:S", "s:T", "u:Q"], ["u:S\n\nT\n\nQ"]),
        (["s:S"], ["u:S"]),
        (["s:S", "a:A", "u:Q"], ["u:S", "a:A", "u:Q"]),
        (["u:Q", "u:R"], ["u:Q\n\nR"]),
        (["u:Q", "a:A", "a:B", "u:R"], ["u:Q", "a:A\n\nB", "u:R"]),
        (["a:A", "u:Q"], ["u:", "a:A", "u:Q"]),
        (["u:Q", "a:A", "s:S", "u:R"], ["u:Q", "a:A", "u:S\n\nR"]),
        (["u:Q", "s:S"], ["u:Q\n\nS"]),
    ],
)
def test_strict_shape_alternates_and_loses_nothing(given: list[str], expected: list[str]) -> None:
    assert shape_messages(chat(*given), STRICT) == chat(*expected)


def test_late_system_alone_goes_to_the_next_user_message() -> None:
    shape = MessageShape(takes_late_system=False)
    shaped = shape_messages(chat("s:S", "u:Q", "a:A", "s:T", "u:R"), shape)
    assert shaped == chat("s:S", "u:Q", "a:A", "u:T\n\nR")


def test_assistant_after_system_may_not_begin_either() -> None:
    shape = MessageShape(takes_assistant_first=False)
    assert shape_messages(chat("s:S", "a:A"), shape) == chat("s:S", "u:", "a:A")


def test_merged_replies_have_no_token_ids() -> None:
    messages = [ChatMessage("assistant", "A", (1,)), ChatMessage("assistant", "B", (2,))]
    assert shape_messages([ChatMessage("user", "Q"), *messages], STRICT)[1].token_ids is None
