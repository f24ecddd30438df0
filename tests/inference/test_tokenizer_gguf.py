import logging
import time
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers
from transformers import GemmaTokenizer

from inference.errors import ModelFileError, UnsupportedModelError
from inference.text import tokenizer_gguf
from inference.text.pre_tokenizers import build_pre_tokenizer, find_rule
from inference.text.sentence_merges import merges_from_scores
from inference.text.tokenizer_gguf import tokenizer_from_metadata
from inference.text.vocabulary import BYTE_ALPHABET
from tests.inference.text_models import (
    starter_metadata,
    starter_tokenizer,
    tiny_byte_metadata,
    tiny_merge_metadata,
    tiny_sentence_metadata,
)


def test_starter_builds_in_well_under_a_second(starter_model_path: Path) -> None:
    metadata = starter_metadata(starter_model_path)
    start = time.process_time()
    tokenizer_from_metadata(metadata, starter_model_path)
    assert time.process_time() - start < 1.0  # 0.2 s in a warm process


def test_starter_has_its_ids_and_ends_of_turn(starter_model_path: Path) -> None:
    tokenizer = starter_tokenizer(starter_model_path)
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_id, tokenizer.bos_token, tokenizer.add_bos) == (1, "<|im_start|>", False)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_ids == {0, 2}
    assert len(tokenizer.control_tokens) == 17


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2", "no_vocab"])
def test_unknown_kind_of_tokenizer_is_unsupported(kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match=kind):
        tokenizer_from_metadata(tiny_byte_metadata(model=kind), "t.gguf")


@pytest.mark.parametrize("key", ["model", "tokens", "merges"])
def test_missing_key_is_named(key: str) -> None:
    metadata = tiny_byte_metadata()
    del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(ModelFileError, match=rf"t\.gguf: tokenizer\.ggml\.{key} is missing\."):
        tokenizer_from_metadata(metadata, "folder/t.gguf")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("model", 3, "is not text"),
        ("pre", 3, "is not text"),
        ("tokens", "abc", "is not a list"),
        ("tokens", [], "is not a list with something in it"),
        ("tokens", ["a", 3], "holds something that is not text"),
        ("tokens", ["a" * 5000], "over 4096 characters"),
        ("token_type", [1, 1], "has 2 entries for 259 tokens"),
        ("token_type", 1, "has no entries for 259 tokens"),
        ("token_type", ["x"] * 259, "not a number"),
        ("token_type", [True] * 259, "not a number"),
        ("merges", ["ab"], "has no pair at index 0"),
        ("merges", ["a b", "c "], "has no pair at index 1"),
        ("merges", ["xx yy", "zz qq", "a b"], "does not fit the list of tokens"),
        ("eos_token_id", 259, "is 259, but there are only 259 tokens"),
        ("bos_token_id", -7, "is -7"),
        ("bos_token_id", "1", "is not a whole number"),
        ("eot_token_id", True, "is not a whole number"),
        ("add_bos_token", 1, "is not true or false"),
        ("add_space_prefix", "no", "is not true or false"),
    ],
)
def test_wrong_value_names_key_and_reason(key: str, value: object, reason: str) -> None:
    metadata = tiny_byte_metadata() | {f"tokenizer.ggml.{key}": value}
    with pytest.raises(ModelFileError, match=rf"tokenizer\.ggml\.{key} .*{reason}") as raised:
        tokenizer_from_metadata(metadata, "t.gguf")
    assert raised.value.hint


def test_control_token_without_name_is_refused() -> None:
    with pytest.raises(ModelFileError, match="control token without a name"):
        tokenizer_from_metadata(tiny_byte_metadata(added={"": 3}), "t.gguf")


@pytest.mark.parametrize("score", [float("nan"), float("inf"), "1"])
def test_wrong_score_is_refused(score: object) -> None:
    metadata = tiny_sentence_metadata()
    metadata["tokenizer.ggml.scores"] = [score] * 269
    with pytest.raises(ModelFileError, match=r"scores"):
        tokenizer_from_metadata(metadata, "t.gguf")


@pytest.mark.parametrize("none", [-1, 0xFFFFFFFF])
def test_id_that_means_none_is_none(none: int) -> None:
    tokenizer = tokenizer_from_metadata(tiny_byte_metadata(bos_token_id=none), "t.gguf")
    assert (tokenizer.bos_id, tokenizer.bos_token, tokenizer.add_bos) == (None, "", False)


