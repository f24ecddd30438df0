"""A model that cannot be opened does not leave a person without one."""

from dataclasses import replace

import pytest

from app.messages import (
    Command,
    Event,
    Failure,
    Generate,
    LoadModel,
    ModelFailed,
    ModelLoading,
    ModelReady,
    ReplyEnded,
    ReplyId,
)
from app.session_changes import ModelChanged, ModelRefused, ModelState, SchemeRefused
from inference.config import EngineConfig, SamplingParams
from inference.errors import ModelFileError
from inference.request import ChatMessage
from tests.app.fake_engine import FakeScript, make_model_info
from tests.app.loop_bench import LOAD
from tests.app.loop_bench import Bench as LoopBench
from tests.app.session_bench import INFO, PATH, Bench

BROKEN = "/m/broken.gguf"
ERROR = ModelFileError(BROKEN, "The file ends too early.", hint="Get it again.")
FAILURE = Failure("model_file", str(ERROR), "Get it again.")
OTHER = LoadModel(BROKEN, EngineConfig(num_threads=2))

# ---------------------------------------------------------------- the engine thread


def then(bench: LoopBench, *commands: Command) -> None:
    """Open a model, and do this when it is open."""

    def look(event: Event) -> None:
        if isinstance(event, ModelReady) and event.info.path == LOAD.path:
            for command in commands:
                bench.loop.post(command)

    bench.on_event = look
    bench.loop.post(LOAD)


def is_failed(event: Event) -> bool:
    return isinstance(event, ModelFailed)


def test_model_stays_open_when_the_files_of_another_show_that_they_are_broken() -> None:
    bench = LoopBench(FakeScript(check_errors={BROKEN: ERROR}))
    then(bench, OTHER)
    events = bench.run(until=is_failed)
    ready = ModelReady(make_model_info(path=LOAD.path), LOAD.config)
    assert events[-2:] == [
        ready,
        ModelFailed(BROKEN, FAILURE, config=OTHER.config, kept=ready),
    ]
    assert [path for path, _ in bench.factory.calls] == [LOAD.path]


def test_reply_goes_on_while_a_broken_model_is_refused() -> None:
    bench = LoopBench(FakeScript(check_errors={BROKEN: ERROR}, replies=["one two three"]))
    hello = (ChatMessage("user", "Hi"),)
    then(bench, Generate(ReplyId(1), "c", hello, SamplingParams()), OTHER)
    events = bench.run(until=lambda event: isinstance(event, ReplyEnded))
    assert any(map(is_failed, events))
    assert bench.ends() == [(1, "stop")]
    assert bench.text_of(1) == "one two three"


def test_first_model_is_only_loaded() -> None:
    bench = LoopBench(FakeScript(check_errors={LOAD.path: ERROR}))
    then(bench)
    events = bench.run(until=lambda event: isinstance(event, ModelReady | ModelFailed))
    assert isinstance(events[-1], ModelReady)  # the load itself has the last word


def test_model_that_is_sound_takes_the_place_of_the_open_one() -> None:
    bench = LoopBench()
    then(bench, OTHER)
    bench.run(until=lambda event: isinstance(event, ModelReady) and event.info.path == BROKEN)
    assert [path for path, _ in bench.factory.calls] == [LOAD.path, BROKEN]
    assert bench.factory.engines[0].is_closed


# ---------------------------------------------------------------- the session


def loads(bench: Bench) -> list[str]:
    return [command.path for command in bench.posted if isinstance(command, LoadModel)]


def states(bench: Bench) -> list[tuple[str, str] | ModelRefused]:
    told: list[tuple[str, str] | ModelRefused] = []
    for change in bench.take():
        if isinstance(change, ModelChanged):
            told.append((change.state.kind, change.state.path))
        elif isinstance(change, ModelRefused):
            told.append(change)
    return told


