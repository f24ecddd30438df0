from typing import get_args

import pytest

from app.conversation import (
    ChatSettings,
    Conversation,
    ConversationId,
    Message,
    MessageId,
    MessageStatus,
    OnFull,
)
from app.failure_kind import FailureKind
from app.stored_values import (
    chat_settings_from_text,
    chat_settings_to_text,
    conversation_from_row,
    ids_from_blob,
    ids_to_blob,
    message_from_row,
    metrics_from_text,
    metrics_to_text,
    number_from,
    part_from_blobs,
    part_to_blobs,
    status_from,
    text_from,
    with_known_parents,
)
from inference.config import SamplingParams
from inference.metrics import RequestMetrics, ReuseStop
from inference.request import PromptPart, Role

DIGEST = bytes(range(16))


def make_row(failure_kind: object = None, **changes: object) -> dict[str, object]:
    return {
        "id": 3,
        "conversation_id": "a",
        "parent_id": 2,
        "role": "assistant",
        "content": "half",
        "created_at": 1.5,
        "status": "error",
        "token_ids": b"\7\0\0\0",
        "model_key": "m",
        "metrics": '{"seed": 2}',
        "error": "Lost.",
        "failure_kind": failure_kind,
        "part_ids": b"\1\0\0\0\2\0\0\0",
        "part_digest": DIGEST,
        "left_out": 4,
        **changes,
    }


@pytest.mark.parametrize("kind", [*get_args(FailureKind), None])
def test_message_has_the_values_of_its_row(kind: FailureKind | None) -> None:
    assert message_from_row(make_row(kind)) == Message(
        MessageId(3),
        ConversationId("a"),
        MessageId(2),
        "assistant",
        "half",
        1.5,
        status="error",
        token_ids=(7,),
        model_key="m",
        metrics=RequestMetrics(seed=2),
        error="Lost.",
        failure_kind=kind,
        part=PromptPart((1, 2), DIGEST),
        left_out=4,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"part_ids": None},
        {"part_ids": b"\1\0\0"},
        {"part_ids": "text"},
        {"part_digest": None},
        {"part_digest": DIGEST[:15]},
        {"part_digest": "0123456789abcdef"},
    ],
)
def test_part_that_is_incomplete_or_damaged_is_none(changes: dict[str, object]) -> None:
    assert message_from_row(make_row(**changes)).part is None


def test_part_written_and_read_is_equal() -> None:
    part = PromptPart((1, 258), DIGEST)
    assert part_from_blobs(*part_to_blobs(part)) == part
    assert part_to_blobs(None) == (None, None)


@pytest.mark.parametrize("value", [-1, "3", None, 1.5])
def test_count_of_messages_left_out_that_is_odd_is_zero(value: object) -> None:
    assert message_from_row(make_row(left_out=value)).left_out == 0


@pytest.mark.parametrize("value", ["future", "", 3, b"memory"])
def test_kind_of_failure_that_is_unknown_is_none(value: object) -> None:
    assert message_from_row(make_row(value)).failure_kind is None


@pytest.mark.parametrize(
    ("value", "status"),
    [
        *((status, status) for status in get_args(MessageStatus)),
        *(("completf", "complete"), ("s\ufffdreaming", "streaming"), (b"len\xe7th", "length")),
        *(("future", "complete"), ("", "complete"), (3, "complete"), (None, "complete")),
    ],
)
def test_state_that_is_damaged_is_the_nearest_one(value: object, status: MessageStatus) -> None:
    assert status_from(value) == status


@pytest.mark.parametrize(
    ("value", "token_ids", "role"),
    [
        *(("us\ufffdr", b"\7\0\0\0", "user"), ("assistbnt", None, "assistant")),
        *(("", b"\7\0\0\0", "assistant"), (3, None, "user"), ("system", None, "system")),
    ],
)
def test_role_that_is_damaged_is_the_nearest_one_or_what_the_ids_say(
    value: object, token_ids: bytes | None, role: Role
) -> None:
    assert message_from_row(make_row(role=value, token_ids=token_ids)).role == role


def test_odd_values_are_logged_without_them(caplog: pytest.LogCaptureFixture) -> None:
    message_from_row(make_row(role="zzzz", status="zzzz"))
    assert caplog.messages == [
        "The role of message 3 is damaged; it counts as assistant",
        "The state of a message is damaged; it counts as complete",
    ]


def test_text_has_a_sign_for_what_is_damaged() -> None:
    assert text_from("Öl") == "Öl"
    assert text_from(b"\xc3\x96\xecl") == "Ö\ufffdl"
    assert text_from(None) == text_from(3) == ""


def test_time_that_is_damaged_is_zero() -> None:
    assert number_from(2) == 2.0
    assert number_from(1.5) == 1.5
    assert number_from("1.5") == number_from(None) == 0.0