def test_missing_token_types_mean_plain_tokens() -> None:
    tokenizer = tokenizer_from_metadata(tiny_byte_metadata(token_type=None), "t.gguf")
    assert tokenizer.control_tokens == {}


def test_added_token_with_markup_name_is_control_whatever_its_type() -> None:
    added = {"<|im_end|>": 4, "<start_of_turn>": 4, "[INST]": 4, "<｜User｜>": 4, "<h1>": 4}
    tokenizer = tokenizer_from_metadata(tiny_byte_metadata(added=added), "t.gguf")
    assert list(tokenizer.control_tokens) == list(added)[:4]
    ids = tokenizer.encode_text("<h1>")
    assert [tokenizer.vocabulary.piece(n) for n in ids] == ["<h1>"]


def test_unused_and_undefined_tokens_never_come_from_text() -> None:
    tokenizer = tokenizer_from_metadata(
        tiny_byte_metadata(merges=["a b", "a c"], token_type=[1] * 257 + [5, 3]), "t.gguf"
    )
    assert [tokenizer.vocabulary.piece(n) for n in tokenizer.encode_text("abac")] == [
        "ab",
        "a",
        "c",
    ]


def test_ends_of_turn_are_those_named_and_those_known() -> None:
    added = {"<|im_end|>": 3, "<|eot_id|>": 3, "<eos>": 3, "<|other|>": 3, "<custom>": 3}
    metadata = tiny_byte_metadata(added=added, eos_token_id=262, eot_token_id=256)
    tokenizer = tokenizer_from_metadata(metadata, "t.gguf")
    names = {tokenizer.vocabulary.piece(n) for n in tokenizer.eos_ids}
    assert names == {"<|im_end|>", "<|eot_id|>", "<eos>", "<custom>", "ab"}
    assert tokenizer.eos_token == "<custom>"


@pytest.mark.parametrize(
    ("pre", "adds"), [("llama-bpe", True), ("tekken", True), ("qwen2", False), ("gpt-2", False)]
)
def test_bos_is_added_as_the_family_does_unless_the_file_says(pre: str, adds: bool) -> None:
    metadata = tiny_byte_metadata(pre=pre, bos_token_id=258)
    assert tokenizer_from_metadata(metadata, "t.gguf").add_bos is adds
    metadata["tokenizer.ggml.add_bos_token"] = not adds
    assert tokenizer_from_metadata(metadata, "t.gguf").add_bos is not adds


def test_sentence_kind_adds_bos_and_has_no_typeable_structure() -> None:
    tokenizer = tokenizer_from_metadata(tiny_sentence_metadata(), "t.gguf")
    assert tokenizer.add_bos
    assert tokenizer.control_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert tokenizer.eos_ids == {2}
    assert not {0, 1, 2} & set(tokenizer.encode_text("<s></s><unk><0x0A>"))


def test_sentence_kind_falls_back_to_bytes() -> None:
    tokenizer = tokenizer_from_metadata(tiny_sentence_metadata(), "t.gguf")
    pieces = [tokenizer.vocabulary.piece(n) for n in tokenizer.encode_text("é", after="text")]
    assert pieces == ["<0xC3>", "<0xA9>"]


def test_sentence_kind_matches_user_defined_runs_of_space() -> None:
    metadata = tiny_sentence_metadata(added={"▁▁▁": 4, "<b>": 4})
    tokenizer = tokenizer_from_metadata(metadata, "t.gguf")
    ids = tokenizer.encode_text("o   o<b>", after="text")
    assert [tokenizer.vocabulary.piece(n) for n in ids] == ["o", "▁▁▁", "o", "<b>"]
    assert tokenizer.decode(ids) == "o   o<b>"


def test_merges_of_which_all_lead_somewhere_are_checked_by_the_library_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = tiny_byte_metadata()
    beside = metadata | {"tokenizer.ggml.merges": ["a b", "ab c", "x y"]}
    careful = tokenizer_from_metadata(beside, "t.gguf")
    monkeypatch.delattr(tokenizer_gguf, "_read_merges")
    quick = tokenizer_from_metadata(metadata, "t.gguf")
    for text in ("abc abab cab", "a b  xyz"):
        assert quick.encode_text(text) == careful.encode_text(text)
    assert len(quick.encode_text("abcab")) == 2
    with pytest.raises(NameError):
        tokenizer_from_metadata(beside, "t.gguf")


