"""The engine over tiny models: what it computes, what it counts, what it remembers."""

import gc
import weakref

import pytest

from inference.config import SamplingParams
from inference.errors import (
    NotEnoughMemoryError,
)
from inference.metrics import BlockCounts
from inference.request import ChatMessage, RequestId
from tests.inference.scripted_engine import (
    GREEDY,
    FakeClock,
    answer,
    ask,
    eager_greedy,
    greedy,
)
from tests.inference.tiny_engine import (
    make_engine,
    make_loaded,
    run_until_idle,
    sampled_ids,
    shown_text,
)
from tests.inference.tiny_models import make_tokens


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3", "gemma2"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_greedy_reply_equals_eager_transformers(family: str, backend: str) -> None:
    loaded = make_loaded(family)
    engine = make_engine(loaded, attention_backend=backend, prefill_chunk_tokens=9)
    prompt = make_tokens(37)
    outputs = answer(engine, ask(prompt))
    assert sampled_ids(outputs) == eager_greedy(loaded.module, prompt, 12)
    assert outputs[-1].finish_reason == "length"


@pytest.mark.parametrize("kv_scheme", ["auto", "fp16"])
def test_greedy_reply_is_the_same_cached_chunked_and_in_company(kv_scheme: str) -> None:
    loaded = make_loaded("gemma3")
    prompt = make_tokens(41)
    replies = []
    for chunk_tokens in (1, 7, 64):
        engine = make_engine(loaded, prefill_chunk_tokens=chunk_tokens, kv_scheme=kv_scheme)
        cold = answer(engine, ask(prompt))
        cached = answer(engine, ask(prompt))
        assert (cold[-1].metrics.reused_tokens, cached[-1].metrics.reused_tokens) == (0, 40)
        stranger = engine.add_request(ask(make_tokens(23, seed=5), chat="other"))
        engine.step()
        mine = engine.add_request(ask([*prompt[:17], *prompt[17:]]))
        together = run_until_idle(engine)
        assert set(together) == {stranger, mine}
        replies += [sampled_ids(cold), sampled_ids(cached), sampled_ids(together[mine])]
    assert all(reply == replies[0] for reply in replies)


def test_two_chats_advance_in_one_step() -> None:
    engine = make_engine()
    ids = [engine.add_request(ask(make_tokens(5 + n, seed=n), chat=str(n))) for n in range(2)]
    outputs = engine.step()
    assert [output.request_id for output in outputs] == ids
    assert all(len(output.token_ids) == 1 for output in outputs)


def test_prefill_goes_in_chunks_and_says_how_far_it_is() -> None:
    engine = make_engine(prefill_chunk_tokens=10)
    outputs = answer(engine, ask(make_tokens(25), greedy(2)))
    assert [output.prefilled_tokens for output in outputs] == [10, 20, 25, 25]
    assert [len(output.token_ids) for output in outputs] == [0, 0, 1, 1]


def test_next_turn_reuses_the_blocks_of_the_turn_before() -> None:
    engine = make_engine()
    question = ChatMessage("user", "Tell me about blocks.")
    first = list(engine.generate(conversation_id="c", messages=[question], params=greedy(20)))
    reply = ChatMessage("assistant", shown_text(first), first[-1].reply_token_ids)
    chat = [question, reply, ChatMessage("user", "And more?")]
    second = list(engine.generate(conversation_id="c", messages=chat, params=greedy(3)))
    computed = first[0].metrics.prompt_tokens + 19  # the last one sampled is never computed
    metrics = second[-1].metrics
    assert metrics.reused_tokens == computed


def test_generate_closed_early_aborts_its_request() -> None:
    engine = make_engine()
    outputs = engine.generate(conversation_id="c", prompt_token_ids=make_tokens(5), params=GREEDY)
    next(outputs)
    assert engine.stats().num_running == 1
    outputs.close()  # type: ignore[attr-defined]  # it is a generator
    assert not engine.has_work
    engine.check_integrity()


def test_generate_keeps_the_outputs_of_others_for_step() -> None:
    engine = make_engine()
    other = engine.add_request(ask(make_tokens(6, seed=2), greedy(3), chat="other"))
    mine = list(
        engine.generate(conversation_id="c", prompt_token_ids=make_tokens(5), params=greedy(6))
    )
    assert {output.request_id for output in mine} == {RequestId(other + 1)}
    assert engine.has_work
    held = engine.step()
    assert [output.request_id for output in held] == [other] * 3
    assert held[-1].finish_reason == "length"
    assert not engine.has_work


def test_two_generators_may_take_turns() -> None:
    engine = make_engine()
    one = engine.generate(conversation_id="a", prompt_token_ids=make_tokens(5), params=greedy(5))
    two = engine.generate(
        conversation_id="b", prompt_token_ids=make_tokens(7, seed=2), params=greedy(5)
    )
    turns = [next(each) for _ in range(5) for each in (one, two)]
    assert [output.request_id for output in turns] == [1, 2] * 5
    assert list(one) == list(two) == []


