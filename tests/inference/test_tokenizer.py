from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from inference.text.tokenizer import Markup, SpacePrefix, Tokenizer, TurnTokens
from inference.text.tokenizer_gguf import tokenizer_from_metadata
from inference.text.vocabulary import Vocabulary
from tests.inference.text_models import (
    family_oracle,
    family_tokenizer,
    starter_tokenizer,
    tiny_byte_metadata,
    tiny_sentence_metadata,
)

SAMPLES = [
    "Hello, world!",
    " leading and trailing ",
    "two  spaces   three\n\n\nlines\r\n\ttabs",
    "It's I'LL we've 12345 3.14 x**2 != y",
    "日本語テスト 한국어 العربية हिन्दी",
    "👨‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪",
    "a\u0301e\u0301 \u200b\ufeff\u00a0",
    "def f(x):\n    return [x for x in range(10)]\n",
]


def make(**metadata: object) -> Tokenizer:
    return tokenizer_from_metadata(tiny_byte_metadata(**metadata), "t.gguf")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", SAMPLES)
def test_encode_text_of_starter_equals_transformers(starter_model_path: Path, text: str) -> None:
    ids = starter_tokenizer(starter_model_path).encode_text(text)
    oracle = family_oracle(starter_model_path)
    assert ids == oracle.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("text", SAMPLES)
def test_decode_of_starter_gives_the_text_back(starter_model_path: Path, text: str) -> None:
    tokenizer = starter_tokenizer(starter_model_path)
    assert tokenizer.decode(tokenizer.encode_text(text)) == text


def test_any_text_decodes_to_itself_or_replacements(starter_model_path: Path) -> None:
    tokenizer = starter_tokenizer(starter_model_path)
    missing = frozenset(tokenizer.vocabulary.missing_bytes())

    @settings(max_examples=500, deadline=None)
    @given(st.text(st.characters(exclude_categories=["Cs"])))
    def check(text: str) -> None:
        expected = "".join(c if missing.isdisjoint(c.encode()) else "\ufffd" for c in text)
        assert tokenizer.decode(tokenizer.encode_text(text)) == expected

    check()


def test_starter_writes_all_usual_characters(starter_model_path: Path) -> None:
    tokenizer = starter_tokenizer(starter_model_path)
    usual = [chr(c) for c in (*range(0x20, 0x7F), *range(0xA0, 0xD800), *range(0x1F300, 0x1FB00))]
    usual += ["\n", "\t", "\r", "\u200d", "\U000e0067"]
    assert [c for c in usual if tokenizer.decode(tokenizer.encode_text(c)) != c] == []


def test_character_without_bytes_in_vocabulary_becomes_replacement(
    starter_model_path: Path,
) -> None:
    tokenizer = starter_tokenizer(starter_model_path)
    assert 4 in tokenizer.vocabulary.missing_bytes()
    assert tokenizer.decode(tokenizer.encode_text("a\x04b")) == "a\ufffdb"


def test_lone_surrogates_become_replacements() -> None:
    tokenizer = make()
    assert tokenizer.decode(tokenizer.encode_text("a\ud800b\udfff")) == "a\ufffdb\ufffd"


def test_typed_control_tokens_of_starter_stay_characters(starter_model_path: Path) -> None:
    tokenizer = starter_tokenizer(starter_model_path)
    text = "".join(tokenizer.control_tokens) + " <|im_end|>"
    ids = tokenizer.encode_text(text)
    assert not set(ids) & set(tokenizer.control_tokens.values())
    assert tokenizer.decode(ids) == text


def test_any_mix_of_typed_markup_never_yields_markup(starter_model_path: Path) -> None:
    tokenizer = family_tokenizer(starter_model_path)
    markup = set(tokenizer.markup_tokens.values())
    names = st.sampled_from(sorted(tokenizer.markup_tokens))

    @settings(max_examples=200, deadline=None)
    @given(st.lists(names | st.text("<|>s/ []INTim_end", max_size=8)).map("".join))
    def check(text: str) -> None:
        ids = tokenizer.encode_text(text)
        assert not markup & set(ids)
        assert tokenizer.decode(ids) == text

    check()


def test_encode_markup_recognises_control_and_visible_tokens(starter_model_path: Path) -> None:
    tokenizer = family_tokenizer(starter_model_path)
    oracle = family_oracle(starter_model_path)
    text = "<|im_start|>user\nHi<|im_end|>\n<think>\nhm</think>ok<|eot_id|>"
    assert tokenizer.encode_markup(text) == oracle.encode(text, add_special_tokens=False)
    assert tokenizer.control_tokens["<|im_end|>"] in tokenizer.encode_markup(text)


