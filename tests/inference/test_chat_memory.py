"""A conversation is never processed twice: whole chats over device, RAM and disk."""

import errno
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from inference import kv_loading
from inference.attention.base import AttentionBackend
from inference.config import SamplingParams
from inference.engine import Engine
from inference.formats.whole_digest import WeightFiles
from inference.kv_cache.disk import claims
from inference.kv_cache.kv_rows import KvRows
from inference.model.base import LanguageModel
from inference.model.kv_quality import KvVerdict, assess_int4
from inference.request import ChatMessage
from tests.inference.chat_turns import Talk
from tests.inference.tiny_engine import make_engine, make_loaded

SCHEMES = ["fp32", "fp16", "bf16", "int8", "int4"]
LONG = "In the beginning there was a rather long message, long enough for several blocks. "
ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1)  # for chats that only take room


@pytest.fixture(scope="module", autouse=True)
def _int4_is_tried_once() -> Iterator[None]:
    """All engines here that store as int4 have one model; trying it takes longer than a chat."""
    verdicts: dict[tuple[int, ...], KvVerdict] = {}

    def assess(model: LanguageModel, attention: AttentionBackend, *text: Any) -> KvVerdict:
        token_ids, block_size, _ = text
        if (block_size, *token_ids) not in verdicts:
            verdicts[block_size, *token_ids] = assess_int4(model, attention, *text)
        return verdicts[block_size, *token_ids]

    with patch.object(kv_loading, "assess_int4", assess):
        yield


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return str(tmp_path / "kv")


def opened(cache: str | None = None, *, kv_scheme: str = "auto") -> Engine:
    return make_engine(make_loaded(context_tokens=2048), cache_dir=cache, kv_scheme=kv_scheme)


def idle(engine: Engine) -> None:
    assert engine.flush()
    engine.check_integrity()


def files(cache: str) -> list[Path]:
    return sorted(path for path in Path(cache).rglob("*.kv"))


# --- cases from the field ---------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_same_question_cold_warm_and_after_a_restart_has_one_answer(
    cache: str, scheme: str
) -> None:
    engine = opened(cache, kv_scheme=scheme)
    talk = Talk("chat")
    cold = talk.say(engine, LONG)
    assert talk.metrics.reused_tokens == 0
    warm = talk.again(engine)
    assert talk.computed == 1
    assert talk.metrics.reused_device_tokens == talk.metrics.prompt_tokens - 1
    engine.close()
    engine = opened(cache, kv_scheme=scheme)
    restarted = talk.again(engine)
    assert talk.computed == 1
    assert talk.metrics.reused_disk_tokens == talk.metrics.prompt_tokens - 1
    assert cold == warm == restarted
    assert talk.metrics.reuse_stop is None
    idle(engine)
    engine.close()


def test_next_turn_computes_only_the_new_message(cache: str) -> None:
    engine = opened(cache)
    talk = Talk("chat")
    talk.say(engine, LONG)
    before = talk.metrics
    talk.say(engine, "And then?")
    # The last token of a reply is sampled and not computed; one token a byte in this vocabulary.
    new = talk.metrics.prompt_tokens - before.prompt_tokens - before.completion_tokens
    assert talk.computed == new + 1
    assert talk.metrics.reuse_stop is None
    engine.close()


def test_next_turn_after_a_restart_computes_only_the_new_message(cache: str) -> None:
    engine = opened(cache)
    talk = Talk("chat")
    talk.say(engine, LONG)
    engine.close()
    other = talk.copy()
    engine = opened(cache)
    talk.say(engine, "And then?")
    before = other.metrics
    new = talk.metrics.prompt_tokens - before.prompt_tokens - before.completion_tokens
    assert talk.computed == new + 1
    assert talk.metrics.reused_disk_tokens == talk.metrics.reused_tokens > 0
    cold = opened()
    assert other.say(cold, "And then?") == talk.messages[-1].content
    engine.close()
    cold.close()


def test_regenerating_does_not_forget_the_last_message() -> None:
    engine = opened()
    talk = Talk("chat")
    talk.say(engine, "My name is Ada. " + LONG)
    first = talk.say(engine, "What is my name?")
    assert talk.again(engine) == first
    assert talk.computed == 1
    fresh = opened()
    alone = Talk("chat", list(talk.messages))
    assert alone.again(fresh) == first  # the prompt had the question: a cold engine says the same
    assert alone.metrics.prompt_tokens == talk.metrics.prompt_tokens
    engine.close()
    fresh.close()