def test_metrics_follow_the_clock() -> None:
    clock = FakeClock()
    engine = make_engine(clock=clock, prefill_chunk_tokens=4)
    request_id = engine.add_request(ask(make_tokens(8), greedy(3)))
    clock.now += 1.0  # waits a second
    clock.tick = 0.125  # from here on each look at the clock takes an eighth of a second
    outputs = run_until_idle(engine)[request_id]
    metrics = outputs[-1].metrics
    assert metrics.queue_ms == 1125.0
    assert metrics.prefill_ms == 250.0  # two steps of one tick between their two looks
    assert metrics.ttft_ms == 1500.0
    assert metrics.decode_ms == 500.0
    assert metrics.e2e_ms == 2000.0
    assert metrics.decode_tps == 4.0
    assert outputs[0].metrics.ttft_ms is None


def test_metrics_record_the_seed_and_a_given_seed_repeats() -> None:
    engine = make_engine()
    free = answer(engine, ask(make_tokens(5), SamplingParams(temperature=1.0, max_tokens=8)))
    seed = free[-1].metrics.seed
    assert seed is not None
    again = SamplingParams(temperature=1.0, max_tokens=8, seed=seed)
    assert sampled_ids(answer(engine, ask(make_tokens(5), again))) == sampled_ids(free)
    assert answer(engine, ask(make_tokens(5)))[-1].metrics.seed is None


def test_stats_count_blocks_and_tokens() -> None:
    engine = make_engine(context_tokens=64)
    prompt = make_tokens(20)
    answer(engine, ask(prompt, greedy(4)))
    answer(engine, ask(prompt, greedy(4)))
    stats = engine.stats()
    assert stats.blocks == BlockCounts(total=64, free=61, cached=3, used=0)
    assert (stats.prompt_tokens, stats.reused_tokens, stats.completion_tokens) == (40, 19, 8)
    assert stats.kv_bytes % stats.block_bytes == 0
    assert 3 <= stats.kv_bytes // stats.block_bytes <= 4
    assert (stats.num_running, stats.num_waiting) == (0, 0)


def test_close_gives_the_model_back() -> None:
    loaded = make_loaded()
    loaded.module.__dict__["owners"] = [loaded.module]  # some models refer to themselves
    module = weakref.ref(loaded.module)
    engine = make_engine(loaded)
    engine.add_request(ask(make_tokens(5)))
    engine.step()
    del loaded
    gc.disable()  # close itself must do it
    try:
        engine.close()
        assert module() is None
    finally:
        gc.enable()
    engine.close()


def test_context_is_bounded_by_the_budget_and_says_so() -> None:
    engine = make_engine(kv_cache_bytes=2**20, block_size=64)
    block_bytes = engine.stats().block_bytes
    assert engine.stats().blocks.total == 2**20 // block_bytes
    assert engine.info.context_tokens == min(512, 2**20 // block_bytes * 64)
    assert engine.info.model_context_tokens == 512


def test_there_are_blocks_for_eight_contexts_of_the_configuration() -> None:
    engine = make_engine(context_tokens=100)
    assert engine.info.context_tokens == 100
    assert engine.stats().blocks.total == 8 * 13


def test_budget_beyond_the_free_memory_is_refused() -> None:
    with pytest.raises(NotEnoughMemoryError) as raised:
        make_engine(kv_cache_bytes=2**50)
    assert raised.value.needed_bytes == 2**50


def test_more_requests_than_blocks_are_all_answered() -> None:
    engine = make_engine(context_tokens=64)
    prompts = [make_tokens(20, seed=n) for n in range(14)]  # 700 tokens; 512 fit
    ids = [engine.add_request(ask(p, greedy(30), chat=str(n))) for n, p in enumerate(prompts)]
    outputs = run_until_idle(engine)
    alone = make_engine(context_tokens=64)
    for request_id, prompt in zip(ids, prompts, strict=True):
        expected = sampled_ids(answer(alone, ask(prompt, greedy(30))))
        assert sampled_ids(outputs[request_id]) == expected
    assert engine.stats().preemptions > 0
    engine.check_integrity()


def test_backend_is_named_with_its_reason() -> None:
    assert make_engine().info.backend == "blocks (CPU)"
    reference = make_engine(attention_backend="reference")
    assert reference.info.backend == "reference (CPU, chosen in the configuration)"


def test_fingerprint_is_the_models_own() -> None:
    fingerprint = make_engine(make_loaded("llama")).info.fingerprint
    assert fingerprint == make_engine(make_loaded("llama")).info.fingerprint
    assert fingerprint != make_engine(make_loaded("llama", seed=1)).info.fingerprint
    assert len(fingerprint) == 32
