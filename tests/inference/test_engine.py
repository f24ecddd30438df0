"""The engine over tiny models: life of requests, their ends, and that nothing is left behind."""

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from inference.config import SamplingParams
from inference.engine import Engine
from inference.errors import (
    ChatTemplateError,
    ComputeError,
    ContextOverflowError,
    InvalidRequestError,
    NotEnoughMemoryError,
)
from inference.metrics import BlockCounts
from inference.model.runner import Chunk
from inference.request import ChatMessage, GenerateRequest, RequestId, StepOutput
from tests.inference.tiny_engine import (
    EOS_ID,
    make_engine,
    make_loaded,
    make_parts,
    run_until_idle,
    sampled_ids,
    shown_text,
)
from tests.inference.tiny_models import VOCAB_SIZE, eager_logits, make_tokens

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def greedy(max_tokens: int | None = 12, *, stop: Sequence[str] = ()) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, stop=tuple(stop))


def ask(
    prompt: Sequence[int], params: SamplingParams = GREEDY, *, chat: str = "chat"
) -> GenerateRequest:
    return GenerateRequest(chat, prompt_token_ids=tuple(prompt), params=params)


def answer(engine: Engine, request: GenerateRequest) -> list[StepOutput]:
    """All outputs of one request; nothing else may be running."""
    request_id = engine.add_request(request)
    outputs = run_until_idle(engine)
    assert list(outputs) == [request_id]
    engine.check_integrity()
    return outputs[request_id]


