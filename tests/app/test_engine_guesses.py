"""Draft models on the engine thread: when they are loaded and looked for, and what is told of it."""

from pathlib import Path

import pytest

from app.engine_guesses import MAX_BESIDE, EngineGuesses
from app.messages import (
    DraftChanged,
    DraftsFound,
    Event,
    Failure,
    FindDrafts,
    ReplyEnded,
    ReplyProgressed,
    SetGuessing,
)
from inference.config import EngineConfig
from inference.errors import InvalidRequestError, ModelFileError
from inference.metrics import ModelInfo
from tests.app.fake_engine import FakeEngine, FakeScript, make_model_info
from tests.app.loop_bench import LOAD, Bench

OTHER_WORDS = InvalidRequestError("draft_model", "It has 32,000 tokens and the model has 49,152.")


class Guessing:
    """The part under test with a fake engine."""

    def __init__(self, script: FakeScript | None = None) -> None:
        self.events: list[Event] = []
        self.guesses = EngineGuesses(self.events.append)
        self.engine = FakeEngine(
            "/m", EngineConfig(), lambda _: None, script=script or FakeScript()
        )

    def take(self, command: SetGuessing | FindDrafts) -> list[Event]:
        self.events.clear()
        self.guesses.take(self.engine, command)
        return list(self.events)

    def tend(self) -> list[Event]:
        self.events.clear()
        self.guesses.tend(self.engine)
        return list(self.events)

    def tend_all(self) -> list[Event]:
        self.events.clear()
        while self.guesses.has_work:
            self.guesses.tend(self.engine)
        return list(self.events)


def draft(path: str) -> ModelInfo:
    return make_model_info(name=f"Draft {Path(path).stem}", path=path, num_parameters=100_000)


def make_files(folder: Path, **sizes: int) -> dict[str, str]:
    for name, size in sizes.items():
        (folder / f"{name}.gguf").write_bytes(bytes(size))
    return {name: str(folder / f"{name}.gguf") for name in sizes}


def test_draft_model_that_somebody_waits_for_is_loaded_at_once() -> None:
    it = Guessing()
    assert it.take(SetGuessing(1, "auto", "/d")) == [DraftChanged(1, "/d", draft("/d"))]
    assert (it.engine.guess, it.engine.draft) == ("auto", "/d")
    assert not it.guesses.has_work


def test_draft_model_that_can_wait_is_loaded_when_nothing_else_is_to_be_done() -> None:
    it = Guessing()
    assert it.take(SetGuessing(1, "auto", "/d", can_wait=True)) == []
    assert it.engine.draft is None
    assert it.guesses.has_work
    assert it.tend() == [DraftChanged(1, "/d", draft("/d"))]
    assert not it.guesses.has_work


def test_guessing_is_switched_at_once_while_its_draft_model_waits() -> None:
    it = Guessing()
    it.take(SetGuessing(1, "off"))
    assert it.engine.guess == "off"
    it.take(SetGuessing(2, "auto", "/d", can_wait=True))
    assert (it.engine.guess, it.engine.draft) == ("auto", None)


def test_switching_off_takes_the_draft_model_away() -> None:
    it = Guessing()
    it.take(SetGuessing(1, "auto", "/d"))
    assert it.take(SetGuessing(2, "off", can_wait=True)) == [DraftChanged(2)]
    assert (it.engine.guess, it.engine.draft) == ("off", None)


def test_draft_model_in_use_is_not_loaded_again() -> None:
    loads: list[str] = []
    it = Guessing(FakeScript(before_draft=lambda: loads.append("load")))
    it.take(SetGuessing(1, "auto", "/d"))
    assert it.take(SetGuessing(2, "auto", "/d")) == [DraftChanged(2, "/d", draft("/d"))]
    assert loads == ["load"]


def test_newer_wish_replaces_one_that_waits() -> None:
    it = Guessing()
    it.take(SetGuessing(1, "auto", "/d", can_wait=True))
    assert it.take(SetGuessing(2, "auto", None)) == [DraftChanged(2)]
    assert not it.guesses.has_work
    assert it.engine.draft is None


def test_draft_model_that_cannot_be_used_leaves_the_one_before_in_use() -> None:
    it = Guessing()
    it.take(SetGuessing(1, "auto", "/d"))
    it.engine.script.draft_error = OTHER_WORDS
    assert it.take(SetGuessing(2, "auto", "/other")) == [
        DraftChanged(2, "/d", draft("/d"), Failure("request", OTHER_WORDS.reason))
    ]
    assert it.engine.draft == "/d"


def test_candidates_are_looked_at_one_by_one_and_told_together(tmp_path: Path) -> None:
    files = make_files(tmp_path, a=1, b=1, c=1)
    it = Guessing(FakeScript(drafts=(files["c"], files["a"])))
    assert it.take(FindDrafts((files["c"], files["b"], files["a"], "/gone"))) == []
    assert it.tend() == []
    assert it.engine.looked_at == [files["c"]]
    assert it.tend_all() == [DraftsFound((files["c"], files["a"]))]
    assert it.engine.looked_at == [files["c"], files["b"], files["a"]]


