import pytest

from app.context_room import (
    has_room,
    left_out_mark,
    left_out_of,
    most_prompt_tokens,
    reply_room,
    shortened,
    whole,
)
from app.conversation import ConversationId, Message, MessageId
from inference.metrics import RequestMetrics
from inference.request import ChatMessage, PromptPart, PromptSize, Role

FIRST, SECOND = PromptPart((1,), bytes(16)), PromptPart((2,), bytes(16))


class Meter:
    """Counts 10 tokens per letter of a message; `extra` is what a template adds unseen."""

    def __init__(self, context_tokens: int, extra: int = 0) -> None:
        self.context_tokens = context_tokens
        self.extra = extra
        self.num_calls = 0

    def __call__(self, messages: tuple[ChatMessage, ...]) -> PromptSize:
        self.num_calls += 1
        starts = [0]
        for message in messages:
            starts.append(starts[-1] + 10 * len(message.content))
        return PromptSize(starts[-1] + self.extra, self.context_tokens, tuple(starts[:-1]))


def chat(*texts: str, system: str = "") -> tuple[ChatMessage, ...]:
    """Turns; a text that begins with ">" is a reply."""
    messages = [ChatMessage("system", system)] if system else []
    messages += [ChatMessage("assistant" if t[0] == ">" else "user", t) for t in texts]
    return tuple(messages)


def texts(messages: tuple[ChatMessage, ...]) -> list[str]:
    return [message.content for message in messages]


@pytest.mark.parametrize(
    ("context", "room"), [(2, 1), (8, 1), (16, 2), (2048, 256), (4096, 512), (100_000, 512)]
)
def test_reply_needs_an_eighth_of_the_context_at_most_512(context: int, room: int) -> None:
    assert reply_room(context) == room
    assert has_room(context - room, context)
    assert not has_room(context - room + 1, context)


def test_chat_that_fits_keeps_all() -> None:
    messages = chat("aaaa", ">b", "c", system="ss")
    meter = Meter(103)
    kept = shortened(messages, meter)  # 90 tokens and 12 for the reply
    assert (kept.messages, kept.left_out, meter.num_calls) == (messages, 0, 1)


def test_full_chat_leaves_out_the_oldest_turns_down_to_three_fifths() -> None:
    messages = chat("aa", ">b", "cc", ">d", "ee", ">f", "g", system="s")
    kept = shortened(messages, Meter(120))  # 110 of 120; at most 72 are to stay
    assert texts(kept.messages) == ["s", "ee", ">f", "g"]
    assert kept.left_out == 4


def test_turn_is_left_out_whole() -> None:
    messages = chat("aa", ">b", ">c", "dd", "e", ">f", "gg")
    kept = shortened(messages, Meter(120))
    assert texts(kept.messages) == ["dd", "e", ">f", "gg"]
    assert kept.left_out == 3


def test_last_message_of_the_person_stays_even_if_it_is_too_long() -> None:
    messages = chat("a", ">b", "c" * 20, system="ss")
    kept = shortened(messages, Meter(100))
    assert texts(kept.messages) == ["ss", "c" * 20]
    assert kept.left_out == 2
    alone = chat("c" * 20, system="s")
    assert shortened(alone, Meter(100)).messages == alone


def test_chat_without_a_person_keeps_all() -> None:
    messages = chat(">aaaaaaaaaaaa")
    assert shortened(messages, Meter(100)).messages == messages
    assert shortened((), Meter(100, extra=200)).messages == ()


def test_cut_that_was_not_enough_goes_on() -> None:
    class Liar(Meter):
        """After the first cut the rest is longer than its starts had said."""

        def __call__(self, messages: tuple[ChatMessage, ...]) -> PromptSize:
            self.extra = 60 if self.num_calls == 1 else 0
            return super().__call__(messages)

    messages = chat("aaaa", ">b", "cc", ">d", "ee", ">f", "g")
    meter = Liar(100)
    kept = shortened(messages, meter)
    assert meter.num_calls == 3
    assert texts(kept.messages) == ["g"]
    assert kept.left_out == 6


@pytest.mark.parametrize("system", ["", "s"])
def test_parts_have_the_places_of_the_whole_chat(system: str) -> None:
    messages = chat("aaaaa", ">b", "ccc", system=system)
    kept = shortened(messages, Meter(80))
    assert kept.left_out == 2
    last = len(kept.messages) - 1
    parts = kept.parts([(0, FIRST), (last, SECOND)])
    expected = 0 if system else 2
    assert parts == ((expected, FIRST), (len(messages) - 1, SECOND))
    assert whole(messages).parts([(0, FIRST), (1, SECOND)]) == ((0, FIRST), (1, SECOND))


# ---------------------------------------------------------------- stored messages


def message(number: int, role: Role, content: str, **fields: object) -> Message:
    return Message(MessageId(number), ConversationId("c"), None, role, content, 0.0, **fields)  # type: ignore[arg-type]


def test_mark_is_the_first_message_that_the_last_reply_saw() -> None:
    path = [
        message(1, "user", "a"),
        message(2, "assistant", "b", left_out=0),
        message(3, "user", "c"),
        message(4, "assistant", "d", left_out=2),
        message(5, "user", "e"),
        message(6, "assistant", ""),
    ]
    assert left_out_of(path) == 2
    assert left_out_mark(path) == 3
    assert left_out_mark(path[:3]) is None
    assert (left_out_of([]), left_out_mark([])) == (0, None)


def test_reply_that_has_just_begun_says_what_it_sees() -> None:
    path = [
        message(1, "user", "a"),
        message(2, "assistant", "b"),
        message(3, "user", "c"),
        message(4, "assistant", "", left_out=2),
    ]
    assert left_out_mark(path) == 3


def test_most_tokens_are_bytes_and_markup() -> None:
    path = [message(1, "user", "é\ud800"), message(2, "assistant", "bb"), message(3, "user", "c")]
    assert most_prompt_tokens([], system_prompt="", key="k") == 256
    assert most_prompt_tokens(path, system_prompt="ss", key="k") == 256 + 2 + 5 + 2 + 1 + 3 * 16


def test_most_tokens_go_on_from_the_numbers_of_the_last_reply() -> None:
    metrics = RequestMetrics(prompt_tokens=100, completion_tokens=20)
    path = [
        message(1, "user", "a" * 1000),
        message(2, "assistant", "b" * 1000, model_key="k", metrics=metrics),
        message(3, "user", "cc"),
    ]
    assert most_prompt_tokens(path, system_prompt="s", key="k") == 256 + 1 + 120 + 2 + 16
    assert most_prompt_tokens(path, system_prompt="s", key="x") > 2000