def eager_greedy(module: torch.nn.Module, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy decoding with transformers' eager forward over the whole text, again and again."""
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(int(eager_logits(module, token_ids)[-1].argmax()))
    return token_ids[len(prompt) :]


class FakeClock:
    """Time that moves only when told, or by a fixed amount per look."""

    def __init__(self, *, tick: float = 0.0) -> None:
        self.now = 100.0
        self.tick = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


# ---------------------------------------------------------------- what is computed


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3", "gemma2"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_greedy_reply_equals_eager_transformers(family: str, backend: str) -> None:
    loaded = make_loaded(family)
    engine = make_engine(loaded, attention_backend=backend, prefill_chunk_tokens=9)
    prompt = make_tokens(37)
    outputs = answer(engine, ask(prompt))
    assert sampled_ids(outputs) == eager_greedy(loaded.module, prompt, 12)
    assert outputs[-1].finish_reason == "length"


@pytest.mark.parametrize("kv_dtype", ["auto", "float16"])
def test_greedy_reply_is_the_same_cached_chunked_and_in_company(kv_dtype: str) -> None:
    loaded = make_loaded("gemma3")
    prompt = make_tokens(41)
    replies = []
    for chunk_tokens in (1, 7, 64):
        engine = make_engine(loaded, prefill_chunk_tokens=chunk_tokens, kv_dtype=kv_dtype)
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
    assert metrics.reused_tokens == computed // 8 * 8
    assert metrics.reuse_stop == "different_text"


# ---------------------------------------------------------------- how it ends


def eos_engine(position: int) -> tuple[Engine, list[int], list[int]]:
    """An engine that ends a reply with the token that greedy decoding gives at a position."""
    loaded = make_loaded()
    prompt = make_tokens(9)
    reply = eager_greedy(loaded.module, prompt, position + 1)
    assert reply[position] not in reply[:position]
    return make_engine(make_loaded(eos_ids=[reply[position]])), prompt, reply


def test_end_of_turn_token_stops_and_is_not_in_text_or_kept_ids() -> None:
    engine, prompt, reply = eos_engine(3)
    outputs = answer(engine, ask(prompt))
    assert outputs[-1].finish_reason == "stop"
    assert sampled_ids(outputs) == reply
    assert outputs[-1].reply_token_ids == tuple(reply[:3])
    assert outputs[-1].metrics.completion_tokens == 4


def test_joined_text_is_what_the_kept_ids_decode_to() -> None:
    loaded = make_loaded()
    outputs = answer(make_engine(loaded), ask(make_tokens(9), greedy(40)))
    kept = outputs[-1].reply_token_ids
    assert kept == tuple(sampled_ids(outputs))
    assert shown_text(outputs) == loaded.tokenizer.decode(kept)
    assert all(output.reply_token_ids is None for output in outputs[:-1])


class ScriptedRunner:
    """Gives logits that make greedy sampling say a text; or fails when told to."""

    def __init__(self, inner: object, token_ids: Sequence[int] = ()) -> None:
        self.kv = inner.kv  # type: ignore[attr-defined]  # a ModelRunner
        self.calls: list[list[Chunk]] = []
        self.error: Exception | None = None
        self._script = list(token_ids)

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        self.calls.append(list(chunks))
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        rows = [chunk for chunk in chunks if chunk.needs_logits]
        logits = torch.zeros(len(rows), VOCAB_SIZE)
        for row in range(len(rows)):
            logits[row, self._script.pop(0) if self._script else 50] = 9.0
        return logits


def scripted_engine(text: str | bytes, **config: object) -> tuple[Engine, ScriptedRunner]:
    """An engine whose model says exactly this text, one byte per token, then ends."""
    parts = make_parts(make_loaded(eos_ids=[EOS_ID]), **config)
    script = [_id_of(byte) for byte in (text.encode() if isinstance(text, str) else text)]
    runner = ScriptedRunner(parts.runner, [*script, EOS_ID])
    parts.runner = runner  # type: ignore[assignment]  # the seam for fakes
    return Engine(parts), runner


def _id_of(byte: int) -> int:
    from inference.text.vocabulary import BYTE_ALPHABET

    return 4 + [*BYTE_ALPHABET.values()].index(byte)


def test_text_comes_in_whole_characters() -> None:
    engine, _ = scripted_engine("a€👩‍👩‍👧é")
    outputs = answer(engine, ask([5], greedy(None)))
    assert shown_text(outputs) == "a€👩‍👩‍👧é"
    assert not any("\ufffd" in output.text for output in outputs)
    assert outputs[-1].finish_reason == "stop"


def test_stop_string_over_many_tokens_is_never_shown() -> None:
    engine, runner = scripted_engine("Rome is old. END and more")
    outputs = answer(engine, ask([5], greedy(None, stop=["END"])))
    assert shown_text(outputs) == "Rome is old. "
    assert outputs[-1].finish_reason == "stop"
    assert len(runner.calls) == len("Rome is old. END")
    kept = outputs[-1].reply_token_ids
    assert kept == tuple(_id_of(byte) for byte in b"Rome is old. ")


def test_beginning_of_a_stop_string_is_shown_when_it_goes_on_differently() -> None:
    engine, _ = scripted_engine("abcENd")
    outputs = answer(engine, ask([5], greedy(None, stop=["END"])))
    assert [output.text for output in outputs] == ["a", "b", "c", "", "", "ENd", ""]


def test_text_held_back_is_shown_when_the_reply_ends_by_length() -> None:
    engine, _ = scripted_engine("abEN")
    outputs = answer(engine, ask([5], greedy(4, stop=["END"])))
    assert shown_text(outputs) == "abEN"
    assert outputs[-1].finish_reason == "length"


def test_half_a_character_at_the_end_is_not_in_the_kept_ids_of_an_abort() -> None:
    engine, _ = scripted_engine("ab€")
    request_id = engine.add_request(ask([5], greedy(None)))
    shown = [output.text for _ in range(4) for output in engine.step()]
    engine.abort(request_id)
    (last,) = engine.step()
    assert "".join(shown) + last.text == "ab"
    assert last.reply_token_ids == (_id_of(ord("a")), _id_of(ord("b")))


def test_max_tokens_is_cut_to_the_room_in_the_context() -> None:
    engine = make_engine(context_tokens=32)
    outputs = answer(engine, ask(make_tokens(27), greedy(None)))
    assert len(sampled_ids(outputs)) == 5
    assert outputs[-1].finish_reason == "length"


# ---------------------------------------------------------------- what is refused


def test_prompt_that_does_not_fit_is_refused_before_any_work() -> None:
    engine = make_engine(context_tokens=32)
    with pytest.raises(ContextOverflowError) as raised:
        engine.add_request(ask(make_tokens(32)))
    assert (raised.value.prompt_tokens, raised.value.context_tokens) == (32, 32)
    assert not engine.has_work
    assert engine.stats().blocks.used == 0
    assert len(sampled_ids(answer(engine, ask(make_tokens(31), greedy(None))))) == 1


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([VOCAB_SIZE], "0 to 259, not 260"),
        ([5, -1], "not -1"),
        ([2**70], "not 1180591620717411303424"),
        ([], "at least one token"),
    ],
)
def test_prompt_with_bad_ids_is_refused_and_the_engine_goes_on(
    prompt: list[int], message: str
) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequestError, match=message) as raised:
        engine.add_request(ask(prompt))
    assert raised.value.field == "prompt_token_ids"
    assert len(sampled_ids(answer(engine, ask(make_tokens(4))))) == 12


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, "warm"])
def test_bad_sampling_values_are_refused_and_the_engine_goes_on(value: float) -> None:
    engine = make_engine()
    running = engine.add_request(ask(make_tokens(4)))
    engine.step()
    with pytest.raises(InvalidRequestError, match="temperature"):
        SamplingParams(temperature=value)
    assert run_until_idle(engine)[running][-1].finish_reason == "length"


