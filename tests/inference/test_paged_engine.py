"""The whole engine over paged kernels and replayed steps: with stand-ins, and on a GPU."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from inference.attention import choice
from inference.engine import Engine
from inference.errors import InvalidRequestError, NotEnoughMemoryError
from inference.model.decoder import TorchDecoder
from inference.model.decoder_weights import read_weights
from inference.model.loader import LoadedModel
from inference.request import StepOutput
from inference.step_pace import usual_step_tokens
from tests.inference.paged_kernels import EmulatedVarlen, Recording, varlen_on_gpu
from tests.inference.scripted_engine import answer, ask, greedy
from tests.inference.tiny_decoders import make_variant, weights_of
from tests.inference.tiny_engine import (
    make_engine,
    make_loaded,
    make_parts,
    run_until_idle,
    sampled_ids,
)
from tests.inference.tiny_models import eager_logits, make_tokens

PROMPT = make_tokens(300)
NEAR = 0.25  # of logits in bf16


def load_variant(variant: str = "qwen3", device: str = "cpu") -> LoadedModel:
    """Our decoder in bf16."""
    weights = weights_of(make_variant(variant, dtype=torch.bfloat16))
    tensors = read_weights(weights, dtype=torch.bfloat16, device=device)
    return replace(make_loaded(), model=TorchDecoder(weights.spec, tensors))


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """Lets the CPU pass for a GPU with kernels and graphs; the captures of all engines."""
    made: list[Recording] = []

    def capture(device: torch.device) -> Recording:
        made.append(Recording())
        return made[-1]

    monkeypatch.setattr(choice, "VarlenKernel", EmulatedVarlen)
    monkeypatch.setattr("inference.model.decoder.cuda_capture", capture)
    return made


def engine_of(loaded: LoadedModel, *, block_size: int | None = None, **config: object) -> Engine:
    """An engine with blocks of the backend's own size."""
    return Engine(make_parts(loaded, block_size=block_size, **{"guess": "off", **config}))


def reply(engine: Engine, prompt: Sequence[int] = PROMPT, count: int = 12) -> list[StepOutput]:
    return answer(engine, ask(prompt, greedy(count)))


def assert_same_up_to_a_near_tie(
    prompt: Sequence[int], first: Sequence[int], second: Sequence[int], variant: str = "qwen3"
) -> None:
    """Replies may part where two tokens were as good, as sums in bf16 depend on their order."""
    assert len(first) == len(second)
    for place, (one, other) in enumerate(zip(first, second, strict=True)):
        if one != other:
            logits = eager_logits(make_variant(variant), [*prompt, *first[:place]])[-1]
            assert abs(float(logits[one] - logits[other])) < NEAR
            assert float(logits.max() - logits[one]) < NEAR
            return


def test_engine_over_pages_replays_decode_steps_and_says_so(recordings: list[Recording]) -> None:
    loaded = load_variant()
    engine = engine_of(loaded)
    assert engine.info.backend == "varlen (CPU), CUDA graphs"
    assert engine.stats().block_size == 256
    ids = sampled_ids(reply(engine))
    assert engine.stats().graph_replays == 11  # the first token comes with the prompt
    assert [recording.num_captures for recording in recordings] == [1]
    eager = engine_of(loaded, cuda_graphs=False)
    assert eager.info.backend == "varlen (CPU)"
    assert sampled_ids(reply(eager)) == ids
    assert eager.stats().graph_replays == 0
    others = engine_of(loaded, attention_backend="reference")
    assert_same_up_to_a_near_tie(PROMPT, ids, sampled_ids(reply(others)))


