"""Guessing ahead in a session: what is set, what the engine is told, and what comes of its answers."""

from pathlib import Path

import pytest

from app.guess_desk import GONE
from app.messages import (
    DraftChanged,
    DraftsFound,
    Failure,
    FindDrafts,
    LoadModel,
    ModelReady,
    SetGuessing,
)
from app.session_changes import DraftRefused, GuessingChanged, GuessState
from inference.config import EngineConfig
from tests.app.fake_engine import make_model_info
from tests.app.session_bench import INFO, PATH, Bench

FAILURE = Failure("request", "It has another vocabulary.")
DRAFT = make_model_info(name="Draft", num_parameters=100)


@pytest.fixture
def draft(tmp_path: Path) -> str:
    """A file that is there."""
    (tmp_path / "draft.gguf").touch()
    return str(tmp_path / "draft.gguf")


def is_ready(bench: Bench) -> None:
    config = next(c.config for c in reversed(bench.posted) if isinstance(c, LoadModel))
    bench.session.handle_event(ModelReady(INFO, config))


def wishes(bench: Bench) -> list[SetGuessing]:
    return [command for command in bench.posted if isinstance(command, SetGuessing)]


def answer(bench: Bench, *, failure: Failure | None = None, path: str | None = None) -> None:
    """The engine answers the newest wish: it was done, or it failed and `path` is in use."""
    wish = wishes(bench)[-1]
    path = wish.draft_model if failure is None else path
    info = DRAFT if path else None
    bench.session.handle_event(DraftChanged(wish.change_id, path, info, failure))


def chosen(bench: Bench) -> dict[str, str]:
    return dict(bench.settings.value.draft_models)


def test_model_is_opened_as_guessing_is_set_and_without_its_draft_model(
    bench: Bench, draft: str
) -> None:
    bench.settings.change(guess_ahead=False, draft_models=((PATH, draft),))
    bench.session.load_model(PATH)
    assert bench.posted == [LoadModel(PATH, EngineConfig(guess="off", cache_dir=str(bench.kv_dir)))]
    is_ready(bench)
    assert wishes(bench) == []
    assert bench.session.models.guesses.state == GuessState(False, draft)


def test_draft_model_is_asked_for_when_the_model_is_open(bench: Bench, draft: str) -> None:
    bench.settings.change(draft_models=((PATH, draft), ("/other", "/x")))
    bench.session.load_model(PATH)
    is_ready(bench)
    assert bench.posted[1:] == [
        SetGuessing(1, "auto", draft, can_wait=True),
        FindDrafts((), beside=PATH),
    ]
    assert bench.session.models.guesses.state == GuessState(True, draft, is_loading=True)
    answer(bench)
    assert bench.session.models.guesses.state == GuessState(True, draft, draft=DRAFT)


def test_known_models_may_guess_for_the_open_one(bench: Bench) -> None:
    bench.settings.change(recent_models=("/a", PATH, "/b"))
    bench.session.models.guesses.starter = "/starter"
    bench.session.load_model(PATH)
    is_ready(bench)
    assert bench.posted[-1] == FindDrafts(("/a", "/b", "/starter"), beside=PATH)
    bench.changes.clear()
    bench.session.handle_event(DraftsFound(("/b",)))
    assert bench.take() == [GuessingChanged(GuessState(matching=("/b",)))]


def test_draft_model_that_is_gone_is_told_and_left_out(bench: Bench) -> None:
    bench.settings.change(draft_models=((PATH, "/gone.gguf"),))
    bench.session.load_model(PATH)
    is_ready(bench)
    assert DraftRefused("/gone.gguf", GONE) in bench.take()
    assert wishes(bench) == []
    assert chosen(bench) == {}
    assert bench.session.model.kind == "ready"


def test_switch_acts_at_once_and_is_kept(ready: Bench) -> None:
    guesses = ready.session.models.guesses
    guesses.switch(False)
    assert ready.posted == [SetGuessing(1, "off", None, can_wait=True)]
    assert ready.take() == [GuessingChanged(GuessState(False))]
    assert ready.settings.value.guess_ahead is False
    guesses.switch(False)
    assert len(ready.posted) == 1
    guesses.switch(True)
    assert ready.posted[-1] == SetGuessing(2, "auto", None, can_wait=True)


def test_switch_without_a_model_waits_for_one(bench: Bench) -> None:
    bench.session.models.guesses.switch(False)
    assert bench.posted == []
    bench.session.load_model(PATH)
    assert bench.posted == [LoadModel(PATH, EngineConfig(guess="off", cache_dir=str(bench.kv_dir)))]