def test_chat_without_a_template_is_refused_and_plain_text_works() -> None:
    engine = make_engine(make_loaded(template=None))
    messages = (ChatMessage("user", "Once upon"),)
    with pytest.raises(ChatTemplateError) as raised:
        engine.add_request(GenerateRequest("c", messages=messages))
    assert "plain text" in raised.value.hint
    assert not engine.has_work
    request = GenerateRequest("c", messages=messages, params=greedy(3), plain_text=True)
    outputs = answer(engine, request)
    assert outputs[-1].metrics.prompt_tokens == 1 + len("Once upon")
    assert not engine.info.has_chat_template


def test_typed_markup_reaches_the_model_as_characters() -> None:
    engine, runner = scripted_engine("ok")
    list(engine.generate(conversation_id="c", messages=[ChatMessage("user", "</s>")]))
    prompt = list(runner.calls[0][0].token_ids)
    typed = [_id_of(byte) for byte in b"</s>"]
    assert EOS_ID not in prompt
    assert typed in [prompt[n : n + 4] for n in range(len(prompt))]


def test_ids_of_an_earlier_reply_outside_the_vocabulary_are_refused() -> None:
    reply = ChatMessage("assistant", "old", token_ids=(7, VOCAB_SIZE))
    chat = (ChatMessage("user", "a"), reply, ChatMessage("user", "b"))
    with pytest.raises(InvalidRequestError, match="not 260") as raised:
        make_engine().add_request(GenerateRequest("c", messages=chat))
    assert raised.value.field == "messages"


# ---------------------------------------------------------------- abort and failure


def test_abort_frees_blocks_at_once_and_reports_in_the_next_step() -> None:
    engine = make_engine(prefill_chunk_tokens=8)
    request_id = engine.add_request(ask(make_tokens(60)))
    engine.step()
    assert engine.stats().blocks.used > 0
    engine.abort(request_id)
    assert engine.stats().blocks.used == 0
    engine.check_integrity()
    (output,) = engine.step()
    assert (output.request_id, output.finish_reason) == (request_id, "aborted")
    assert not engine.has_work


def test_abort_lets_a_new_request_start_in_the_very_next_step() -> None:
    engine = make_engine(prefill_chunk_tokens=8)
    old = engine.add_request(ask(make_tokens(60)))
    engine.step()
    engine.abort(old)
    new = engine.add_request(ask(make_tokens(6, seed=3)))
    outputs = engine.step()
    assert [(out.request_id, out.finish_reason) for out in outputs] == [
        (old, "aborted"),
        (new, None),
    ]
    assert len(outputs[1].token_ids) == 1


def test_abort_keeps_what_was_computed_for_the_next_time() -> None:
    engine = make_engine(prefill_chunk_tokens=8)
    prompt = make_tokens(60)
    request_id = engine.add_request(ask(prompt))
    engine.step()
    engine.step()
    engine.abort(request_id)
    run_until_idle(engine)
    assert answer(engine, ask(prompt))[-1].metrics.reused_tokens == 16


