"""Chats that are deleted, fail, wait or are put back while they run; what is kept of them is right."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.engine import Engine
from inference.kv_cache.tiers import BlockLoad, RamSource
from inference.model.step import Chunk
from inference.request import GenerateRequest, RequestId, StepOutput
from inference.transfer_tickets import Loading
from inference.transfers import Transfers
from tests.inference.scripted_engine import answer, ask, greedy, scripted_engine
from tests.inference.small_memory import WAIT_S, gated
from tests.inference.tiny_engine import (
    make_engine,
    make_loaded,
    make_parts,
    run_until_idle,
    sampled_ids,
)
from tests.inference.tiny_models import make_tokens


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def opened(root: Path | None = None, *, prefill_chunk_tokens: int = 256) -> Engine:
    return make_engine(
        make_loaded(context_tokens=1024),
        cache_dir=None if root is None else str(root),
        prefill_chunk_tokens=prefill_chunk_tokens,
    )


def idle(engine: Engine) -> None:
    assert engine.flush(WAIT_S)
    engine.check_integrity()


def held(engine: Engine) -> tuple[int, int, int]:
    """Blocks on the device, bytes in RAM, bytes on disk."""
    stats = engine.stats()
    return stats.blocks.total - stats.blocks.free, stats.ram.used_bytes, stats.disk.used_bytes


# --- deleted while it runs --------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [0, 5])
@pytest.mark.parametrize("end", ["finished", "aborted"])
def test_chat_that_is_forgotten_while_it_runs_leaves_nothing(
    tmp_path: Path, num_steps: int, end: str
) -> None:
    engine = opened(tmp_path, prefill_chunk_tokens=16)
    answer(engine, ask(make_tokens(30)))
    idle(engine)
    request_id = engine.add_request(ask(make_tokens(50)))
    for _ in range(num_steps):
        engine.step()
    engine.forget("chat")
    engine.check_integrity()
    assert files(tmp_path) == []
    if end == "aborted":
        engine.step()
        engine.abort(request_id)
    run_until_idle(engine)
    idle(engine)
    assert held(engine) == (0, 0, 0)
    assert files(tmp_path) == []
    again = answer(engine, ask(make_tokens(50)))[-1].metrics
    assert (again.reused_tokens, again.reuse_stop) == (0, None)
    idle(engine)
    assert files(tmp_path)  # the chat is a new one, and kept again
    engine.close()


def test_forgotten_reply_takes_nothing_from_another_chat(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    shared = make_tokens(40)
    mine, other = [*shared, 7, 8, 9], [*shared, 11, 12]
    first = sampled_ids(answer(engine, ask(other, chat="other")))
    request_id = engine.add_request(ask(mine))
    engine.step()
    engine.forget("chat")
    run_until_idle(engine)
    idle(engine)
    outputs = answer(engine, ask(other, chat="other"))
    assert sampled_ids(outputs) == first
    assert outputs[-1].metrics.reused_tokens == len(other) - 1
    assert request_id
    engine.forget("other")
    assert held(engine) == (0, 0, 0)
    engine.close()


# --- steps that fail --------------------------------------------------------------------------


def test_values_of_a_step_with_bad_numbers_are_found_by_nobody(tmp_path: Path) -> None:
    engine, runner = scripted_engine("hello", cache_dir=str(tmp_path), prefill_chunk_tokens=16)
    good_run = runner.run
    bad = [False, False, True]  # in the last of three chunks it is seen

    def run(chunks: Sequence[Chunk]) -> Tensor:
        logits = good_run(chunks)
        return torch.full_like(logits, torch.nan) if bad and bad.pop(0) else logits

    runner.run = run  # type: ignore[method-assign]  # the fake's own method
    outputs = answer(engine, ask(make_tokens(40)))
    assert outputs[-1].finish_reason == "error"
    idle(engine)
    assert held(engine) == (0, 0, 0)
    assert files(tmp_path) == []
    assert answer(engine, ask(make_tokens(40)))[-1].metrics.reused_tokens == 0
    engine.close()


# --- aborted while it loads -------------------------------------------------------------------


def saved(root: Path, request: GenerateRequest) -> list[int]:
    """Let another run of the program answer; the ids of its reply."""
    engine = opened(root)
    ids = sampled_ids(answer(engine, request))
    engine.close()
    return ids


def test_reply_that_is_stopped_while_its_blocks_load_keeps_them_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask(make_tokens(90))
    reply = saved(tmp_path, request)
    gate = gated(monkeypatch, "read")
    engine = opened(tmp_path)
    stopped = engine.add_request(request)
    assert engine.step() == []
    gate.wait_for_somebody()
    engine.abort(stopped)
    again = engine.add_request(request)  # at once, while the loads are broken off
    outputs = engine.step()
    assert [(o.request_id, o.finish_reason) for o in outputs] == [(stopped, "aborted")]
    engine.check_integrity()
    gate.open()
    outputs = run_until_idle(engine)[again]
    assert sampled_ids(outputs) == reply
    assert outputs[-1].metrics.reused_disk_tokens == 89
    idle(engine)
    engine.close()


def test_blocks_of_a_stopped_load_come_back_while_nothing_else_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask(make_tokens(90))
    saved(tmp_path, request)
    gate = gated(monkeypatch, "read")
    engine = opened(tmp_path)
    stopped = engine.add_request(request)
    engine.step()
    gate.wait_for_somebody()
    engine.abort(stopped)
    engine.step()
    engine.check_integrity()
    assert engine.tend()
    assert engine.stats().blocks.used == 12
    gate.open()
    while engine.tend():
        pass
    assert held(engine)[:2] == (0, 0)
    engine.check_integrity()
    engine.close()


@pytest.mark.parametrize("way", ["forget", "clear", "budget"])
def test_what_is_removed_while_it_loads_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    request = ask(make_tokens(90))
    reply = saved(tmp_path, request)
    gate = gated(monkeypatch, "read")
    engine = opened(tmp_path)
    request_id = engine.add_request(request)
    engine.step()
    gate.wait_for_somebody()
    if way == "forget":
        engine.forget("chat")
    elif way == "clear":
        engine.clear_cache()
    else:
        engine.set_cache_budgets(0, 0)
    engine.check_integrity()
    gate.open()
    outputs = run_until_idle(engine)[request_id]
    assert sampled_ids(outputs) == reply
    assert outputs[-1].metrics.reused_tokens == 0
    idle(engine)
    assert bool(files(tmp_path)) == (way == "clear")  # then the turn that ended is kept
    engine.close()


def test_closing_while_blocks_load_leaves_the_files_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask(make_tokens(90))
    reply = saved(tmp_path, request)
    before = {path: path.read_bytes() for path in files(tmp_path)}
    with monkeypatch.context() as patch:
        gate = gated(patch, "read")
        engine = opened(tmp_path)
        engine.add_request(request)
        engine.step()
        gate.wait_for_somebody()
        gate.open()
        engine.close()
        engine.close()
    assert {path: path.read_bytes() for path in files(tmp_path)} == before
    assert saved(tmp_path, request) == reply


# --- two at once ------------------------------------------------------------------------------


def test_two_replies_of_one_chat_at_once_are_those_of_a_cold_engine(tmp_path: Path) -> None:
    prompts = [make_tokens(43), [*make_tokens(43), 9, 9]]
    cold = opened()
    expected = [sampled_ids(answer(cold, ask(p, chat=str(n)))) for n, p in enumerate(prompts)]
    cold.close()
    engine = opened(tmp_path)
    for _ in range(2):
        ids = [engine.add_request(ask(prompt)) for prompt in prompts]
        outputs = run_until_idle(engine)
        assert [sampled_ids(outputs[request_id]) for request_id in ids] == expected
        idle(engine)
    engine.forget("chat")
    assert held(engine) == (0, 0, 0)
    assert files(tmp_path) == []
    engine.close()


class LoadSpy:
    """Counts rows that are brought back from RAM."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ram_rows = 0
        load = Transfers.load

        def counting(transfers: Transfers, loads: Sequence[BlockLoad]) -> Loading:
            sources = [source for each in loads for source in each.sources]
            self.ram_rows += sum(s.end - s.start for s in sources if isinstance(s, RamSource))
            return load(transfers, loads)

        monkeypatch.setattr(Transfers, "load", counting)


