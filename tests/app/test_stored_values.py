from typing import get_args

import pytest

from app.conversation import ChatSettings, ConversationId, Message, MessageId, OnFull
from app.failure_kind import FailureKind
from app.stored_values import (
    chat_settings_from_text,
    chat_settings_to_text,
    ids_from_blob,
    ids_to_blob,
    message_from_row,
    metrics_from_text,
    metrics_to_text,
    part_from_blobs,
    part_to_blobs,
)
from inference.config import SamplingParams
from inference.metrics import RequestMetrics, ReuseStop
from inference.request import PromptPart

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