def make_messages(*rows: tuple[int, object, str]) -> list[Message]:
    return [
        message_from_row(make_row(id=number, parent_id=parent, role=role, status="complete"))
        for number, parent, role in rows
    ]


@pytest.mark.parametrize("parent", [9, 4, 3, "2", b"", -1])
def test_message_that_follows_nothing_known_follows_the_newest_it_may_have_answered(
    parent: object,
) -> None:
    messages = make_messages(
        (1, None, "user"), (2, 1, "assistant"), (3, parent, "user"), (4, 3, "assistant")
    )
    assert [m.parent_id for m in with_known_parents(messages)] == [None, 1, 2, 3]


def test_first_message_that_follows_nothing_known_stays_the_first() -> None:
    messages = make_messages((1, 7, "user"), (2, 7, "assistant"), (3, 1, "assistant"))
    assert [m.parent_id for m in with_known_parents(messages)] == [None, 1, 1]


@pytest.mark.parametrize("leaf_id", [7, None, "1", b"\1"])
def test_chat_whose_values_are_damaged_is_whole(leaf_id: object) -> None:
    row = {
        "id": "a",
        "title": b"T\xe9",
        "created_at": "then",
        "updated_at": None,
        "settings": b"\xff",
        "leaf_id": leaf_id,
    }
    messages = make_messages((1, None, "user"), (2, 1, "assistant"))
    assert conversation_from_row(row, messages) == Conversation(
        ConversationId("a"),
        "T\ufffd",
        0.0,
        0.0,
        messages={message.id: message for message in messages},
        leaf_id=MessageId(2),
    )


@pytest.mark.parametrize("value", [None, 3, b"\xff", 1.5])
def test_settings_and_metrics_that_are_no_text_are_left_out(value: object) -> None:
    assert chat_settings_from_text(value) == ChatSettings()
    assert metrics_from_text(value) is None


def test_ids_take_four_bytes_each_little_endian() -> None:
    assert ids_to_blob((1, 258, 2**32 - 1)) == b"\1\0\0\0\2\1\0\0\xff\xff\xff\xff"
    assert ids_from_blob(ids_to_blob((1, 258, 2**32 - 1))) == (1, 258, 2**32 - 1)
    assert ids_from_blob(b"") == ()


def test_ids_that_are_unknown_or_cut_are_none() -> None:
    assert ids_to_blob(None) is None
    assert ids_from_blob(None) is None
    assert ids_from_blob(b"\1\0\0") is None


def test_metrics_written_and_read_are_equal() -> None:
    metrics = RequestMetrics(
        prompt_tokens=5, reused_tokens=4, seed=3, reuse_stop="evicted", ttft_ms=1.5
    )
    assert metrics_from_text(metrics_to_text(metrics)) == metrics
    assert metrics_to_text(None) is None
    assert metrics_from_text(None) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"future": 1}'])
def test_metrics_that_are_unreadable_are_none(text: str) -> None:
    assert metrics_from_text(text) is None


def test_metrics_with_an_unknown_field_keep_the_others() -> None:
    assert metrics_from_text('{"future": 1, "seed": 2}') == RequestMetrics(seed=2)


@pytest.mark.parametrize("stop", [*get_args(ReuseStop), None])
def test_metrics_keep_why_reuse_stopped(stop: ReuseStop | None) -> None:
    metrics = RequestMetrics(seed=2, reuse_stop=stop, reuse_stop_message=3)
    assert metrics_from_text(metrics_to_text(metrics)) == metrics


@pytest.mark.parametrize("word", ['"all_reused"', '"different_text"', "3", "[]", "{}"])
def test_metrics_with_an_unknown_reason_keep_the_others(word: str) -> None:
    assert metrics_from_text(f'{{"reuse_stop": {word}, "seed": 2}}') == RequestMetrics(seed=2)


@pytest.mark.parametrize("on_full", get_args(OnFull))
def test_chat_settings_written_and_read_are_equal(on_full: OnFull) -> None:
    settings = ChatSettings("Sei kurz. 中", SamplingParams(temperature=0.0, stop=("a",)), on_full)
    assert chat_settings_from_text(chat_settings_to_text(settings)) == settings
    assert chat_settings_from_text(chat_settings_to_text(ChatSettings())) == ChatSettings()


@pytest.mark.parametrize(
    "text",
    [
        *("", "nope", "3", '{"system_prompt": 3, "sampling": "x"}'),
        *('{"on_full": "future"}', '{"on_full": ["ask"]}', '{"on_full": null}'),
    ],
)
def test_chat_settings_that_are_unreadable_are_the_general_ones(text: str) -> None:
    assert chat_settings_from_text(text) == ChatSettings()


def test_chat_settings_with_a_bad_number_keep_the_others() -> None:
    settings = chat_settings_from_text('{"sampling": {"top_k": -1, "top_p": 0.5}}')
    assert settings.sampling == SamplingParams(top_p=0.5)
