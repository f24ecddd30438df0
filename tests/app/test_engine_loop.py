import logging
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from app.engine_loop import EngineLoop
from app.failures import BUG
from app.messages import (
    Event,
    Failure,
    Generate,
    LoadModel,
    ModelFailed,
    ModelLoading,
    ModelReady,
    ModelUnloaded,
    ReplyEnded,
    ReplyId,
    ReplyProgressed,
    Shutdown,
    StatsSampled,
    StopReply,
    UnloadModel,
)
from inference.config import EngineConfig, SamplingParams
from inference.errors import ComputeError, ContextOverflowError, ModelFileError
from inference.metrics import RequestMetrics
from inference.request import (
    ChatMessage,
    GenerateRequest,
    LoadProgress,
    RequestId,
    StepOutput,
)
from tests.app.fake_engine import FakeEngine, FakeEngineFactory, FakeScript, make_model_info
from tests.app.loop_bench import LOAD, Bench, ended


def test_load_reports_its_way() -> None:
    bench = Bench()
    bench.loop.post(LOAD)
    assert bench.run(until=lambda event: isinstance(event, ModelReady)) == [
        ModelLoading("/m/a.gguf", "Reading the file", 0.0),
        ModelLoading("/m/a.gguf", "Loading weights", 0.5),
        ModelReady(make_model_info(path="/m/a.gguf"), LOAD.config),
    ]
    assert bench.factory.calls == [("/m/a.gguf", EngineConfig())]
    assert bench.factory.engines[0].is_closed


def test_ready_model_has_the_path_that_was_asked_for() -> None:
    events: list[Event] = []

    def open_elsewhere(
        path: str, config: EngineConfig, on_progress: Callable[[LoadProgress], None]
    ) -> FakeEngine:
        return FakeEngine("/resolved" + path, config, on_progress, script=FakeScript())

    loop = EngineLoop(open_elsewhere, events.append)
    loop.post(LOAD)
    loop._turn()
    assert [event.info.path for event in events if isinstance(event, ModelReady)] == ["/m/a.gguf"]


def test_reply_is_one_event_per_step_and_an_end() -> None:
    bench = Bench(FakeScript(replies=["Hi you"], prefill_steps=2))
    bench.loop.post(LOAD)
    bench.generate()
    events = bench.run(until=ended(1))[3:]
    reading = RequestMetrics(prompt_tokens=32)
    first = RequestMetrics(
        prompt_tokens=32, completion_tokens=1, prefill_ms=100.0, ttft_ms=100.0, e2e_ms=100.0
    )
    second = RequestMetrics(
        prompt_tokens=32,
        completion_tokens=2,
        prefill_ms=100.0,
        ttft_ms=100.0,
        decode_ms=20.0,
        e2e_ms=120.0,
    )
    assert events == [
        ReplyProgressed(ReplyId(1), "", (), 16, reading),
        ReplyProgressed(ReplyId(1), "Hi", (100,), 32, first, is_all_shown=True),
        ReplyProgressed(ReplyId(1), " you", (101,), 32, second, is_all_shown=True),
        ReplyEnded(ReplyId(1), "stop", second, None, (100, 101)),
    ]


def test_several_replies_are_made_at_once() -> None:
    bench = Bench(FakeScript(replies=["a b c", "1 2 3"]))
    bench.loop.post(LOAD)
    bench.generate(1)
    bench.generate(2)
    bench.run(until=ended(2))
    order = [event.reply_id for event in bench.events if isinstance(event, ReplyProgressed)]
    assert order == [1, 2, 1, 2, 1, 2]
    assert (bench.text_of(1), bench.text_of(2)) == ("a b c", "1 2 3")