def test_switch_while_a_model_is_opened_holds_when_it_is_open(bench: Bench) -> None:
    bench.session.load_model(PATH)
    bench.session.models.guesses.switch(False)
    is_ready(bench)
    assert wishes(bench) == [SetGuessing(1, "off", None, can_wait=True)]


def test_draft_model_is_chosen_without_opening_the_model_again(ready: Bench) -> None:
    ready.session.models.guesses.choose_draft("/d")
    assert ready.posted == [SetGuessing(1, "auto", "/d")]
    assert ready.take() == [GuessingChanged(GuessState(True, "/d", is_loading=True))]
    assert chosen(ready) == {PATH: "/d"}
    answer(ready)
    assert ready.take() == [GuessingChanged(GuessState(True, "/d", draft=DRAFT))]
    ready.session.models.guesses.choose_draft("/d")
    assert len(ready.posted) == 1


def test_no_draft_model_is_a_choice_too(ready: Bench) -> None:
    guesses = ready.session.models.guesses
    guesses.choose_draft("/d")
    answer(ready)
    guesses.choose_draft("")
    assert ready.posted[-1] == SetGuessing(2, "auto", None)
    assert guesses.state == GuessState(True, draft=DRAFT)
    answer(ready)
    assert guesses.state == GuessState(True)
    assert chosen(ready) == {}


def test_choosing_a_draft_model_switches_guessing_on_but_choosing_none_does_not(
    ready: Bench,
) -> None:
    guesses = ready.session.models.guesses
    guesses.switch(False)
    guesses.choose_draft("")
    assert guesses.state == GuessState(False)
    guesses.choose_draft("/d")
    assert ready.posted[-1] == SetGuessing(3, "auto", "/d")
    assert ready.settings.value.guess_ahead is True
    assert guesses.state == GuessState(True, "/d", is_loading=True)


def test_draft_model_is_given_back_while_guessing_is_off_and_comes_again(ready: Bench) -> None:
    guesses = ready.session.models.guesses
    guesses.choose_draft("/d")
    answer(ready)
    guesses.switch(False)
    assert ready.posted[-1] == SetGuessing(2, "off", None, can_wait=True)
    answer(ready)
    assert guesses.state == GuessState(False, "/d")
    guesses.switch(True)
    assert ready.posted[-1] == SetGuessing(3, "auto", "/d", can_wait=True)
    assert guesses.state == GuessState(True, "/d", is_loading=True)


def test_choice_that_fails_is_undone_and_told(ready: Bench) -> None:
    guesses = ready.session.models.guesses
    guesses.choose_draft("/good")
    answer(ready)
    guesses.choose_draft("/bad")
    assert chosen(ready) == {PATH: "/bad"}
    ready.take()
    answer(ready, failure=FAILURE, path="/good")
    assert ready.take() == [
        DraftRefused("/bad", FAILURE),
        GuessingChanged(GuessState(True, "/good", draft=DRAFT)),
    ]
    assert chosen(ready) == {PATH: "/good"}


def test_draft_model_that_breaks_at_the_start_is_not_tried_again(bench: Bench, draft: str) -> None:
    bench.settings.change(draft_models=((PATH, draft),))
    bench.session.load_model(PATH)
    is_ready(bench)
    answer(bench, failure=FAILURE)
    assert chosen(bench) == {}
    assert bench.session.model.kind == "ready"
    assert bench.session.models.guesses.state == GuessState(True)


def test_answer_to_an_older_choice_is_ignored(ready: Bench) -> None:
    guesses = ready.session.models.guesses
    guesses.choose_draft("/a")
    guesses.choose_draft("/b")
    ready.take()
    ready.session.handle_event(DraftChanged(1, "/a", DRAFT))
    ready.session.handle_event(DraftChanged(1, None, None, FAILURE))
    assert ready.take() == []
    answer(ready)
    assert guesses.state == GuessState(True, "/b", draft=DRAFT)


def test_news_of_a_model_that_is_left_is_ignored(ready: Bench, draft: str) -> None:
    guesses = ready.session.models.guesses
    guesses.choose_draft(draft)
    ready.session.load_model("/models/other.gguf")
    assert guesses.state == GuessState()
    ready.take()
    answer(ready)
    ready.session.handle_event(DraftsFound(("/a",)))
    guesses.choose_draft("/a")
    assert ready.take() == []
    ready.session.load_model(PATH)
    is_ready(ready)
    assert wishes(ready)[-1] == SetGuessing(2, "auto", draft, can_wait=True)
    assert guesses.state == GuessState(True, draft, is_loading=True)