def test_abort_of_a_waiting_request_ends_it_too() -> None:
    engine = make_engine()
    request_id = engine.add_request(ask(make_tokens(5)))
    engine.abort(request_id)
    (output,) = engine.step()
    assert output.finish_reason == "aborted"
    assert output.metrics.completion_tokens == 0
    assert output.reply_token_ids == ()


def test_abort_of_unknown_or_finished_requests_does_nothing() -> None:
    engine = make_engine()
    outputs = answer(engine, ask(make_tokens(4)))
    engine.abort(outputs[0].request_id)
    engine.abort(RequestId(999))
    assert not engine.has_work


@pytest.mark.parametrize("error", [RuntimeError("no memory left"), MemoryError()])
def test_failing_step_ends_its_requests_and_the_engine_goes_on(error: Exception) -> None:
    engine, runner = scripted_engine("hi")
    ids = [engine.add_request(ask(make_tokens(4 + n), chat=str(n))) for n in range(2)]
    runner.error = error
    outputs = engine.step()
    assert [(out.request_id, out.finish_reason) for out in outputs] == [
        (ids[0], "error"),
        (ids[1], "error"),
    ]
    assert all(isinstance(output.error, ComputeError) for output in outputs)
    assert engine.stats().blocks.used == 0
    assert engine.stats().blocks.cached == 0  # nothing half-written can be found again
    assert shown_text(answer(engine, ask(make_tokens(4)))) == "hi"


def test_logits_that_are_not_numbers_end_only_their_own_request() -> None:
    engine, runner = scripted_engine("hello")
    good_run = runner.run

    def run(chunks: Sequence[Chunk]) -> Tensor:
        logits = good_run(chunks)
        if len(chunks) == 2:
            logits[0, 7] = torch.nan
        return logits

    runner.run = run  # type: ignore[method-assign]  # the fake's own method
    first = engine.add_request(ask(make_tokens(4)))
    second = engine.add_request(ask(make_tokens(5), chat="b"))
    outputs = engine.step()
    assert outputs[0].finish_reason == "error"
    assert isinstance(outputs[0].error, ComputeError)
    assert outputs[1].finish_reason is None
    rest = run_until_idle(engine)
    assert list(rest) == [second]
    assert first not in rest
    engine.check_integrity()


# ---------------------------------------------------------------- generate, metrics, close


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
    assert stats.blocks == BlockCounts(total=8, free=6, cached=2, used=0)
    assert (stats.prompt_tokens, stats.reused_tokens, stats.completion_tokens) == (40, 16, 8)
    assert stats.kv_bytes % stats.block_bytes == 0
    assert 3 <= stats.kv_bytes // stats.block_bytes <= 8
    assert (stats.num_running, stats.num_waiting) == (0, 0)


def test_close_gives_the_model_back() -> None:
    loaded = make_loaded()
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


# ---------------------------------------------------------------- memory and context


def test_context_is_bounded_by_the_budget_and_says_so() -> None:
    engine = make_engine(kv_cache_bytes=2**20, block_size=64)
    block_bytes = engine.stats().block_bytes
    assert engine.stats().blocks.total == 2**20 // block_bytes
    assert engine.info.context_tokens == min(512, 2**20 // block_bytes * 64)
    assert engine.info.model_context_tokens == 512


def test_context_of_the_configuration_bounds_the_blocks() -> None:
    engine = make_engine(context_tokens=100)
    assert engine.info.context_tokens == 100
    assert engine.stats().blocks.total == 13


def test_budget_beyond_the_free_memory_is_refused() -> None:
    with pytest.raises(NotEnoughMemoryError) as raised:
        make_engine(kv_cache_bytes=2**50)
    assert raised.value.needed_bytes == 2**50


def test_more_requests_than_blocks_are_all_answered() -> None:
    engine = make_engine(context_tokens=64)
    prompts = [make_tokens(20, seed=n) for n in range(6)]
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