def test_stop_acts_before_the_next_token() -> None:
    bench = Bench(FakeScript(replies=["a b c d", "1 2 3 4"]))
    bench.loop.post(LOAD)
    bench.generate(1)
    bench.generate(2)

    def stop(event: Event) -> None:
        if isinstance(event, ReplyProgressed) and event.text == " b":
            bench.loop.post(StopReply(ReplyId(1)))

    bench.on_event = stop
    bench.run(until=ended(2))
    assert bench.ends() == [(1, "aborted"), (2, "stop")]
    assert (bench.text_of(1), bench.text_of(2)) == ("a b", "1 2 3 4")
    (end, _) = [event for event in bench.events if isinstance(event, ReplyEnded)]
    assert end.reply_token_ids == (100, 101)


def test_stop_of_an_unknown_reply_is_ignored() -> None:
    bench = Bench(FakeScript(replies=["a"]))
    bench.loop.post(StopReply(ReplyId(9)))
    bench.loop.post(LOAD)
    bench.loop.post(StopReply(ReplyId(9)))
    bench.generate()
    bench.run(until=ended(1))
    assert bench.ends() == [(1, "stop")]


def test_generate_without_a_model_fails_with_the_next_step() -> None:
    bench = Bench()
    bench.generate()
    assert bench.run() == [
        ReplyEnded(
            ReplyId(1),
            "error",
            RequestMetrics(),
            Failure(
                "model_file", "No model is open.", "Choose a model, then make the reply again."
            ),
        )
    ]


def test_generate_that_the_engine_refuses_fails_and_others_go_on() -> None:
    bench = Bench(FakeScript(replies=["a"], prefill_tokens=5000))

    def shorten(event: Event) -> None:
        if isinstance(event, ReplyEnded):
            bench.script.prefill_tokens = 10

    bench.on_event = shorten
    bench.loop.post(LOAD)
    bench.generate(1)
    bench.generate(2)
    bench.run(until=ended(2))
    assert bench.ends() == [(1, "error"), (2, "stop")]
    failure = next(e.failure for e in bench.events if isinstance(e, ReplyEnded))
    assert failure is not None
    assert failure.kind == "context_full"
    assert failure.message == ContextOverflowError(5000, 2048).reason


def test_plain_text_is_asked_for_as_such() -> None:
    bench = Bench(FakeScript(replies=["a"], has_chat_template=False))
    bench.loop.post(LOAD)
    bench.generate(1)
    messages = (ChatMessage("user", "Hi"),)
    bench.loop.post(Generate(ReplyId(2), "c", messages, SamplingParams(), as_plain_text=True))
    bench.run(until=ended(2))
    assert bench.ends() == [(1, "error"), (2, "stop")]
    assert bench.factory.engines[0].requests[0].plain_text


def test_reply_that_fails_ends_with_its_failure() -> None:
    bench = Bench(
        FakeScript(replies=["a b c"], error_after_tokens=2, reply_error=ComputeError("Lost."))
    )
    bench.loop.post(LOAD)
    bench.generate()
    events = bench.run(until=ended(1))
    end = events[-1]
    assert isinstance(end, ReplyEnded)
    assert (end.finish_reason, end.failure) == ("error", Failure("compute", "Lost."))
    assert bench.text_of(1) == "a b"


def test_load_that_fails_tells_why_and_the_next_one_works() -> None:
    bench = Bench(FakeScript(load_error=ModelFileError("/m/a.gguf", "It is empty.")))

    def repair(event: Event) -> None:
        if isinstance(event, ModelFailed):
            bench.script.load_error = None
            bench.loop.post(LOAD)

    bench.on_event = repair
    bench.loop.post(LOAD)
    events = bench.run(until=lambda event: isinstance(event, ModelReady))
    failure = Failure("model_file", "a.gguf: It is empty.")
    assert events[2] == ModelFailed("/m/a.gguf", failure, config=LOAD.config)
    assert isinstance(events[-1], ModelReady)