def test_smaller_files_beside_the_model_are_looked_at_too(tmp_path: Path) -> None:
    files = make_files(tmp_path, model=5, small=2, tiny=1, large=9, equal=5)
    (tmp_path / "notes.txt").write_text("x", "utf-8")
    (tmp_path / "folder.gguf").mkdir()
    it = Guessing(FakeScript(drafts=tuple(files.values())))
    it.take(FindDrafts((files["tiny"], files["model"]), beside=files["model"]))
    assert it.tend_all() == [DraftsFound((files["tiny"], files["small"]))]


def test_folder_with_many_files_is_looked_at_in_part(tmp_path: Path) -> None:
    files = make_files(tmp_path, **{f"m{number:02}": 1 for number in range(MAX_BESIDE + 3)}, z=2)
    it = Guessing()
    it.take(FindDrafts((), beside=files["z"]))
    assert it.tend_all() == [DraftsFound(())]
    assert it.engine.looked_at == [files[f"m{number:02}"] for number in range(MAX_BESIDE)]


@pytest.mark.parametrize("beside", ["", "/gone/model.gguf"])
def test_place_without_models_gives_none(beside: str) -> None:
    it = Guessing()
    it.take(FindDrafts((), beside=beside))
    assert it.tend_all() == [DraftsFound(())]


def test_model_folder_has_no_files_beside_it(tmp_path: Path) -> None:
    make_files(tmp_path, small=1)
    (tmp_path / "model").mkdir()
    it = Guessing()
    it.take(FindDrafts((), beside=str(tmp_path / "model")))
    assert it.tend_all() == [DraftsFound(())]
    assert it.engine.looked_at == []


def test_closed_model_takes_wishes_and_draft_model_with_it() -> None:
    it = Guessing()
    it.take(SetGuessing(1, "auto", "/d"))
    it.take(SetGuessing(2, "auto", "/e", can_wait=True))
    it.take(FindDrafts(()))
    it.guesses.reset()
    assert not it.guesses.has_work
    assert it.take(SetGuessing(3, "auto", "/d")) == [DraftChanged(3, "/d", draft("/d"))]


def test_without_a_model_nothing_is_told() -> None:
    it = Guessing()
    it.guesses.take(None, SetGuessing(1, "auto", "/d"))
    it.guesses.take(None, FindDrafts(("/a",)))
    assert it.events == []
    assert not it.guesses.has_work


# ---------------------------------------------------------------- in the loop


def test_reply_comes_before_a_draft_model_that_can_wait() -> None:
    bench = Bench(FakeScript(replies=["Hi you"], drafts=("/d",)))
    bench.loop.post(LOAD)
    bench.loop.post(SetGuessing(1, "auto", "/d", can_wait=True))
    bench.loop.post(FindDrafts(()))
    bench.generate()
    events = bench.run(until=lambda event: isinstance(event, DraftsFound))
    kinds = (ReplyProgressed, ReplyEnded, DraftChanged, DraftsFound)
    assert [type(event) for event in events if isinstance(event, kinds)] == [
        ReplyProgressed,
        ReplyProgressed,
        ReplyEnded,
        DraftChanged,
        DraftsFound,
    ]


def test_draft_model_that_was_chosen_is_there_for_the_rest_of_the_reply() -> None:
    bench = Bench(FakeScript(replies=["one two three four"]))

    def choose(event: Event) -> None:
        if isinstance(event, ReplyProgressed) and event.text == "one":
            bench.loop.post(SetGuessing(1, "auto", "/d"))

    bench.on_event = choose
    bench.loop.post(LOAD)
    bench.generate()
    events = bench.run(until=lambda event: isinstance(event, ReplyEnded))
    order = [type(event) for event in events if isinstance(event, (DraftChanged, ReplyEnded))]
    assert order == [DraftChanged, ReplyEnded]
    assert bench.text_of(1) == "one two three four"


def test_broken_draft_model_costs_neither_model_nor_reply() -> None:
    bench = Bench(FakeScript(replies=["Hi you"]))
    bench.script.draft_error = ModelFileError(
        "/d/x.gguf", "the file is cut.", hint="Copy it again."
    )
    bench.loop.post(LOAD)
    bench.loop.post(SetGuessing(1, "auto", "/d/x.gguf"))
    bench.generate()
    events = bench.run(until=lambda event: isinstance(event, ReplyEnded))
    failure = Failure("model_file", "x.gguf: the file is cut.", "Copy it again.")
    assert DraftChanged(1, None, None, failure) in events
    assert bench.ends() == [(1, "stop")]


def test_model_that_is_opened_again_has_no_draft_model() -> None:
    bench = Bench()

    def open_again(event: Event) -> None:
        if isinstance(event, DraftChanged) and event.change_id == 1:
            bench.loop.post(LOAD)
            bench.loop.post(SetGuessing(2, "auto", "/d"))

    bench.on_event = open_again
    bench.loop.post(LOAD)
    bench.loop.post(SetGuessing(1, "auto", "/d"))
    events = bench.run(until=lambda event: isinstance(event, DraftChanged) and event.change_id == 2)
    changes = [event for event in events if isinstance(event, DraftChanged)]
    assert changes == [DraftChanged(1, "/d", draft("/d")), DraftChanged(2, "/d", draft("/d"))]
    assert [engine.draft for engine in bench.factory.engines] == ["/d", "/d"]
