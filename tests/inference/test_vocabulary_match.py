"""Whether two models have one vocabulary: told of tokenizers, and of files without their weights."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models

from inference.drafting.vocabulary_match import (
    find_drafts,
    model_bytes,
    vocabulary_difference,
    vocabulary_digest,
)
from inference.text.tokenizer import Markup, SpacePrefix, Tokenizer, TurnTokens
from inference.text.vocabulary import BYTE_ALPHABET, Vocabulary
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import remake, wide_config
from tests.inference.model_folders import CONTROL, write_folder

LETTERS = sorted(BYTE_ALPHABET)
PIECES = [*CONTROL, *LETTERS]
TARGET = "in the model that it should guess for."


def make_tokenizer(
    pieces: Sequence[str], *, eos_ids: Sequence[int] = (2,), literal_ids: Sequence[int] = (0, 1, 2)
) -> Tokenizer:
    vocabulary = Vocabulary(pieces, is_byte_level=True, literal_ids=literal_ids)
    return Tokenizer(
        tokenizers.Tokenizer(models.BPE(vocab={}, merges=[])),
        vocabulary,
        Markup({}),
        turns=TurnTokens(1, 2, frozenset(eos_ids), add_bos=False),
        prefix=SpacePrefix(),
    )


# ------------------------------------------------------------------ tokenizers


@pytest.mark.parametrize("is_padded", [False, True])
def test_equal_vocabularies_do_not_differ(is_padded: bool) -> None:
    padding = ["[PAD259]", "", "[PAD261]"] if is_padded else []

    assert vocabulary_difference(make_tokenizer(PIECES), make_tokenizer(PIECES + padding)) == ""
    assert vocabulary_difference(make_tokenizer(PIECES + padding), make_tokenizer(PIECES)) == ""


def test_difference_names_the_first_id_that_stands_for_other_text() -> None:
    other = [*PIECES[:70], "Ġthe", PIECES[71], "Ġa", *PIECES[73:]]

    difference = vocabulary_difference(make_tokenizer(PIECES), make_tokenizer(other))

    assert difference == (
        f"Its vocabulary is another: token 70 is ' the', and {PIECES[70]!r} {TARGET}"
    )


def test_difference_shows_bytes_and_long_entries_shortly() -> None:
    whole = [*PIECES[:9], "x" * 1000]
    byte = [*PIECES[:9], next(char for char, value in BYTE_ALPHABET.items() if value == 0xFF)]

    difference = vocabulary_difference(make_tokenizer(whole), make_tokenizer(byte))

    assert difference == (
        rf"Its vocabulary is another: token 9 is '\\xff', and '{'x' * 24}' and more {TARGET}"
    )


def test_difference_names_the_number_of_entries() -> None:
    longer = [*PIECES, "ab"]

    assert vocabulary_difference(make_tokenizer(PIECES), make_tokenizer(longer)) == (
        f"Its vocabulary has 260 entries, and 259 {TARGET}"
    )


def test_padding_of_another_id_is_an_entry() -> None:
    other = [*PIECES, "[PAD7]"]

    assert vocabulary_difference(make_tokenizer(PIECES), make_tokenizer(other)) != ""


def test_padding_between_entries_stands_for_nothing() -> None:
    target, draft = [*PIECES, "[PAD259]", "ab"], [*PIECES, "", "ab"]

    assert vocabulary_difference(make_tokenizer(target), make_tokenizer(draft)) == ""
    assert "nothing" in vocabulary_difference(
        make_tokenizer(target), make_tokenizer([*PIECES, "b", "ab"])
    )


def test_difference_names_the_ends_of_turns() -> None:
    target, draft = make_tokenizer(PIECES, eos_ids=[2]), make_tokenizer(PIECES, eos_ids=[0, 2])

    assert vocabulary_difference(target, draft) == (
        f"Its turns end with the tokens 0, 2, and with the token 2 {TARGET}"
    )


# ------------------------------------------------------------------ files


def write_model(
    path: Path,
    *,
    size: int = 64,
    num_rows: int = 272,
    pieces: Sequence[str] = PIECES,
    extra: Mapping[str, object] | None = None,
) -> str:
    """A GGUF file; rows without pieces are listed as padding."""
    names = [*pieces, *(f"[PAD{row}]" for row in range(len(pieces), num_rows))]
    config = wide_config(hidden_size=size, vocab_size=num_rows)
    keys = {
        "tokens": names,
        "token_type": [3, 3, 3, *([1] * (num_rows - 3))],
        **(extra or {}),
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return str(write_twin(remake(config), path, extra=metadata))


def test_find_drafts_gives_matching_models_that_are_small_enough(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target.gguf", size=256)
    small = write_model(tmp_path / "small.gguf", size=64, num_rows=260)
    smaller = write_model(tmp_path / "smaller.gguf", size=32)
    large = write_model(tmp_path / "large.gguf", size=224)
    other = write_model(tmp_path / "other.gguf", pieces=[*PIECES[:-1], "ab"])
    ends = write_model(tmp_path / "ends.gguf", extra={"eot_token_id": 0})
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "empty").mkdir()
    paths = [target, small, large, other, ends, smaller]
    paths += [str(tmp_path / name) for name in ("text.gguf", "empty", "not there")]

    assert find_drafts(target, paths) == [smaller, small]
    assert find_drafts(small, paths) == [smaller]
    assert find_drafts(smaller, paths) == []
    assert find_drafts(str(tmp_path / "not there"), paths) == []
    assert find_drafts(str(tmp_path / "text.gguf"), paths) == []


def test_digest_of_a_folder_is_that_of_a_file_with_its_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    folder = write_folder(remake(wide_config(vocab_size=260)), tmp_path / "folder")
    file = write_model(tmp_path / "file.gguf")

    assert vocabulary_digest(folder) == vocabulary_digest(file)
    assert vocabulary_digest(folder) is not None
    assert model_bytes(folder) == (folder / "model.safetensors").stat().st_size


def test_digest_tells_where_one_entry_ends(tmp_path: Path) -> None:
    one = write_model(tmp_path / "one.gguf", pieces=[*PIECES, "ab", "c"])
    two = write_model(tmp_path / "two.gguf", pieces=[*PIECES, "a", "bc"])

    assert vocabulary_digest(one) != vocabulary_digest(two)


@pytest.mark.parametrize(
    "extra",
    [{"model": "bert"}, {"tokens": [1, 2, 3]}, {"tokens": "abc"}],
    ids=["kind", "numbers", "text"],
)
def test_digest_of_a_file_that_is_not_understood_is_none(
    tmp_path: Path, extra: dict[str, object]
) -> None:
    assert vocabulary_digest(write_model(tmp_path / "odd.gguf", extra=extra)) is None


def test_digest_is_worked_out_anew_when_a_file_changed(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path)
    before = vocabulary_digest(path)
    path.unlink()
    write_model(path, pieces=[*PIECES[:-1], "ab"])
    os.utime(path, ns=(1, 1))

    assert vocabulary_digest(path) != before


def test_digest_is_remembered_while_a_file_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "model.gguf")
    before = vocabulary_digest(path)
    monkeypatch.delattr("inference.formats.gguf.GgufFile.read")

    assert vocabulary_digest(path) == before
