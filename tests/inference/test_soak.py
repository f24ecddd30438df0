"""Many short lives: after 500 starts and aborts the engine is where it began."""

import gc
import random
from pathlib import Path

import psutil
import pytest

from inference.config import SamplingParams
from inference.engine import Engine
from inference.request import GenerateRequest
from tests.inference.tiny_engine import make_engine, make_loaded, run_until_idle, sampled_ids
from tests.inference.tiny_models import make_tokens

CYCLES = 500
MAX_GROWTH_BYTES = 16 * 2**20


def run_cycle(engine: Engine, number: int, dice: random.Random) -> None:
    """Start one to three chats, go on for a few steps, abort some in a random order."""
    ids = []
    for n in range(dice.randint(1, 3)):
        prompt = make_tokens(dice.randint(1, 90), seed=dice.randint(0, 7))
        params = SamplingParams(max_tokens=dice.randint(1, 6), seed=number)
        request = GenerateRequest(f"{number} {n}", prompt_token_ids=tuple(prompt), params=params)
        ids.append(engine.add_request(request))
    finished = set()
    for _ in range(dice.randint(0, 4)):
        finished |= {out.request_id for out in engine.step() if out.finish_reason is not None}
        engine.check_integrity()
    dice.shuffle(ids)
    aborted = ids if number % 2 else ids[:1]
    for request_id in aborted:
        engine.abort(request_id)
    outputs = run_until_idle(engine)
    for request_id in ids:
        if request_id not in finished:
            reasons = [out.finish_reason for out in outputs[request_id] if out.finish_reason]
            assert reasons == (["aborted"] if request_id in aborted else ["length"])


@pytest.mark.slow
def test_soak_of_starts_and_aborts_ends_where_it_began() -> None:
    engine = make_engine(context_tokens=256, prefill_chunk_tokens=16)
    dice = random.Random(1)
    process = psutil.Process()
    for number in range(100):  # everything that is allocated once is allocated now
        run_cycle(engine, number, dice)
    gc.collect()
    before_bytes, before = process.memory_info().rss, engine.stats()
    for number in range(CYCLES):
        run_cycle(engine, number, dice)
        assert engine.stats().blocks.used == 0
    engine.check_integrity()
    gc.collect()
    after = engine.stats()
    assert not engine.has_work
    assert (after.num_running, after.num_waiting) == (0, 0)
    assert after.blocks.free + after.blocks.cached == after.blocks.total == before.blocks.total
    assert after.kv_bytes <= after.blocks.total * after.block_bytes
    assert process.memory_info().rss - before_bytes < MAX_GROWTH_BYTES


TURNS = 2_000
NUM_CHATS = 40


@pytest.mark.slow
def test_two_thousand_turns_of_forty_chats_leave_nothing_once_the_chats_are_gone(
    tmp_path: Path,
) -> None:
    engine = make_engine(make_loaded(context_tokens=256), cache_dir=str(tmp_path))
    process, dice = psutil.Process(), random.Random(2)
    chats: list[list[int]] = [[] for _ in range(NUM_CHATS)]
    before_bytes = 0
    for number in range(TURNS):
        if number == TURNS // 4:  # all that is allocated once is allocated now
            gc.collect()
            before_bytes = process.memory_info().rss
        chat = dice.randrange(NUM_CHATS)
        if len(chats[chat]) > 200:
            engine.forget(f"chat {chat}")
            chats[chat] = []
        chats[chat] += make_tokens(dice.randint(1, 12), seed=number)
        params = SamplingParams(temperature=0.0, max_tokens=1)
        prompt = tuple(chats[chat])
        engine.add_request(GenerateRequest(f"chat {chat}", prompt_token_ids=prompt, params=params))
        for outputs in run_until_idle(engine).values():
            chats[chat] += sampled_ids(outputs)
    assert engine.flush()
    engine.check_integrity()
    gc.collect()
    assert process.memory_info().rss - before_bytes < MAX_GROWTH_BYTES
    for chat in range(NUM_CHATS):
        engine.forget(f"chat {chat}")
    engine.check_integrity()
    stats = engine.stats()
    assert (stats.blocks.used, stats.blocks.cached) == (0, 0)
    assert (stats.ram.used_bytes, stats.disk.used_bytes, stats.kv_bytes) == (0, 0, 0)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    engine.close()