def test_a_name_that_is_empty_has_each_merge_looked_at() -> None:
    metadata = tiny_byte_metadata(added={"": 1}, merges=["a b", "a "])
    with pytest.raises(ModelFileError, match="has no pair at index 1"):
        tokenizer_from_metadata(metadata, "t.gguf")


def test_few_merges_that_lead_nowhere_are_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metadata = tiny_byte_metadata()
    metadata["tokenizer.ggml.merges"] = ["a b", "x y", "ab c"]
    with caplog.at_level(logging.WARNING):
        tokenizer = tokenizer_from_metadata(metadata, "t.gguf")
    assert "1 of 3 merges" in caplog.text
    assert [tokenizer.vocabulary.piece(n) for n in tokenizer.encode_text("abcxy")] == [
        *("abc", "x", "y"),
    ]


def test_family_that_ignores_merges_takes_whole_words() -> None:
    metadata = tiny_byte_metadata(merges=["a b", "c d"], added={"abcd": 1, "<|end|>": 3})
    pieces = {}
    for pre in ("llama-bpe", "qwen2"):
        tokenizer = tokenizer_from_metadata(metadata | {"tokenizer.ggml.pre": pre}, "t.gguf")
        pieces[pre] = [tokenizer.vocabulary.piece(n) for n in tokenizer.encode_text("abcd")]
    assert pieces == {"llama-bpe": ["abcd"], "qwen2": ["ab", "cd"]}


def test_unknown_pre_tokenizer_falls_back_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = tokenizer_from_metadata(tiny_byte_metadata(pre="never-heard"), "t.gguf")
    assert "never-heard" in caplog.text
    assert tokenizer.decode(tokenizer.encode_text("abc 123")) == "abc 123"


TEXT = 'I\'LL pay 12345 €, x="日本"\n\n  OKLetUs a/b/ cafe\u0301'


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        (
            "gpt-2",
            [
                *("I", "'", "LL", " pay", " 12345", " €,", " x", '="', "日本", '"', "\n\n "),
                *(" OKLetUs", " a", "/", "b", "/", " cafe", "\u0301"),
            ],
        ),
        (
            "smollm",
            [
                *("I", "'", "LL", " pay", " ", "1", "2", "3", "4", "5", " €,", " x", '="'),
                *("日本", '"', "\n\n ", " OKLetUs", " a", "/", "b", "/", " cafe", "\u0301"),
            ],
        ),
        (
            "llama-bpe",
            [
                *("I", "'LL", " pay", " ", "123", "45", " €,", " x", '="', "日本", '"\n\n'),
                *(" ", " OKLetUs", " a", "/b", "/", " cafe", "\u0301"),
            ],
        ),
        (
            "qwen2",
            [
                *("I", "'LL", " pay", " ", "1", "2", "3", "4", "5", " €,", " x", '="', "日本"),
                *('"\n\n', " ", " OKLetUs", " a", "/b", "/", " cafe", "\u0301"),
            ],
        ),
        (
            "gpt-4o",
            [
                *("I'LL", " pay", " ", "123", "45", " €,", " x", '="', "日本", '"\n\n', " "),
                *(" OKLet", "Us", " a", "/b", "/", " cafe\u0301"),
            ],
        ),
        (
            "tekken",
            [
                *("I", "'LL", " pay", " ", "1", "2", "3", "4", "5", " €,", " x", '="', "日本"),
                *('"\n\n', " ", " OKLet", "Us", " a", "/b", "/", " cafe\u0301"),
            ],
        ),
        (
            "deepseek-v3",
            [
                *("I", "'LL", " pay", " ", "123", "45", " €,", " x", '="', "日本", '"\n\n'),
                *(" ", " OKLetUs", " a", "/b", "/", " cafe\u0301"),
            ],
        ),
        (
            "deepseek-llm",
            [
                *("I", "'", "LL", " pay", " ", "12345", " ", "€", ",", " x", '="', "日本"),
                *('"', "\n", "\n", " ", " OKLetUs", " a", "/", "b", "/", " cafe", "\u0301"),
            ],
        ),
    ],
)
def test_pre_tokenizer_cuts_as_the_family_does(pre: str, pieces: list[str]) -> None:
    step = build_pre_tokenizer(find_rule(pre))
    cut = [piece for piece, _ in step.pre_tokenize_str(TEXT)]
    assert [bytes(BYTE_ALPHABET[c] for c in piece).decode() for piece in cut] == pieces


