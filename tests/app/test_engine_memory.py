"""The loop's part in what models have read: measuring, leaving out, forgetting, tending."""

import threading
import time
from pathlib import Path

import pytest

from app.engine_loop import TEND_INTERVAL_S, EngineLoop
from app.failures import BUG
from app.messages import (
    CacheCleared,
    ClearCache,
    Event,
    Failure,
    ForgetChat,
    Generate,
    KeepOnlyChats,
    LoadModel,
    MeasurePrompt,
    ModelFailed,
    ModelLoading,
    ModelReady,
    PromptMeasured,
    PromptRead,
    ReplyEnded,
    ReplyId,
    ReplyProgressed,
    SetCacheBudgets,
    Shutdown,
    StatsSampled,
)
from inference.config import EngineConfig, SamplingParams
from inference.errors import ChatTemplateError, NotEnoughMemoryError
from inference.kv_cache.block import ROOT_KEY
from inference.kv_cache.disk.store import DiskStore, used_bytes
from inference.request import ChatMessage, PromptPart
from tests.app.fake_engine import FakeEngine, FakeEngineFactory, FakeScript
from tests.app.loop_bench import LOAD, Bench, ended
from tests.inference.disk_stores import write

HI = (ChatMessage("user", "Hi"),)
CHAT = (
    ChatMessage("system", "S"),
    ChatMessage("user", "a"),
    ChatMessage("assistant", "b"),
    ChatMessage("user", "c"),
    ChatMessage("assistant", "d"),
    ChatMessage("user", "e"),
)
PART = PromptPart((1, 2), bytes(16))
OTHER = PromptPart((3,), bytes(16))


def generate(
    messages: tuple[ChatMessage, ...] = CHAT, *, leave_out: bool = True, left_out: int = 0
) -> Generate:
    return Generate(
        ReplyId(1), "c", messages, SamplingParams(), leave_out=leave_out, left_out=left_out
    )


def the_engine(bench: Bench) -> FakeEngine:
    (engine,) = bench.factory.engines
    return engine


# ---------------------------------------------------------------- measuring


@pytest.mark.parametrize(
    ("tokens", "context", "fits"),
    [(1792, 2048, True), (1793, 2048, False), (88, 100, True), (89, 100, False), (1, 2, True)],
)
def test_prompt_fits_with_room_for_a_reply(tokens: int, context: int, fits: bool) -> None:
    bench = Bench(FakeScript(prefill_tokens=tokens, context_tokens=context))
    bench.loop.post(LOAD)
    bench.loop.post(MeasurePrompt(5, HI))
    events = bench.run(until=lambda event: isinstance(event, PromptMeasured))
    assert events[-1] == PromptMeasured(5, tokens, context, fits)


def test_every_measure_is_answered_in_order() -> None:
    bench = Bench(FakeScript(message_tokens=10))
    bench.loop.post(MeasurePrompt(1, HI))
    bench.loop.post(LOAD)
    bench.loop.post(MeasurePrompt(2, HI))
    bench.loop.post(MeasurePrompt(3, CHAT))
    bench.run(until=lambda event: isinstance(event, PromptMeasured) and event.measure_id == 3)
    assert [event for event in bench.events if isinstance(event, PromptMeasured)] == [
        PromptMeasured(1, 0, 0, fits=True),
        PromptMeasured(2, 10, 2048, fits=True),
        PromptMeasured(3, 60, 2048, fits=True),
    ]