def test_steps_are_as_long_as_the_attention_bears(
    recordings: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_variant()

    def on_gpu(device_type: str, *, has_paged_kernel: bool) -> int:
        assert device_type == "cpu"
        return usual_step_tokens("cuda", has_paged_kernel=has_paged_kernel)

    def most(**config: Any) -> int:
        engine = engine_of(loaded, **config)
        return engine._parts.scheduler.token_budget

    assert most() == 256
    monkeypatch.setattr("inference.engine_loading.usual_step_tokens", on_gpu)
    assert most() == 2048
    assert most(attention_backend="blocks") == 512
    assert most(prefill_chunk_tokens=48) == 48


def test_engine_over_pages_reuses_what_it_read(recordings: list[Recording]) -> None:
    engine = engine_of(load_variant())
    cold = reply(engine)
    warm = reply(engine)
    assert warm[-1].metrics.reused_tokens == len(PROMPT) - 1
    assert_same_up_to_a_near_tie(PROMPT, sampled_ids(cold), sampled_ids(warm))
    longer = [*PROMPT, *sampled_ids(cold), *make_tokens(9, seed=4)]
    assert reply(engine, longer)[-1].metrics.reused_tokens >= len(PROMPT) + 11
    engine.check_integrity()


def test_chats_beside_each_other_are_replayed_together(recordings: list[Recording]) -> None:
    loaded = load_variant()
    engine = engine_of(loaded)
    prompts = [make_tokens(30 + n, seed=n) for n in range(3)]
    ids = [engine.add_request(ask(p, greedy(8), chat=str(n))) for n, p in enumerate(prompts)]
    outputs = run_until_idle(engine)
    assert engine.stats().graph_replays >= 7
    alone = engine_of(loaded, cuda_graphs=False)
    for request_id, prompt in zip(ids, prompts, strict=True):
        expected = sampled_ids(reply(alone, prompt, 8))
        assert_same_up_to_a_near_tie(prompt, sampled_ids(outputs[request_id]), expected)


def test_spare_block_is_there_only_where_steps_are_replayed(recordings: list[Recording]) -> None:
    loaded = load_variant()

    def sizes(block_size: int | None = None, **config: object) -> tuple[int, int]:
        engine = engine_of(loaded, block_size=block_size, kv_cache_bytes=2**20, **config)
        parts = engine._parts
        kv = parts.runner.kv
        slots = {plane.shape[1] for layer in kv.layers for plane in layer.planes}
        assert len(slots) == 1
        return kv.num_blocks, slots.pop() - kv.num_blocks * kv.block_size

    num_blocks, spare = sizes()
    assert spare == 256
    assert sizes(cuda_graphs=False) == (num_blocks, 0)
    assert sizes(256, attention_backend="blocks") == (num_blocks, 0)


def test_kernel_that_cannot_leaves_the_reason(recordings: list[Recording]) -> None:
    loaded = load_variant()
    engine = engine_of(loaded, kv_scheme="int8")
    assert engine.info.backend == "blocks (CPU)"
    assert engine.stats().block_size == 16
    with pytest.raises(InvalidRequestError) as raised:
        engine_of(loaded, kv_scheme="int8", attention_backend="varlen")
    assert "'varlen' here: it cannot read keys and values stored as int8." in str(raised.value)
    capped = load_variant("gemma2")
    assert engine_of(capped).info.backend == "blocks (CPU)"
    bridged = make_loaded()  # transformers' model, float32
    with pytest.raises(InvalidRequestError, match="does not compute in float32"):
        engine_of(bridged, attention_backend="varlen")


def test_order_of_a_kernel_that_is_not_here_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        make_engine(attention_backend="flash")
    assert raised.value.field == "attention_backend"
    assert "cannot be 'flash' here: it runs on CUDA devices only." in str(raised.value)


def test_memory_for_one_block_less_than_the_budget_is_refused_with_the_spare_one(
    recordings: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_variant()
    block_bytes = engine_of(loaded).stats().block_bytes
    num_blocks = 2**21 // block_bytes
    monkeypatch.setattr("inference.kv_loading.free_bytes", lambda device: num_blocks * block_bytes)
    assert engine_of(loaded, kv_cache_bytes=2**21, cuda_graphs=False).stats().blocks.total > 0
    with pytest.raises(NotEnoughMemoryError):
        engine_of(loaded, kv_cache_bytes=2**21)


def test_bridge_reads_pages_without_graphs(recordings: list[Recording]) -> None:
    module = make_variant("llama", dtype=torch.bfloat16)
    engine = engine_of(replace(make_loaded(), model=module))
    assert engine.info.backend == "varlen (CPU)"
    ids = sampled_ids(reply(engine, PROMPT[:40], 6))
    reference = engine_of(
        replace(make_loaded(), model=make_variant("llama", dtype=torch.bfloat16)),
        attention_backend="reference",
    )
    expected = sampled_ids(reply(reference, PROMPT[:40], 6))
    assert_same_up_to_a_near_tie(PROMPT[:40], ids, expected, variant="llama")


# --- on a GPU ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["qwen3", "gemma3", "llama-wide-heads"])
def test_engine_on_a_gpu_gives_the_ids_of_eager_steps(variant: str) -> None:
    varlen_on_gpu()
    loaded = load_variant(variant, "cuda")
    engine = engine_of(loaded, device="cuda")
    assert engine.info.backend == "varlen (cuda), CUDA graphs"
    cold = sampled_ids(reply(engine, count=40))
    assert engine.stats().graph_replays == 39
    eager = engine_of(loaded, device="cuda", cuda_graphs=False)
    assert sampled_ids(reply(eager, count=40)) == cold
    warm = reply(engine, count=40)
    assert warm[-1].metrics.reused_tokens == len(PROMPT) - 1
    assert_same_up_to_a_near_tie(PROMPT, cold, sampled_ids(warm), variant)
    others = engine_of(loaded, device="cuda", attention_backend="reference")
    assert_same_up_to_a_near_tie(PROMPT, cold, sampled_ids(reply(others, count=40)), variant)


@pytest.mark.gpu
def test_chats_on_a_gpu_beside_each_other_and_over_the_edge_of_a_block() -> None:
    varlen_on_gpu()
    loaded = load_variant(device="cuda")
    engine = engine_of(loaded, device="cuda")
    prompts = [make_tokens(250 + n, seed=n) for n in range(5)]
    ids = [engine.add_request(ask(p, greedy(16), chat=str(n))) for n, p in enumerate(prompts)]
    outputs = run_until_idle(engine)
    engine.check_integrity()
    alone = engine_of(loaded, device="cuda", cuda_graphs=False)
    for request_id, prompt in zip(ids, prompts, strict=True):
        expected = sampled_ids(reply(alone, prompt, 16))
        assert_same_up_to_a_near_tie(prompt, sampled_ids(outputs[request_id]), expected)


@pytest.mark.gpu
def test_rounded_blocks_on_a_gpu_are_walked() -> None:
    varlen_on_gpu()
    engine = engine_of(load_variant(device="cuda"), device="cuda", kv_scheme="int8")
    assert engine.info.backend.startswith("blocks (cuda; not varlen: it cannot read keys and")
    assert len(sampled_ids(reply(engine))) == 12