def test_kept_model_is_ready_again_and_remembered(ready: Bench) -> None:
    ready.session.load_model(BROKEN)
    ready.session.send("a")
    ready.take()
    ready.session.handle_event(ModelFailed(BROKEN, FAILURE, kept=ModelReady(INFO, EngineConfig())))
    assert states(ready) == [ModelRefused(BROKEN, FAILURE), ("ready", PATH)]
    assert ready.session.model == ModelState("ready", PATH, info=INFO)
    assert loads(ready) == [BROKEN]
    assert ready.asked() == ["a"]  # what waited for a model is answered
    assert ready.settings.value.model_path == PATH
    assert BROKEN not in ready.settings.value.recent_models


def test_model_that_fails_while_it_loads_gives_way_to_the_one_before(ready: Bench) -> None:
    ready.session.load_model(BROKEN)
    ready.session.send("a")
    ready.session.handle_event(ModelLoading(BROKEN, "Loading weights", 0.5))
    ready.take()
    ready.session.handle_event(ModelFailed(BROKEN, FAILURE))
    assert states(ready) == [ModelRefused(BROKEN, FAILURE), ("loading", PATH)]
    assert loads(ready) == [BROKEN, PATH]
    assert ready.session.is_replying  # it waits still
    ready.session.handle_event(ModelReady(INFO))
    assert ready.asked() == ["a"]


def test_model_before_that_cannot_be_opened_any_more_is_tried_once(ready: Bench) -> None:
    gone = replace(FAILURE, message="It is gone.")
    ready.session.load_model(BROKEN)
    ready.session.handle_event(ModelFailed(BROKEN, FAILURE))
    ready.session.handle_event(ModelFailed(PATH, gone))
    assert ready.session.model == ModelState("failed", PATH, failure=gone)
    assert loads(ready) == [BROKEN, PATH]


@pytest.mark.parametrize("kind", ["memory", "bug"])
def test_whatever_keeps_a_model_from_opening_the_one_before_comes_back(
    ready: Bench, kind: str
) -> None:
    ready.session.load_model(BROKEN)
    ready.session.handle_event(ModelFailed(BROKEN, Failure(kind, "No.")))  # type: ignore[arg-type]
    assert loads(ready) == [BROKEN, PATH]


def test_several_models_in_a_row_that_fail_lead_back_to_the_one_that_was_open(ready: Bench) -> None:
    ready.session.load_model("/m/first.gguf")
    ready.session.load_model(BROKEN)
    ready.session.handle_event(ModelFailed("/m/first.gguf", FAILURE))  # replaced meanwhile
    ready.session.handle_event(ModelFailed(BROKEN, FAILURE))
    assert loads(ready) == ["/m/first.gguf", BROKEN, PATH]


def test_open_model_that_breaks_is_not_exchanged_for_an_older_one(ready: Bench) -> None:
    other = replace(INFO, path=BROKEN)
    ready.session.load_model(BROKEN)
    ready.session.handle_event(ModelReady(other))
    ready.session.handle_event(ModelFailed(BROKEN, Failure("bug", "It broke.")))
    assert ready.session.model.kind == "failed"
    assert loads(ready) == [BROKEN]


def test_open_model_that_is_opened_anew_and_fails_has_nothing_to_go_back_to(ready: Bench) -> None:
    ready.session.load_model(PATH)
    ready.session.handle_event(ModelFailed(PATH, FAILURE))
    assert ready.session.model.kind == "failed"
    assert loads(ready) == [PATH]


def test_refused_scheme_of_another_model_still_leads_back(ready: Bench) -> None:
    ready.settings.change(kv_schemes=((BROKEN, "int4"),))
    ready.session.load_model(BROKEN)
    ready.take()
    ready.session.handle_event(ModelFailed(BROKEN, FAILURE, is_scheme_refused=True))
    assert any(isinstance(change, SchemeRefused) for change in ready.take())
    ready.session.handle_event(ModelFailed(BROKEN, FAILURE))
    assert loads(ready) == [BROKEN, BROKEN, PATH]