def test_two_processes_that_save_one_chat_at_once_leave_the_rows_of_a_cold_engine(
    tmp_path: Path,
) -> None:
    cold, prompt = make_parts(kv_scheme="fp32"), make_tokens(11)
    engine = Engine(cold)
    text = [*prompt, *sampled_ids(answer(engine, ask(prompt, greedy(24))))]
    cache = str(tmp_path)
    window, terminal = (make_engine(cache_dir=cache, kv_scheme="fp32") for _ in range(2))
    terminal.add_request(ask(prompt, greedy(2)))
    terminal.step()
    # Of the second block: rows 0 to 2 and 2 to 6 by the one, and by the other, which began before, 0 to 4.
    for end in (10, 14):
        answer(window, ask(text[:end], greedy(1)))
        idle(window)
    run_until_idle(terminal)
    window.close()
    terminal.close()
    warm = make_parts(cache_dir=cache, kv_scheme="fp32")
    again = Engine(warm)
    outputs = answer(again, ask(text[:15], greedy(20)))
    assert outputs[-1].metrics.reused_disk_tokens == 14
    assert sampled_ids(outputs) == text[15:]
    # Greedy ids may stay the same with some wrong rows.
    found, expected = (p.runner.kv.export_rows(1, 0, 8).view(torch.float32) for p in (warm, cold))
    torch.testing.assert_close(found, expected)
    again.close()
    engine.close()


def test_younger_of_two_with_too_little_memory_is_put_aside_in_ram_and_resumes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 1 MiB holds 2,048 tokens of this model in fp32: both prompts fit, both replies do not.
    prompts = {"old": make_tokens(1000), "young": make_tokens(1000, seed=7)}
    params = greedy(40)
    cold = make_engine(make_loaded(context_tokens=1100), kv_scheme="fp32", ram_cache_bytes=0)
    expected = {
        chat: sampled_ids(answer(cold, ask(prompt, params, chat=chat)))
        for chat, prompt in prompts.items()
    }
    cold.close()
    spy = LoadSpy(monkeypatch)
    engine = make_engine(
        make_loaded(context_tokens=1100),
        kv_scheme="fp32",
        kv_cache_bytes=2**20,
        ram_cache_bytes=2**22,
    )
    assert engine.stats().blocks.total * 8 == 2048
    requests = {
        chat: engine.add_request(ask(prompt, params, chat=chat)) for chat, prompt in prompts.items()
    }
    order: list[RequestId] = []
    outputs: dict[RequestId, list[StepOutput]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
            if output.finish_reason:
                order.append(output.request_id)
    engine.check_integrity()
    stats = engine.stats()
    assert stats.preemptions == 1
    assert order == [requests["old"], requests["young"]]
    for chat, request_id in requests.items():
        assert sampled_ids(outputs[request_id]) == expected[chat]
    # What the older one took of it came back from RAM; the rest was still on the device.
    assert spy.ram_rows >= 8
    assert stats.evictions * 8 >= spy.ram_rows
    # Nothing is told of it as reused: the person's prompt was read once.
    assert outputs[requests["young"]][-1].metrics.reused_tokens == 0
    engine.close()
