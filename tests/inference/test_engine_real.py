"""The engine with the starter model, against transformers' own code on the same weights."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from inference.config import EngineConfig, SamplingParams
from inference.engine import Engine
from inference.engine_loading import load_parts
from inference.model.loader import LoadedModel, load_model
from inference.request import ChatMessage, GenerateRequest, LoadProgress, StepOutput
from inference.text.prompt import build_prompt
from tests.inference.tiny_engine import run_until_idle, sampled_ids, shown_text

pytestmark = pytest.mark.slow

NUM_TOKENS = 32
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
QUESTION = ChatMessage("user", "Write three sentences about the sea and its colours.")
OTHER = ChatMessage("user", "List five animals that live in a forest.")


@pytest.fixture(scope="module")
def loaded(starter_model_path: Path) -> LoadedModel:
    return load_model(starter_model_path, dtype="float32")


@pytest.fixture(scope="module")
def prompt(loaded: LoadedModel) -> list[int]:
    assert loaded.chat_template is not None
    prompt = build_prompt([QUESTION], template=loaded.chat_template, tokenizer=loaded.tokenizer)
    return list(prompt.token_ids)


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel, prompt: list[int]) -> list[int]:
    """Greedy decoding as transformers does it: its own attention, its own cache.

    The best logit leads by at least 0.02 each time, far more than rounding, so that the ids are the
    same on every machine.
    """
    module = loaded.module
    module.set_attn_implementation("sdpa")  # type: ignore[operator]  # transformers is untyped
    cache = DynamicCache(config=module.config)
    token_ids, new = [], list(prompt)
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            logits = module(torch.tensor([new]), cache=cache, logits_to_keep=1).logits[0, -1]
            best = logits.topk(2)
            assert best.values[0] - best.values[1] > 0.02
            new = [int(best.indices[0])]
            token_ids += new
    return token_ids


def make_engine(loaded: LoadedModel, **config: object) -> Engine:
    values: dict[str, object] = {"context_tokens": 512, "num_threads": 1, **config}
    parts = load_parts(
        Path("starter"),
        EngineConfig(**values),  # type: ignore[arg-type]  # fields of tests, checked by the class
        None,
        load=lambda path, **options: loaded,
    )
    return Engine(parts)


def ask(engine: Engine, prompt: Sequence[int]) -> list[StepOutput]:
    outputs = list(engine.generate(conversation_id="c", prompt_token_ids=prompt, params=GREEDY))
    engine.check_integrity()
    return outputs


@pytest.mark.parametrize("chunk_tokens", [1, 7, 64])
def test_greedy_ids_equal_transformers_cold_and_cached(
    loaded: LoadedModel, prompt: list[int], expected: list[int], chunk_tokens: int
) -> None:
    engine = make_engine(loaded, prefill_chunk_tokens=chunk_tokens)
    cold, cached = ask(engine, prompt), ask(engine, prompt)
    assert sampled_ids(cold) == expected
    assert sampled_ids(cached) == expected
    assert cold[-1].metrics.reused_tokens == 0
    assert cached[-1].metrics.reused_tokens == len(prompt) - 1 > 0


def test_greedy_ids_equal_transformers_beside_another_chat(
    loaded: LoadedModel, prompt: list[int], expected: list[int]
) -> None:
    engine = make_engine(loaded, prefill_chunk_tokens=16)
    other = engine.add_request(GenerateRequest("other", messages=(OTHER,), params=GREEDY))
    for _ in range(5):
        engine.step()
    mine = engine.add_request(GenerateRequest("c", prompt_token_ids=tuple(prompt), params=GREEDY))
    outputs = run_until_idle(engine)
    assert sampled_ids(outputs[mine]) == expected
    assert outputs[other][-1].finish_reason is not None
    engine.check_integrity()


@pytest.mark.parametrize("block_size", [1, 16])
def test_greedy_ids_equal_transformers_for_any_block_size(
    loaded: LoadedModel, prompt: list[int], expected: list[int], block_size: int
) -> None:
    engine = make_engine(loaded, block_size=block_size, attention_backend="blocks")
    assert sampled_ids(ask(engine, prompt)) == expected
    assert sampled_ids(ask(engine, prompt)) == expected


def test_half_precision_blocks_give_the_same_ids_cold_and_cached(
    loaded: LoadedModel, prompt: list[int]
) -> None:
    engine = make_engine(loaded, kv_scheme="fp16", prefill_chunk_tokens=7)
    cold, cached = ask(engine, prompt), ask(engine, prompt)
    assert sampled_ids(cold) == sampled_ids(cached)
    assert (
        engine.stats().block_bytes * 2 == make_engine(loaded, kv_scheme="fp32").stats().block_bytes
    )


def test_engine_opens_the_file_and_chats(starter_model_path: Path) -> None:
    seen: list[LoadProgress] = []
    engine = Engine.load(
        starter_model_path, EngineConfig(context_tokens=256, num_threads=1), on_progress=seen.append
    )
    fractions = [progress.fraction for progress in seen]
    assert all(low <= high for low, high in itertools.pairwise(fractions))
    assert (seen[-1].stage, seen[-1].fraction) == ("Ready", 1.0)
    assert fractions.count(1.0) == 1
    assert engine.info.quantization == "Q4_1"
    assert engine.info.context_tokens == 256
    assert engine.info.model_context_tokens == 8192
    assert engine.info.has_chat_template

    first = ChatMessage("user", "What is the capital of France? Answer in one sentence.")
    outputs = list(engine.generate(conversation_id="c", messages=[first], params=GREEDY))
    assert "Paris" in shown_text(outputs)
    assert outputs[-1].finish_reason == "stop"

    kept = outputs[-1].reply_token_ids
    chat = [
        first,
        ChatMessage("assistant", shown_text(outputs), kept),
        ChatMessage("user", "And of Italy?"),
    ]
    outputs = list(engine.generate(conversation_id="c", messages=chat, params=GREEDY))
    assert "Rome" in shown_text(outputs)
    assert outputs[-1].metrics.reused_tokens >= 32
    engine.close()