def test_reopened_chat_with_a_system_prompt_remembers_its_past(cache: str) -> None:
    system = ChatMessage("system", "Answer like a sailor. " + LONG)
    engine = opened(cache)
    talk = Talk("chat", [system])
    talk.say(engine, "The secret word is heron.")
    engine.close()
    engine = opened(cache)
    reopened = talk.say(engine, "What is the secret word?")
    assert talk.metrics.reused_disk_tokens > len(LONG)
    fresh = opened()
    alone = Talk("chat", talk.messages[:-1])
    assert alone.answer(fresh) == reopened
    engine.close()
    fresh.close()


def test_going_back_to_a_chat_costs_nothing() -> None:
    engine = opened()
    system = ChatMessage("system", LONG)
    a, c = Talk("a", [system]), Talk("c", [system])
    a.say(engine, "This is the first chat.")
    c.say(engine, "This is another one.")
    assert c.metrics.reused_tokens >= len(LONG)  # what the two have in common
    a.again(engine)
    assert a.computed == 1
    engine.close()


def test_a_chat_never_knows_the_secret_of_another(cache: str) -> None:
    engine = opened(cache)
    a = Talk("a")
    a.say(engine, LONG + "The secret is 4711.")
    b = Talk("b")
    warm = b.say(engine, LONG + "The secret is")
    fresh = opened()
    cold = Talk("b").say(fresh, LONG + "The secret is")
    assert warm == cold
    assert b.metrics.reused_tokens > len(LONG)  # it did share the beginning
    engine.close()
    fresh.close()


# --- edits, branches, models ------------------------------------------------------------------


def test_edit_of_the_last_message_computes_only_that_message() -> None:
    engine = opened()
    talk = Talk("chat")
    talk.say(engine, LONG)
    known = talk.metrics.prompt_tokens + talk.metrics.completion_tokens
    edited = talk.copy()
    talk.say(engine, "One question.")
    edited.say(engine, "Quite another question.")
    assert edited.computed <= edited.metrics.prompt_tokens - known + 1
    assert edited.metrics.reuse_stop is None
    engine.close()


def test_older_branch_is_still_there() -> None:
    engine = opened()
    old = Talk("chat")
    old.say(engine, LONG)
    new = old.copy()
    old.say(engine, "One question.")
    new.say(engine, "Quite another question.")
    old.say(engine, "Go on with the first.")
    assert old.metrics.reuse_stop is None
    assert old.computed < 60
    engine.close()


def test_edit_of_an_earlier_message_says_where_reading_began_anew() -> None:
    engine = opened()
    talk = Talk("chat")
    talk.say(engine, LONG)
    talk.say(engine, "The second message.")
    talk.messages[2] = ChatMessage("user", "Said differently.")
    talk.say(engine, "The third message.")
    assert (talk.metrics.reuse_stop, talk.metrics.reuse_stop_message) == ("edited", 3)
    engine.close()


@pytest.mark.parametrize("with_restart", [False, True])
def test_other_system_prompt_is_named_as_the_reason(cache: str, with_restart: bool) -> None:
    engine = opened(cache)
    talk = Talk("chat", [ChatMessage("system", "Be brief.")])
    talk.say(engine, LONG)
    if with_restart:
        engine.close()
        engine = opened(cache)
    talk.messages[0] = ChatMessage("system", "Talk at length.")
    talk.say(engine, "And then?")
    assert (talk.metrics.reuse_stop, talk.metrics.reuse_stop_message) == ("system_prompt", 0)
    engine.close()


def test_changing_the_model_and_back_costs_nothing(cache: str) -> None:
    talk = Talk("chat")
    engine = opened(cache)
    first = talk.say(engine, LONG)
    engine.close()
    other = make_engine(make_loaded(seed=1, context_tokens=2048), cache_dir=cache)
    elsewhere = Talk("chat", talk.messages[:1])
    elsewhere.answer(other)
    assert elsewhere.metrics.reused_tokens == 0  # of another model nothing can be used
    other.close()
    engine = opened(cache)
    assert talk.again(engine) == first
    assert talk.computed == 1
    engine.close()


