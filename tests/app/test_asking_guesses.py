"""How `ask` guesses ahead: options, settings, draft models that cannot be used, and the report."""

import json
import os
from pathlib import Path

import pytest

from app.settings import SettingsStore
from inference.errors import EngineError, InvalidRequestError, ModelFileError
from tests.app.asker import Asker

MODEL = os.path.abspath("/m/a.gguf")
BROKEN = ModelFileError("/d/x.gguf", "the file is cut.")


def set_up(asker: Asker, **fields: object) -> None:
    asker.paths.prepare()
    settings = SettingsStore(asker.paths.settings_file, delay_s=1000.0)
    settings.change(**fields)
    settings.flush()


def used(asker: Asker) -> tuple[str, str | None, int | None, str | None]:
    """Of the newest engine: how it guesses, its draft model as opened, tokens, draft model in use."""
    engine = asker.engines[-1]
    return engine.guess, engine.config.draft_model, engine.config.draft_tokens, engine.draft


def test_guessing_is_automatic_without_a_draft_model(asker: Asker) -> None:
    assert asker.ask("Hello") == 0
    assert used(asker) == ("auto", None, None, None)


@pytest.mark.parametrize("guess", ["auto", "off", "ngram"])
def test_way_to_guess_reaches_the_engine(asker: Asker, guess: str) -> None:
    assert asker.ask("Hello", "--guess", guess, "--draft-tokens", "5") == 0
    assert used(asker) == (guess, None, 5, None)


@pytest.mark.parametrize("guess", ["auto", "draft"])
def test_draft_model_is_opened_with_the_model(asker: Asker, guess: str) -> None:
    assert asker.ask("Hello", "--guess", guess, "--draft-model", "d.gguf") == 0
    path = os.path.abspath("d.gguf")
    assert used(asker) == (guess, path, None, path)


def test_draft_model_that_was_asked_for_and_cannot_be_used_is_an_error(asker: Asker) -> None:
    asker.script.draft_error = BROKEN
    with pytest.raises(InvalidRequestError) as raised:
        asker.ask("Hello", "--draft-model", "/d/x.gguf")
    assert str(raised.value) == "--draft-model: /d/x.gguf: the file is cut."
    assert raised.value.hint == (
        "Give the path of a smaller model of the same family, or leave the option out."
    )
    assert asker.engines == []


def test_draft_model_that_is_set_and_was_asked_for_says_where_it_comes_from(asker: Asker) -> None:
    set_up(asker, draft_models=((MODEL, "/d"),))
    asker.script.draft_error = BROKEN  # a file of that folder
    with pytest.raises(
        InvalidRequestError, match=r"--draft-model: /d/x\.gguf: the file is cut"
    ) as told:
        asker.ask("Hello", "--guess", "draft")
    assert "chosen in the window" in told.value.hint


def test_error_of_the_model_itself_is_not_said_of_its_draft_model(asker: Asker) -> None:
    asker.script.load_error = ModelFileError("/m/a.gguf", "the file is cut.")
    with pytest.raises(ModelFileError, match=r"^a\.gguf: the file is cut"):
        asker.ask("Hello", "--draft-model", "/d/x.gguf")


def test_draft_model_with_another_vocabulary_is_refused_with_the_name_of_its_option(
    asker: Asker,
) -> None:
    asker.script.draft_error = InvalidRequestError("draft_model", "It has another vocabulary.")
    with pytest.raises(InvalidRequestError) as raised:
        asker.ask("Hello", "--draft-model", "/d/x.gguf")
    assert str(raised.value) == (
        "--draft-model: /d/x.gguf cannot guess ahead. It has another vocabulary."
    )
    assert raised.value.hint == (
        "Give the path of a smaller model of the same family, or leave the option out."
    )


def test_model_cannot_be_its_own_draft_model(asker: Asker) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        asker.ask("Hello", "--draft-model", MODEL)
    assert str(raised.value) == "--draft-model: is the model itself."
    assert "smaller model" in raised.value.hint
    assert asker.engines == []


def test_draft_that_is_to_guess_has_to_be_named(asker: Asker) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        asker.ask("Hello", "--guess", "draft")
    assert str(raised.value) == "--draft-model: must be given with --guess draft."
    assert asker.engines == []


@pytest.mark.parametrize("number", ["0", "17"])
def test_number_of_draft_tokens_out_of_range_is_refused_with_the_name_of_its_option(
    asker: Asker, number: str
) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        asker.ask("Hello", "--draft-tokens", number)
    allowed = "--draft-tokens: must be a whole number from 1 to 16"
    assert str(raised.value) == f"{allowed}, not {number}."
    assert asker.engines == []


def test_what_is_set_for_the_model_holds_without_options(asker: Asker) -> None:
    set_up(asker, draft_models=((MODEL, "/d"), ("/m/b.gguf", "/e")))
    asker.ask("Hello")
    assert used(asker) == ("auto", None, None, "/d")
    asker.ask("Hello", "--guess", "draft")
    assert used(asker) == ("draft", "/d", None, "/d")
    asker.ask("Hello", "--draft-model", "/x")
    assert used(asker) == ("auto", os.path.abspath("/x"), None, os.path.abspath("/x"))
    asker.ask("Hello", "--guess", "ngram")
    assert used(asker) == ("ngram", None, None, None)


def test_guessing_that_is_switched_off_leaves_the_draft_model_out_too(asker: Asker) -> None:
    set_up(asker, guess_ahead=False, draft_models=((MODEL, "/d"),))
    asker.ask("Hello")
    assert used(asker) == ("off", None, None, None)
    asker.ask("Hello", "--guess", "auto")
    assert used(asker) == ("auto", None, None, "/d")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BROKEN, "x.gguf: the file is cut."),
        (InvalidRequestError("draft_model", "It has other words."), "It has other words."),
    ],
)
def test_draft_model_that_is_only_set_and_cannot_be_used_never_costs_the_answer(
    asker: Asker, capsys: pytest.CaptureFixture[str], error: EngineError, words: str
) -> None:
    set_up(asker, draft_models=((MODEL, "/d/x.gguf"),))
    asker.script.draft_error = error
    assert asker.ask("Hello") == 0
    told = f"quire: the draft model that is set, /d/x.gguf, is left out. {words}\n"
    assert capsys.readouterr() == ("Hi you\n", told)


def test_json_tells_what_was_guessed_and_what_it_brought(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.script.guessed_tokens = 40
    asker.ask("Hello", "--json")
    report = json.loads(capsys.readouterr().out)
    assert (report["drafted_tokens"], report["accepted_tokens"]) == (40, 30)
    assert (report["verify_steps"], report["guess_speedup"]) == (10, 1.6)


def test_path_of_the_draft_model_is_completed(
    asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    asker.ask("Hello", "--draft-model", "~/d.gguf")
    assert asker.engines[-1].config.draft_model == str(tmp_path / "d.gguf")
