from typing import get_args

import pytest

from app.conversation import ChatSettings, ConversationId, Message, MessageId
from app.failure_kind import FailureKind
from app.stored_values import (
    chat_settings_from_text,
    chat_settings_to_text,
    ids_from_blob,
    ids_to_blob,
    message_from_row,
    metrics_from_text,
    metrics_to_text,
)
from inference.config import SamplingParams
from inference.metrics import RequestMetrics


def make_row(failure_kind: object) -> dict[str, object]:
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
    )


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


def test_chat_settings_written_and_read_are_equal() -> None:
    settings = ChatSettings("Sei kurz. 中", SamplingParams(temperature=0.0, stop=("a",)))
    assert chat_settings_from_text(chat_settings_to_text(settings)) == settings
    assert chat_settings_from_text(chat_settings_to_text(ChatSettings())) == ChatSettings()


@pytest.mark.parametrize("text", ["", "nope", "3", '{"system_prompt": 3, "sampling": "x"}'])
def test_chat_settings_that_are_unreadable_are_the_general_ones(text: str) -> None:
    assert chat_settings_from_text(text) == ChatSettings()


def test_chat_settings_with_a_bad_number_keep_the_others() -> None:
    settings = chat_settings_from_text('{"sampling": {"top_k": -1, "top_p": 0.5}}')
    assert settings.sampling == SamplingParams(top_p=0.5)