def test_second_load_closes_the_first_model_and_keeps_its_replies_text() -> None:
    bench = Bench(FakeScript(replies=["a b c"]))
    other = LoadModel("/m/b.gguf", EngineConfig())

    def switch(event: Event) -> None:
        if isinstance(event, ReplyProgressed) and event.text == " b":
            bench.loop.post(other)

    bench.on_event = switch
    bench.loop.post(LOAD)
    bench.generate()
    bench.run(until=lambda e: isinstance(e, ModelReady) and e.info.path == "/m/b.gguf")
    assert bench.ends() == [(1, "aborted")]
    end = next(event for event in bench.events if isinstance(event, ReplyEnded))
    assert end.reply_token_ids == (100, 101)
    assert [engine.is_closed for engine in bench.factory.engines] == [True, True]


@pytest.mark.parametrize("command", [LoadModel("/m/b.gguf", EngineConfig()), UnloadModel()])
def test_newer_command_breaks_off_a_load(command: LoadModel | UnloadModel) -> None:
    bench = Bench()

    def interrupt(event: Event) -> None:
        if isinstance(event, ModelLoading) and event.path == "/m/a.gguf":
            bench.loop.post(command)

    bench.on_event = interrupt
    bench.loop.post(LOAD)
    bench.run(until=lambda event: isinstance(event, (ModelReady, ModelUnloaded)))
    paths = [event.path for event in bench.events if isinstance(event, ModelLoading)]
    expected = ["/m/a.gguf"] + ["/m/b.gguf"] * 2 * isinstance(command, LoadModel)
    assert paths == expected
    assert len(bench.factory.engines) == isinstance(command, LoadModel)


def test_shutdown_breaks_off_a_load_without_a_word() -> None:
    bench = Bench()
    bench.loop.post(LOAD)
    events = bench.run(until=lambda event: isinstance(event, ModelLoading))
    assert events == [ModelLoading("/m/a.gguf", "Reading the file", 0.0)]


def test_load_that_is_outdated_before_it_begins_is_not_tried() -> None:
    bench = Bench()
    bench.loop.post(LOAD)
    assert bench.run() == []
    assert bench.factory.calls == []


def test_unload_gives_the_model_back() -> None:
    bench = Bench()

    def unload(event: Event) -> None:
        if isinstance(event, ModelReady):
            bench.loop.post(UnloadModel())

    bench.on_event = unload
    bench.loop.post(LOAD)
    bench.run(until=lambda event: isinstance(event, ModelUnloaded))
    assert bench.factory.engines[0].is_closed


def test_shutdown_ends_running_replies_as_aborted() -> None:
    bench = Bench(FakeScript(replies=["a b c"]))
    bench.loop.post(LOAD)
    bench.generate()
    bench.run(until=lambda event: isinstance(event, ReplyProgressed))
    assert bench.ends() == [(1, "aborted")]
    assert bench.factory.engines[0].is_closed


def test_unexpected_error_ends_replies_and_model_but_not_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(FakeScript(replies=["a b c"], crash_after_tokens=2))

    def again(event: Event) -> None:
        if isinstance(event, ModelFailed):
            bench.script.crash_after_tokens = None
            bench.loop.post(LOAD)
            bench.generate(3)

    bench.on_event = again
    bench.loop.post(LOAD)
    bench.generate(1)
    bench.generate(2)
    bench.run(until=ended(3))
    assert bench.ends() == [(1, "error"), (2, "error"), (3, "stop")]
    ends = [event for event in bench.events if isinstance(event, ReplyEnded)]
    assert [end.failure for end in ends] == [BUG, BUG, None]
    assert ModelFailed("/m/a.gguf", BUG) in bench.events
    assert bench.factory.engines[0].is_closed
    assert "The engine thread met an unexpected error" in caplog.text


def test_unexpected_error_while_a_request_is_added_ends_its_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(engine: FakeEngine, request: GenerateRequest) -> RequestId:
        raise KeyError("odd")

    monkeypatch.setattr(FakeEngine, "add_request", refuse)
    bench = Bench()
    bench.loop.post(LOAD)
    bench.generate(7)
    events = bench.run(until=lambda event: isinstance(event, ModelFailed))
    assert events[-2:] == [
        ReplyEnded(ReplyId(7), "error", RequestMetrics(), BUG),
        ModelFailed("/m/a.gguf", BUG),
    ]


