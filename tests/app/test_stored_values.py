import pytest

from app.conversation import ChatSettings
from app.stored_values import (
    chat_settings_from_text,
    chat_settings_to_text,
    ids_from_blob,
    ids_to_blob,
    metrics_from_text,
    metrics_to_text,
)
from inference.config import SamplingParams
from inference.metrics import RequestMetrics


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