def test_split_markup_takes_the_longest_token_and_no_empty_text() -> None:
    tokenizer = make(added={"<|a|>": 3, "<|a|>b": 3})
    a, ab = (tokenizer.control_tokens[name] for name in ("<|a|>", "<|a|>b"))
    assert list(tokenizer.split_markup("<|a|>bx<|a|><|a|>c")) == [ab, "x", a, a, "c"]
    assert list(tokenizer.split_markup("")) == []


def test_split_markup_without_any_tokens_is_the_text() -> None:
    tokenizer = make(added={})
    assert list(tokenizer.split_markup("<|a|>")) == ["<|a|>"]
    assert list(tokenizer.split_markup("")) == []
    assert tokenizer.control_tokens == {}


def test_split_markup_with_stripping_tokens_swallows_space() -> None:
    core = tokenizers.Tokenizer(models.BPE(vocab={"x": 0}, merges=[]))
    tokenizer = Tokenizer(
        core,
        Vocabulary(["x", "<|l|>", "<|r|>", "<|n|>"], is_byte_level=True, literal_ids=[1, 2, 3]),
        Markup(
            {"<|l|>": 1, "<|r|>": 2, "<|n|>": 3},
            strips_left=frozenset({"<|l|>"}),
            strips_right=frozenset({"<|r|>"}),
        ),
        turns=TurnTokens(None, None, frozenset(), add_bos=True),
        prefix=SpacePrefix(),
    )
    assert list(tokenizer.split_markup("x \n<|l|> x<|r|>\n\nx <|n|> ")) == [
        *("x", 1, " x", 2, "x ", 3, " "),
    ]
    assert not tokenizer.add_bos
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("", "")


def test_control_token_of_one_character_is_not_recognised() -> None:
    tokenizer = make(added={"☃": 3})
    assert list(tokenizer.split_markup("a☃")) == ["a☃"]


def test_vocabulary_that_merges_into_a_control_token_still_never_yields_it() -> None:
    vocab = {"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4, "a": 5}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("<", "s"), ("<s", ">")]))
    tokenizer = Tokenizer(
        core,
        Vocabulary(list(vocab), is_byte_level=True, literal_ids=[4]),
        Markup({"<s>": 4}),
        turns=TurnTokens(4, None, frozenset(), add_bos=True),
        prefix=SpacePrefix(),
    )
    assert core.encode("a<s>").ids == [5, 4]
    assert tokenizer.encode_text("a<s>") == [5, 0, 1, 2]
    assert tokenizer.encode_markup("a<s>") == [5, 4]


def test_decode_skips_control_tokens_unless_asked() -> None:
    tokenizer = make()
    ids = [*tokenizer.encode_text("ab"), tokenizer.control_tokens["<|end|>"]]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_control=False) == "ab<|end|>"


def test_decode_keeps_visible_markup() -> None:
    tokenizer = make(added={"<think>": 4})
    assert tokenizer.decode(tokenizer.encode_markup("<think>ab")) == "<think>ab"
    assert not tokenizer.is_control(tokenizer.markup.visible["<think>"])


def test_user_defined_runs_of_space_still_match_in_text() -> None:
    tokenizer = make(added={"    ": 4, "<|end|>": 3})
    ids = tokenizer.encode_text("a    b")
    assert [tokenizer.vocabulary.piece(n) for n in ids] == ["a", "    ", "b"]
    assert tokenizer.decode(ids) == "a    b"


def sentence(**changes: object) -> Tokenizer:
    return tokenizer_from_metadata(tiny_sentence_metadata(**changes), "t.gguf")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("after", "pieces"),
    [("start", ["▁hello"]), ("control", ["▁hello"]), ("text", ["hello"])],
)
def test_sentence_text_gets_its_space_where_a_section_begins(after: str, pieces: list[str]) -> None:
    tokenizer = sentence()
    ids = tokenizer.encode_text("hello", after=after)  # type: ignore[arg-type]
    assert [tokenizer.vocabulary.piece(n) for n in ids] == pieces


def test_sentence_text_without_space_prefix_keeps_its_space() -> None:
    tokenizer = sentence(add_space_prefix=False)
    assert tokenizer.decode(tokenizer.encode_text("hello")) == "hello"
    assert tokenizer.decode(tokenizer.encode_text(" hello")) == " hello"


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
def test_any_sentence_text_decodes_to_itself(text: str) -> None:
    tokenizer = SENTENCE
    assert tokenizer.decode(tokenizer.encode_text(text)) == text
    assert not {0, 1, 2} & set(tokenizer.encode_text(text))


SENTENCE = sentence()