def test_unexpected_error_while_loading_is_told() -> None:
    def broken(
        path: str, config: EngineConfig, on_progress: Callable[[LoadProgress], None]
    ) -> FakeEngine:
        raise KeyError("odd")

    events: list[Event] = []

    def take(event: Event) -> None:
        events.append(event)
        loop.post(Shutdown())

    loop = EngineLoop(broken, take)
    loop.post(LOAD)
    loop.run()
    assert events == [ModelFailed("/m/a.gguf", BUG)]


def test_idle_loop_wakes_up_for_a_command_of_another_thread() -> None:
    loop = EngineLoop(FakeEngineFactory(), lambda _: None)
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.post(StopReply(ReplyId(1)))
    loop.post(Shutdown())
    thread.join(10)
    assert not thread.is_alive()


def test_engine_that_cannot_even_be_closed_does_not_end_the_loop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(engine: FakeEngine) -> None:
        raise RuntimeError("stuck")

    monkeypatch.setattr(FakeEngine, "close", refuse)
    bench = Bench(FakeScript(crash_after_tokens=0))
    bench.loop.post(LOAD)
    bench.generate()
    with caplog.at_level(logging.ERROR):
        bench.run(until=lambda event: isinstance(event, ModelFailed))
    assert "The engine could not be closed" in caplog.text
    assert bench.ends() == [(1, "error")]


def test_close_that_fails_at_the_end_still_ends_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(engine: FakeEngine) -> None:
        raise RuntimeError("stuck")

    monkeypatch.setattr(FakeEngine, "close", refuse)
    bench = Bench()
    bench.loop.post(LOAD)
    events = bench.run(until=lambda event: isinstance(event, ModelReady))
    assert isinstance(events[-1], ModelReady)


def test_stats_come_at_most_four_times_a_second_and_when_it_falls_idle() -> None:
    bench = Bench(FakeScript(replies=["w " * 50]))
    bench.loop.post(LOAD)
    bench.generate()

    def advance() -> None:
        bench.now += 0.0625  # seconds per step

    bench.script.before_step = advance
    times: list[float] = []
    bench.on_event = lambda e: times.append(bench.now) if isinstance(e, StatsSampled) else None
    idle = [False]

    def fell_idle(event: Event) -> bool:
        is_end = isinstance(event, StatsSampled) and bool(bench.ends()) and not idle[0]
        idle[0] = idle[0] or is_end
        return is_end

    bench.run(until=fell_idle)
    assert {after - before for before, after in pairwise(times[:-1])} == {0.25}
    assert len(times) == 14  # 52 steps are 3.25 s: 13 samples, and one when it falls idle
    assert bench.now == times[-1] < times[-2] + 0.25
    last = [event for event in bench.events if isinstance(event, StatsSampled)][-1]
    assert last.stats.num_running == 0
    assert 0 < last.rss_bytes < last.total_memory_bytes


def test_output_of_an_unknown_request_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    step = FakeEngine.step

    def step_with_stranger(engine: FakeEngine) -> list[StepOutput]:
        return [StepOutput(RequestId(99), text="x"), *step(engine)]

    monkeypatch.setattr(FakeEngine, "step", step_with_stranger)
    bench = Bench(FakeScript(replies=["a"]))
    bench.loop.post(LOAD)
    bench.generate()
    bench.run(until=ended(1))
    assert bench.text_of(1) == "a"
    assert bench.ends() == [(1, "stop")]


def test_problem_of_the_disk_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(FakeScript(disk_problem="The disk is full."))
    bench.tick = 1.0  # each event is time for another sample
    bench.loop.post(LOAD)
    bench.generate()
    bench.run(until=ended(1))
    assert sum(isinstance(event, StatsSampled) for event in bench.events) > 2
    told = [record for record in caplog.records if "The disk is full." in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]