def test_other_scheme_shares_nothing_and_says_so(cache: str) -> None:
    talk = Talk("chat")
    stops = []
    for scheme in ("fp16", "int8", "fp16"):
        engine = opened(cache, kv_scheme=scheme)
        talk.say(engine, LONG)
        stops.append((talk.metrics.reuse_stop, talk.metrics.reused_tokens > 0))
        engine.close()
    engine = opened(cache, kv_scheme="fp16")
    engine.forget("chat")
    talk.say(engine, "And then?")
    stops.append((talk.metrics.reuse_stop, talk.metrics.reused_tokens > 0))
    assert stops == [
        (None, False),
        ("other_precision", False),
        ("other_precision", True),  # the turn before
        ("not_kept", False),
    ]
    engine.close()


def test_other_weights_and_another_way_to_compute_are_told(
    cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk("chat")
    stops = []
    for weights, arithmetic in ((b"1", b""), (b"2", b""), (b"2", b" as torch"), (b"1", b"")):
        monkeypatch.setattr(WeightFiles, "digest", lambda *_, weights=weights: 32 * weights)
        loaded = make_loaded(context_tokens=2048)
        loaded = replace(loaded, fingerprint=loaded.fingerprint + arithmetic)
        if arithmetic:  # to the app that is another model's fingerprint, so ids are not used
            talk.messages = [ChatMessage(m.role, m.content) for m in talk.messages]
        engine = make_engine(loaded, cache_dir=cache)
        talk.say(engine, LONG)
        stops.append(talk.metrics.reuse_stop)
        engine.close()
    assert stops == [None, "other_weights", "other_computing", "other_model"]


# --- tiers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_evicted_chat_comes_back_from_ram(scheme: str) -> None:
    loaded = make_loaded(context_tokens=400)
    engine = make_engine(loaded, kv_scheme=scheme, kv_cache_bytes=2**20, ram_cache_bytes=2**24)
    blocks = engine.stats().blocks.total
    a = Talk("a")
    first = a.say(engine, LONG)
    number = 0
    while engine.stats().evictions < blocks:  # others take all of its blocks
        Talk(f"b{number}").say(engine, f"{number} " + 3 * LONG, params=ONE_TOKEN)
        number += 1
    assert a.again(engine) == first
    assert a.metrics.reused_tokens == a.metrics.prompt_tokens - 1
    # All but the first block, which the last of the others may have used again.
    assert a.metrics.reused_ram_tokens >= a.metrics.reused_tokens - 8
    assert engine.stats().ram.used_bytes > 0
    idle(engine)
    engine.close()


def test_disk_tier_never_hides_what_is_nearer(cache: str) -> None:
    engine = opened(cache)
    talk = Talk("chat")
    talk.say(engine, LONG)
    idle(engine)
    assert files(cache)
    talk.again(engine)
    assert talk.metrics.reused_disk_tokens == 0
    assert talk.metrics.reused_device_tokens == talk.metrics.prompt_tokens - 1
    engine.close()


def test_reply_of_another_chat_goes_on_while_blocks_load(
    cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from inference.kv_cache.disk.store import DiskStore
    from inference.request import GenerateRequest
    from tests.inference.chat_turns import GREEDY

    engine = opened(cache)
    talk = Talk("chat")
    talk.say(engine, LONG)
    engine.close()
    engine = opened(cache)
    gate = threading.Event()
    read = DiskStore.read
    monkeypatch.setattr(DiskStore, "read", lambda *args: gate.wait(30) and read(*args))
    other = engine.add_request(
        GenerateRequest("other", messages=(ChatMessage("user", "Hi"),), params=GREEDY)
    )
    gate.set()
    while not engine.stats().completion_tokens:  # it runs
        engine.step()
    gate.clear()
    messages = tuple(talk.messages[:1])
    loading = engine.add_request(GenerateRequest("chat", messages=messages, params=GREEDY))
    ended = set()
    while other not in ended:
        ended |= {o.request_id for o in engine.step() if o.finish_reason}
    assert loading not in ended
    assert engine.stats().num_loading == 1
    gate.set()
    while engine.has_work:
        for output in engine.step():
            if output.finish_reason:
                assert output.metrics.reused_disk_tokens >= output.metrics.prompt_tokens - 1 - 8
    engine.close()


def test_shared_system_prompt_is_held_once() -> None:
    engine = opened()
    system = ChatMessage("system", 4 * LONG)
    used = []
    for number in range(20):
        Talk(f"chat {number}", [system]).say(engine, f"{number}?")
        blocks = engine.stats().blocks
        used.append(blocks.cached + blocks.used)
    shared = len(4 * LONG) // 8
    assert used[0] > shared
    assert used[-1] - used[0] < 19 * 8  # each further chat adds only its own few
    engine.close()


# --- faults -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["flip", "truncate", "empty", "remove", "swap"])
def test_damaged_file_is_a_clean_miss(cache: str, fault: str) -> None:
    engine = opened(cache)
    talk = Talk("chat")
    first = talk.say(engine, LONG)
    engine.close()
    # In the chain's order: their names are in none, and of the last block only some rows are wanted.
    found = sorted(files(cache), key=lambda path: path.stat().st_mtime_ns)
    middle = found[len(found) // 2]
    data = bytearray(middle.read_bytes())
    if fault == "flip":
        data[-5] ^= 4
        middle.write_bytes(data)
    elif fault == "truncate":
        middle.write_bytes(data[:-1])
    elif fault == "empty":
        middle.write_bytes(b"")
    elif fault == "remove":
        middle.unlink()
    else:
        middle.write_bytes(found[0].read_bytes())
    engine = opened(cache)
    assert talk.again(engine) == first
    assert 1 < talk.computed <= talk.metrics.prompt_tokens
    stats = engine.stats()
    if fault == "remove":  # nothing is wrong with what is there
        assert talk.metrics.reuse_stop == "not_kept"
    else:
        assert talk.metrics.reuse_stop == "damaged"
        assert sum(count for _, count in stats.disk_misses) >= 1
    idle(engine)
    assert talk.again(engine) == first
    assert talk.computed == 1  # and it was written anew
    engine.close()


@pytest.mark.parametrize("fault", ["header", "payload", "truncate", "version"])
def test_damaged_file_of_which_only_a_part_is_wanted_is_told(cache: str, fault: str) -> None:
    engine = opened(cache)
    talk = Talk("chat")
    talk.say(engine, LONG)
    engine.close()
    prompt_tokens = talk.metrics.prompt_tokens
    tail = prompt_tokens // 8  # the block in which the reply begins
    found = sorted(files(cache), key=lambda path: -path.stat().st_mtime_ns)
    data = bytearray(found[tail].read_bytes())
    at = {"header": 30, "payload": -5, "truncate": -1, "version": 8}[fault]
    data[at] ^= 4
    found[tail].write_bytes(data[:-1] if fault == "truncate" else data)
    engine = opened(cache)
    talk.again(engine)
    assert talk.metrics.reuse_stop == "damaged"
    assert talk.metrics.reused_tokens == 8 * tail
    idle(engine)
    talk.again(engine)
    assert talk.computed == 1
    engine.close()


def test_disk_that_is_too_small_for_anything_is_the_reason_after_a_restart(cache: str) -> None:
    talk = Talk("chat")
    for reason in (None, "no_room"):
        loaded = make_loaded(context_tokens=2048)
        engine = make_engine(loaded, cache_dir=cache, disk_cache_bytes=1000)
        assert "too small for any" in engine.stats().disk_problem
        talk.say(engine, LONG)
        assert (talk.metrics.reuse_stop, talk.metrics.reused_tokens) == (reason, 0)
        engine.close()
    assert files(cache) == []


def test_disk_that_was_full_is_the_reason_after_a_restart(
    cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(KvRows, "write_files", lambda rows, files: [False] * len(files))
    monkeypatch.setattr(claims, "write_file", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    talk = Talk("chat")
    for reason in (None, "no_room"):
        loaded = make_loaded(context_tokens=2048)
        engine = make_engine(loaded, cache_dir=cache, disk_cache_bytes=10**8)
        talk.say(engine, LONG)
        assert (talk.metrics.reuse_stop, talk.metrics.reused_tokens) == (reason, 0)
        idle(engine)
        assert "disk is full" in engine.stats().disk_problem
        engine.close()


# --- forgetting -------------------------------------------------------------------------------


def test_forgotten_chat_leaves_nothing_behind(cache: str) -> None:
    engine = opened(cache)
    base_files = files(cache)
    talk = Talk("chat")
    talk.say(engine, LONG)
    idle(engine)
    assert files(cache)
    assert engine.forget("chat") > 0
    assert files(cache) == base_files == []
    blocks = engine.stats().blocks
    assert (blocks.cached, blocks.used) == (0, 0)
    talk.again(engine)
    assert talk.metrics.reused_tokens == 0
    assert talk.metrics.reuse_stop is None  # a first message has nothing to lose
    engine.close()


def test_forgetting_keeps_what_another_chat_uses_too(cache: str) -> None:
    engine = opened(cache)
    system = ChatMessage("system", LONG)
    a, b = Talk("a", [system]), Talk("b", [system])
    a.say(engine, "The first chat. " + LONG)
    b.say(engine, "The second chat. " + LONG)
    idle(engine)
    engine.forget("a")
    b.again(engine)
    assert b.computed == 1
    engine.close()
    engine = opened(cache)
    b.again(engine)
    assert b.computed == 1
    engine.close()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_that_are_left_of_a_forgotten_chat_are_those_of_the_text(
    tmp_path: Path, scheme: str
) -> None:
    for shared in (3, 9, 14, 20):  # of a block that both chats begin with, a part is left
        cache = str(tmp_path / str(shared))
        engine = opened(cache, kv_scheme=scheme)
        first, second = Talk("first"), Talk("second")
        first.say(engine, LONG[:shared] + "1, the way that one chat goes on from there.")
        second.say(engine, LONG[:shared] + "2, and another.")
        idle(engine)
        assert engine.forget("first") > 0
        engine.close()
        engine, cold = opened(cache, kv_scheme=scheme), opened(kv_scheme=scheme)
        before, other = second.metrics, second.copy()
        reply = second.say(engine, "And then?")
        new = second.metrics.prompt_tokens - before.prompt_tokens - before.completion_tokens
        assert second.computed == new + 1
        assert second.metrics.reused_disk_tokens == second.metrics.prompt_tokens - second.computed
        assert reply == other.say(cold, "And then?")
        engine.close()
        cold.close()


def test_clearing_everything_leaves_the_engine_working(cache: str) -> None:
    engine = opened(cache)
    talk = Talk("chat")
    first = talk.say(engine, LONG)
    idle(engine)
    assert engine.clear_cache() > 0
    assert files(cache) == []
    stats = engine.stats()
    assert (stats.blocks.cached, stats.ram.used_bytes, stats.disk.used_bytes) == (0, 0, 0)
    assert talk.again(engine) == first
    assert talk.metrics.reused_tokens == 0
    engine.close()


def test_chat_that_is_not_to_be_kept_leaves_no_file(cache: str) -> None:
    from inference.request import GenerateRequest
    from tests.inference.chat_turns import GREEDY
    from tests.inference.tiny_engine import run_until_idle

    engine = opened(cache)
    request = GenerateRequest(
        "chat",
        messages=(ChatMessage("user", LONG),),
        params=GREEDY,
        keep_on_disk=False,
    )
    engine.add_request(request)
    run_until_idle(engine)
    idle(engine)
    assert [path for path in Path(cache).rglob("*") if path.is_file()] == []
    engine.close()


# --- families with windows --------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "mistral"])
@pytest.mark.parametrize("scheme", ["fp16", "int8"])
def test_models_with_windows_restore_and_trim_like_a_cold_run(
    family: str, scheme: str, cache: str
) -> None:
    def engine_of(cache: str | None) -> Engine:
        loaded = make_loaded(family, context_tokens=512)
        return make_engine(loaded, cache_dir=cache, kv_scheme=scheme)

    talk = Talk("chat")
    engine = engine_of(cache)
    talk.say(engine, LONG)
    branch = talk.copy()
    talk.say(engine, "Far beyond the window by now.")
    branch.say(engine, "Back before the window.")  # a trim past what a window still shows
    engine.close()
    engine = engine_of(cache)
    talk.again(engine)
    branch.again(engine)
    assert (talk.computed, branch.computed) == (1, 1)
    engine.close()
    for chat in (talk, branch):
        cold = engine_of(None)
        alone = Talk("chat", list(chat.messages))
        assert alone.again(cold) == chat.messages[-1].content
        assert alone.metrics.reused_tokens == 0
        cold.close()


# --- other devices ----------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", ["fp16", "int8", "int4"])
def test_blocks_of_a_graphics_card_go_to_disk_and_come_back(cache: str, scheme: str) -> None:
    def engine_on_card() -> Engine:
        loaded = make_loaded(context_tokens=2048)
        loaded.module.to("cuda")
        return make_engine(loaded, device="cuda", cache_dir=cache, kv_scheme=scheme)

    engine = engine_on_card()
    talk = Talk("chat")
    cold = talk.say(engine, LONG)
    assert talk.again(engine) == cold
    assert talk.computed == 1
    engine.close()
    engine = engine_on_card()
    assert talk.again(engine) == cold
    assert talk.metrics.reused_disk_tokens == talk.metrics.prompt_tokens - 1
    idle(engine)
    engine.close()
