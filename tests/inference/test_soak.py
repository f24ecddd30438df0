"""Many short lives: after 500 starts and aborts the engine is where it began."""

import gc
import random

import psutil
import pytest

from inference.config import SamplingParams
from inference.engine import Engine
from inference.request import GenerateRequest
from tests.inference.tiny_engine import make_engine, run_until_idle
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