@pytest.mark.parametrize("pre", ["default", "deepseek-coder", "seed-coder", "bailingmoe", "bloom"])
@pytest.mark.parametrize("alias", ["viking", "falcon", "qwen35", "glm4", "command-r", "olmo"])
def test_every_rule_keeps_all_text(pre: str, alias: str) -> None:
    for name in (pre, alias):
        tokenizer = tokenizer_from_metadata(tiny_byte_metadata(pre=name), "t.gguf")
        assert tokenizer.decode(tokenizer.encode_text(TEXT)) == TEXT


def slow_sentence_pieces(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule, literally: join the best-scoring neighbours, the leftmost first."""
    parts = list(text)
    while True:
        joins = [
            (-scores[parts[n] + parts[n + 1]], n)
            for n in range(len(parts) - 1)
            if parts[n] + parts[n + 1] in scores
        ]
        if not joins:
            return parts
        _, n = min(joins)
        parts[n : n + 2] = [parts[n] + parts[n + 1]]


def test_merges_from_scores_do_what_the_scores_mean() -> None:
    names = ["a", "b", "c", "▁", "ab", "bc", "abc", "▁a", "▁ab", "ca", "cab", "aa", "▁▁", "b▁"]
    order = [*("a", "b", "c", "▁", "bc", "▁a", "ab", "ca", "abc", "▁▁", "▁ab", "aa", "cab", "b▁")]
    scores = {name: -float(order.index(name)) for name in names}
    ids = {name: n for n, name in enumerate(names)}
    merges = merges_from_scores(ids, [scores[name] for name in names])
    core = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges))
    core.normalizer = normalizers.Replace(" ", "▁")
    for text in ("abc", " abcab", "aab  cab", "cabcab ab", "   aaab b"):
        assert core.encode(text).tokens == slow_sentence_pieces(text.replace(" ", "▁"), scores)


def test_merges_from_scores_rank_by_score_then_id() -> None:
    ids = {"a": 0, "b": 1, "ab": 2, "ba": 3, "abb": 4}
    assert merges_from_scores(ids, [0, 0, 1.0, 1.0, 2.0]) == [("ab", "b"), ("a", "b"), ("b", "a")]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(["hello", "he", "l", "o", " ", "  ", "\n", "\n\n", "é", "👍", "▁"]))
)
def test_gemma_4_encodes_as_transformers_does(parts: list[str]) -> None:
    metadata = tiny_merge_metadata()
    names: list[str] = metadata["tokenizer.ggml.tokens"]  # type: ignore[assignment]
    merges: list[str] = metadata["tokenizer.ggml.merges"]  # type: ignore[assignment]
    oracle = GemmaTokenizer(
        vocab={name: n for n, name in enumerate(names)},
        merges=[tuple(line.split(" ")) for line in merges],
        add_bos_token=False,
    )
    tokenizer, text = tokenizer_from_metadata(metadata, "g.gguf"), "".join(parts)
    ids = tokenizer.encode_text(text)
    assert ids == oracle.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text.replace("▁", " ")


def test_gemma_4_has_its_ends_and_no_typed_mark_becomes_a_token() -> None:
    tokenizer = tokenizer_from_metadata(tiny_merge_metadata(), "g.gguf")
    ends = {tokenizer.vocabulary.piece(token_id) for token_id in tokenizer.eos_ids}
    assert ends == {"<eos>", "<turn|>"}
    assert (tokenizer.bos_token, tokenizer.add_bos) == ("<bos>", True)
    marks = {"<|turn>", "<turn|>", "<|channel>", "<channel|>"}
    assert marks <= set(tokenizer.control_tokens)
    for mark in marks:
        assert not {tokenizer.control_tokens[mark]} & set(tokenizer.encode_text(f"a {mark} b"))


def test_gemma_4_without_its_merges_is_refused() -> None:
    metadata = tiny_merge_metadata()
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(ModelFileError, match="merges is missing"):
        tokenizer_from_metadata(metadata, "g.gguf")
