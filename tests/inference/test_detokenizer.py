from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.text.detokenizer import StreamDetokenizer
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_gguf import tokenizer_from_metadata
from tests.inference.text_models import (
    starter_tokenizer,
    tiny_byte_metadata,
    tiny_sentence_metadata,
)

TRICKY = "👨‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪 日本語 a\u0301 ﷽ \U0001f9ff"
BYTES = tokenizer_from_metadata(tiny_byte_metadata(), "bytes.gguf")
SENTENCE = tokenizer_from_metadata(tiny_sentence_metadata(), "sentence.gguf")


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = StreamDetokenizer(tokenizer)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


def test_stream_of_tricky_text_has_whole_characters_only(starter_model_path: Path) -> None:
    tokenizer = starter_tokenizer(starter_model_path)
    deltas = stream(tokenizer, tokenizer.encode_text(TRICKY))
    assert "".join(deltas) == TRICKY
    assert "\ufffd" not in "".join(deltas)
    assert len(deltas) > len(TRICKY) / 2


def test_stream_of_single_bytes_waits_for_the_whole_character() -> None:
    assert stream(BYTES, BYTES.encode_text("é👍")) == ["", "é", "", "", "", "👍", ""]


def test_stream_ending_in_half_a_character_ends_with_one_replacement() -> None:
    ids = BYTES.encode_text("👍")[:3]
    assert stream(BYTES, ids) == ["", "", "", "\ufffd"]


def test_stream_with_wrong_byte_shows_it_when_certain() -> None:
    half = BYTES.encode_text("é")[:1]
    letter = BYTES.encode_text("x")
    assert stream(BYTES, half + letter) == ["", "\ufffdx", ""]


def test_stream_skips_control_tokens_even_inside_a_character() -> None:
    first, second = BYTES.encode_text("é")
    control = BYTES.control_tokens["<|end|>"]
    assert stream(BYTES, [first, control, second]) == ["", "", "é", ""]


def test_stream_of_sentence_vocabulary_drops_one_leading_space_once() -> None:
    ids = SENTENCE.encode_text("hello hello")
    assert stream(SENTENCE, ids) == ["hello", " hello", ""]
    space = SENTENCE.encode_text("", after="start") + SENTENCE.encode_text(" ", after="text")
    assert stream(SENTENCE, space + ids) == ["", " hello", " hello", ""]


@pytest.mark.parametrize("tokenizer", [BYTES, SENTENCE], ids=["bytes", "sentence"])
def test_any_ids_stream_to_the_one_shot_decode(tokenizer: Tokenizer) -> None:
    @settings(max_examples=400, deadline=None)
    @given(st.lists(st.integers(-2, tokenizer.vocab_size + 2), max_size=40))
    def check(ids: list[int]) -> None:
        assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)

    check()


def test_any_ids_of_starter_stream_to_the_one_shot_decode(starter_model_path: Path) -> None:
    tokenizer = starter_tokenizer(starter_model_path)
    single_bytes = [
        n for n in range(tokenizer.vocab_size) if len(tokenizer.vocabulary.piece(n)) < 2
    ]

    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.sampled_from(single_bytes) | st.integers(0, 49151), max_size=60))
    def check(ids: list[int]) -> None:
        deltas = stream(tokenizer, ids)
        assert "".join(deltas) == tokenizer.decode(ids)

    check()


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_stream_of_any_text_never_shows_a_half_character(text: str) -> None:
    deltas = stream(BYTES, BYTES.encode_text(text))
    assert "".join(deltas) == text
    assert "".join(deltas).count("\ufffd") == text.count("\ufffd")