def test_prompt_that_cannot_be_made_is_answered_too(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(FakeScript(measure_error=ChatTemplateError("The secret text is wrong.")))
    bench.loop.post(LOAD)
    bench.loop.post(MeasurePrompt(5, HI))
    events = bench.run(until=lambda event: isinstance(event, PromptMeasured))
    assert events[-1] == PromptMeasured(5, 0, 0, fits=True)
    assert "secret" not in caplog.text


# ---------------------------------------------------------------- reading and leaving out


def test_parts_of_the_prompt_come_before_the_first_progress() -> None:
    bench = Bench(FakeScript(replies=["a b"], prompt_parts=((0, PART),)))
    bench.loop.post(LOAD)
    bench.generate()
    events = bench.run(until=ended(1))[3:]
    assert events[0] == PromptRead(ReplyId(1), ((0, PART),))
    assert [type(event) for event in events[1:]] == [ReplyProgressed, ReplyProgressed, ReplyEnded]


def test_full_chat_leaves_out_the_oldest_turns_and_says_so() -> None:
    script = FakeScript(
        message_tokens=20, context_tokens=134, prompt_parts=((0, PART), (1, OTHER), (3, PART))
    )
    bench = Bench(script)
    bench.loop.post(LOAD)
    bench.loop.post(generate(left_out=4))
    events = bench.run(until=ended(1))[3:]
    (request,) = the_engine(bench).requests
    assert request.messages == (CHAT[0], *CHAT[3:])  # of 120 tokens 80 stay
    assert request.has_left_out
    assert events[0] == PromptRead(ReplyId(1), ((0, PART), (3, OTHER), (5, PART)), left_out=6)


def test_chat_that_has_left_out_before_says_so_again() -> None:
    bench = Bench()
    bench.loop.post(LOAD)
    bench.loop.post(generate(left_out=2))
    events = bench.run(until=ended(1))[3:]
    assert events[0] == PromptRead(ReplyId(1), (), left_out=2)
    (request,) = the_engine(bench).requests
    assert request.has_left_out
    assert request.messages == CHAT


def test_chat_without_that_choice_is_refused_when_it_is_full() -> None:
    bench = Bench(FakeScript(message_tokens=20, context_tokens=100))
    bench.loop.post(LOAD)
    bench.loop.post(generate(leave_out=False))
    bench.run(until=ended(1))
    assert bench.ends() == [(1, "error")]
    assert the_engine(bench).requests == []


def test_last_message_that_is_too_long_alone_is_refused() -> None:
    bench = Bench(FakeScript(message_tokens=60, context_tokens=100))
    bench.loop.post(LOAD)
    bench.loop.post(generate())
    (end,) = bench.run(until=ended(1))[3:]
    assert isinstance(end, ReplyEnded)
    assert end.failure is not None
    assert end.failure.kind == "context_full"
    assert "The prompt has 120 tokens" in end.failure.message  # system prompt and question


def test_request_says_whether_it_may_be_kept_on_disk() -> None:
    bench = Bench()
    bench.loop.post(LOAD)
    bench.loop.post(Generate(ReplyId(1), "c", HI, SamplingParams(), keep_on_disk=False))
    bench.loop.post(Generate(ReplyId(2), "c", HI, SamplingParams()))
    bench.run(until=ended(2))
    requests = the_engine(bench).requests
    assert [request.keep_on_disk for request in requests] == [False, True]
    assert [request.has_left_out for request in requests] == [False, False]


# ---------------------------------------------------------------- forgetting


def test_open_engine_forgets_and_says_what_was_freed() -> None:
    bench = Bench(FakeScript(freed_bytes=7))
    bench.loop.post(LOAD)
    bench.loop.post(ForgetChat("gone", is_deleted=True))
    bench.loop.post(ForgetChat("c"))
    bench.loop.post(ClearCache())
    bench.loop.post(SetCacheBudgets(2**30, None))
    bench.run(until=lambda event: event == CacheCleared(None, 7))
    assert the_engine(bench).calls == [
        ("forget", "gone"),
        ("forget", "c"),
        ("clear_cache",),
        ("set_cache_budgets", 2**30, None),
    ]
    cleared = [event for event in bench.events if isinstance(event, CacheCleared)]
    assert cleared == [CacheCleared("c", 7), CacheCleared(None, 7)]


def test_reply_of_a_forgotten_chat_ends() -> None:
    bench = Bench(FakeScript(replies=["a b c"]))

    def forget(event: Event) -> None:
        if isinstance(event, ReplyProgressed) and event.text == " b":
            bench.loop.post(ForgetChat("c", is_deleted=True))

    bench.on_event = forget
    bench.loop.post(LOAD)
    bench.generate()
    bench.run(until=ended(1))
    assert bench.ends() == [(1, "aborted")]


def test_files_are_forgotten_without_an_engine(tmp_path: Path) -> None:
    store = DiskStore(
        tmp_path, namespace=b"m", block_size=4, row_layout=((2, 4),), budget_bytes=2**20
    )
    store.open()
    for chat, ids in (("c", (1, 2, 3, 4)), ("d", (5, 6, 7, 8))):
        store.claim(chat, [(ROOT_KEY, ids)])
        assert write(store, ROOT_KEY, ids, 0, bytes(32))
    bench = Bench(kv_dir=tmp_path)
    before = used_bytes(tmp_path)
    bench.loop.post(ForgetChat("c"))
    bench.loop.post(ClearCache())
    bench.loop.post(SetCacheBudgets(None, None))
    first, second = bench.run()
    assert isinstance(first, CacheCleared)
    assert isinstance(second, CacheCleared)
    assert (first.conversation_id, second.conversation_id) == ("c", None)
    assert min(first.freed_bytes, second.freed_bytes) > 32
    assert first.freed_bytes + second.freed_bytes == before
    assert used_bytes(tmp_path) == 0


def save_chat(folder: Path, chat: str, ids: tuple[int, ...]) -> None:
    store = DiskStore(
        folder, namespace=b"model", block_size=4, row_layout=((2, 4),), budget_bytes=2**20
    )
    store.open()
    store.claim(chat, [(ROOT_KEY, ids)])
    assert write(store, ROOT_KEY, ids, 0, bytes(32))


def test_chats_that_are_not_known_are_forgotten_at_the_start(tmp_path: Path) -> None:
    save_chat(tmp_path, "c", (1, 2, 3, 4))
    kept = used_bytes(tmp_path)
    save_chat(tmp_path, "deleted before a crash", (5, 6, 7, 8))
    bench = Bench(kv_dir=tmp_path)
    bench.loop.post(KeepOnlyChats(("c", "d")))
    bench.run()
    assert used_bytes(tmp_path) == kept


def test_files_of_a_chat_that_is_deleted_while_a_model_loads_go_at_once(tmp_path: Path) -> None:
    save_chat(tmp_path, "c", (1, 2, 3, 4))
    bench = Bench(kv_dir=tmp_path)
    sizes = []

    def look(event: Event) -> None:
        if isinstance(event, ModelLoading):
            sizes.append(used_bytes(tmp_path))
            if len(sizes) == 1:
                bench.loop.post(ForgetChat("c", is_deleted=True))

    bench.on_event = look
    bench.loop.post(LOAD)
    bench.run(until=lambda event: isinstance(event, ModelReady))
    assert sizes[0] > 0
    assert sizes[1:] == [0]  # it still loads


def test_loop_without_a_folder_frees_nothing() -> None:
    bench = Bench()
    bench.loop.post(ForgetChat("c"))
    assert bench.run() == [CacheCleared("c", 0)]


def test_stats_follow_at_once_when_the_cache_was_cleared() -> None:
    bench = Bench()
    bench.loop.post(LOAD)
    seen: list[type] = []

    def clear(event: Event) -> None:
        seen.append(type(event))
        if seen.count(StatsSampled) == 1 and CacheCleared not in seen:
            bench.loop.post(ClearCache())

    bench.on_event = clear
    bench.run(until=lambda event: isinstance(event, StatsSampled) and CacheCleared in seen)
    assert seen[-2:] == [CacheCleared, StatsSampled]


# ---------------------------------------------------------------- tending


class TendedEngine(FakeEngine):
    """Ends the loop when it was tended as often as its script says, and once more."""

    loop: EngineLoop

    def tend(self) -> bool:
        is_more = super().tend()
        if not is_more:
            self.loop.post(Shutdown())
        return is_more


def test_idle_engine_is_tended_until_nothing_is_left_to_do() -> None:
    bench = Bench(FakeScript(tend_turns=3))
    opened: list[TendedEngine] = []

    def open_it(path: str, config: EngineConfig, on_progress: object) -> FakeEngine:
        engine = TendedEngine(path, config, lambda _: None, script=bench.script)
        engine.loop = loop
        opened.append(engine)
        return engine

    events: list[Event] = []
    loop = EngineLoop(open_it, events.append)
    loop.post(LOAD)
    begun = time.monotonic()
    loop.run()
    assert opened[0].num_tends == 4
    assert time.monotonic() - begun >= 3 * TEND_INTERVAL_S  # it does not spin
    assert isinstance(events[-1], StatsSampled)  # when it falls idle


def test_engine_is_not_tended_while_it_works_and_idle_loop_sleeps() -> None:
    factory = FakeEngineFactory(FakeScript(replies=["a b c"]))
    ends = threading.Event()
    during: list[int] = []

    def take(event: Event) -> None:
        if isinstance(event, ReplyProgressed):
            during.append(factory.engines[0].num_tends)
        if isinstance(event, ReplyEnded):
            ends.set()

    loop = EngineLoop(factory, take)
    loop.post(LOAD)
    loop.post(generate(HI, leave_out=False))
    thread = threading.Thread(target=loop.run)
    thread.start()
    assert ends.wait(10)
    loop.post(SetCacheBudgets(None, None))
    loop.post(Shutdown())
    thread.join(10)
    assert not thread.is_alive()
    assert during == [0, 0, 0]
    assert 1 <= factory.engines[0].num_tends <= 2


def test_engine_that_breaks_while_it_is_tended_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(engine: FakeEngine) -> bool:
        raise RuntimeError("odd")

    monkeypatch.setattr(FakeEngine, "tend", break_down)
    bench = Bench()
    bench.loop.post(LOAD)
    events = bench.run(until=lambda event: isinstance(event, ModelFailed))
    assert [type(event) for event in events[-2:]] == [ModelReady, ModelFailed]
    assert events[-1] == ModelFailed("/m/a.gguf", BUG)
    assert the_engine(bench).is_closed


# ---------------------------------------------------------------- schemes


@pytest.mark.parametrize(("kv_bytes", "hint"), [(None, "Close other"), (2**40, "in the settings")])
def test_model_without_room_names_the_setting_that_takes_it(
    kv_bytes: int | None, hint: str
) -> None:
    bench = Bench(FakeScript(load_error=NotEnoughMemoryError(2**40, 2**34)))
    bench.loop.post(LoadModel("/m/a.gguf", EngineConfig(kv_cache_bytes=kv_bytes)))
    (*_, event) = bench.run(until=lambda event: isinstance(event, ModelFailed))
    assert isinstance(event, ModelFailed)
    assert event.failure.kind == "memory"
    assert hint in event.failure.hint


def test_scheme_that_is_refused_is_told_as_such() -> None:
    bench = Bench(FakeScript(refused_scheme="int4"))
    config = EngineConfig(kv_scheme="int4")
    bench.loop.post(LoadModel("/m/a.gguf", config))
    events = bench.run(until=lambda event: isinstance(event, ModelFailed))
    failure = Failure("request", "int4 would make this model worse.")
    assert events[-1] == ModelFailed("/m/a.gguf", failure, is_scheme_refused=True, config=config)
