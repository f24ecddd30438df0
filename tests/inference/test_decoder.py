"""Our decoder over blocks, against transformers' own eager forward of the same weights."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.config import KvSchemeName
from inference.kv_cache.schemes import LayerGeometry
from inference.model.decoder import TorchDecoder
from inference.model.decoder_weights import read_weights
from inference.model.linear import FastLinear, Linear
from inference.model.spec import BIAS_OF, WeightKey
from inference.model.spec_families import FAMILIES
from inference.model.step import Chunk
from tests.inference.tiny_decoders import (
    VARIANTS,
    decoder_of,
    make_decoder_runner,
    make_variant,
    spec_of,
    weights_of,
)
from tests.inference.tiny_models import (
    VOCAB_SIZE,
    eager_logits,
    fill_with_garbage,
    make_runner,
    make_tokens,
    run_chunked,
)

P = 8  # block size of the runners
PROMPT = make_tokens(4 * P + 5)
TABLE = [5, 6, 7, 9, 2, 1]  # a run of three, then scattered


def last_rows(logits: Tensor, chunk_tokens: int) -> Tensor:
    """The rows of a whole prompt's logits after which a chunk ends."""
    ends = [min(low + chunk_tokens, len(PROMPT)) - 1 for low in range(0, len(PROMPT), chunk_tokens)]
    return logits[ends]


def test_variants_cover_every_family() -> None:
    in_folders = {name for name, family in FAMILIES.items() if not family.has_experts}
    assert {spec_of(make_variant(name)).family for name in VARIANTS} == in_folders


@pytest.mark.parametrize("attention", ["blocks", "reference"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers_cold_and_in_chunks(variant: str, attention: str) -> None:
    module = make_variant(variant)
    expected = eager_logits(module, PROMPT)
    runner = make_decoder_runner(decoder_of(module), attention=attention, block_size=P)
    for chunk_tokens in (1, P - 1, P, P + 1, len(PROMPT)):
        fill_with_garbage(runner.kv)
        logits = run_chunked(runner, PROMPT, TABLE, chunk_tokens=chunk_tokens)
        torch.testing.assert_close(logits, last_rows(expected, chunk_tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers_beside_strangers(variant: str) -> None:
    module = make_variant(variant)
    runner = make_decoder_runner(decoder_of(module), block_size=P)
    prompts = [PROMPT, make_tokens(19, seed=2), make_tokens(2 * P, seed=3), make_tokens(1, seed=4)]
    tables = [TABLE, [10, 12, 13], [20, 19], [30]]
    # One decodes, one is in the middle of its prompt, one comes whole, one has a single token.
    run_chunked(runner, prompts[0][:-1], tables[0], chunk_tokens=64)
    run_chunked(runner, prompts[1][:6], tables[1], chunk_tokens=64)
    starts = [len(PROMPT) - 1, 6, 0, 0]
    logits = runner.run(
        [
            Chunk(prompt[start:], start, table, needs_logits=True)
            for prompt, start, table in zip(prompts, starts, tables, strict=True)
        ]
    )
    expected = torch.stack([eager_logits(module, prompt)[-1] for prompt in prompts])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_logits_of_every_row_and_of_none() -> None:
    module = make_variant("llama")
    runner = make_decoder_runner(decoder_of(module), block_size=P)
    chunk = Chunk(PROMPT, 0, TABLE, needs_logits=True, needs_all_logits=True)
    torch.testing.assert_close(runner.run([chunk]), eager_logits(module, PROMPT), atol=1e-4, rtol=0)
    assert runner.run([Chunk(PROMPT, 0, TABLE, needs_logits=False)]).shape == (0, VOCAB_SIZE)


@pytest.mark.parametrize("kv_scheme", ["fp16", "int8", "int4"])
@pytest.mark.parametrize("variant", ["llama-wide-heads", "gemma3"])
def test_logits_over_rounded_blocks_are_those_of_the_bridge(
    variant: str, kv_scheme: KvSchemeName
) -> None:
    module = make_variant(variant)
    ours = make_decoder_runner(decoder_of(module), block_size=P, kv_scheme=kv_scheme)
    theirs = make_runner(module, block_size=P, kv_scheme=kv_scheme)
    actual, expected = (run_chunked(r, PROMPT, TABLE, chunk_tokens=P + 1) for r in (ours, theirs))
    # A code at the edge of rounding may fall to either side; a head turned wrongly is off by 1.
    rounding = (expected - last_rows(eager_logits(module, PROMPT), P + 1)).abs().max()
    assert (actual - expected).abs().max() < rounding / 2


@pytest.mark.parametrize("variant", ["llama", "gemma2", "gemma3", "gemma4", "olmo2"])
def test_half_precision_is_as_near_to_the_truth_as_transformers(variant: str) -> None:
    truth = eager_logits(make_variant(variant), PROMPT)
    module = make_variant(variant, dtype=torch.bfloat16)
    own_error = (eager_logits(module, PROMPT) - truth).abs().mean()
    decoder = decoder_of(module)
    runner = make_decoder_runner(decoder, block_size=P, kv_scheme="bf16")
    for chunk_tokens in (1, P + 1):
        logits = run_chunked(runner, PROMPT, TABLE, chunk_tokens=chunk_tokens)
        assert logits.dtype == torch.float32
        assert (logits - last_rows(truth, chunk_tokens)).abs().mean() < 1.2 * own_error


def test_attributes_come_from_spec_and_weights() -> None:
    decoder = decoder_of(make_variant("qwen3", dtype=torch.bfloat16))
    assert decoder.geometry == (LayerGeometry(num_kv_heads=2, head_dim=16),) * 4
    assert decoder.vocab_size == VOCAB_SIZE
    assert decoder.dtype == torch.bfloat16
    assert decoder.device == torch.device("cpu")
    assert decoder.stable_context_tokens is None
    assert decoder_of(make_variant("phi3-longrope")).stable_context_tokens == 96


def test_config_text_differs_where_values_would() -> None:
    texts = {decoder_of(make_variant(name)).config_text for name in VARIANTS}
    assert len(texts) == len(VARIANTS)


def test_products_can_be_made_by_others() -> None:
    module = make_variant("llama-biases")
    stored = weights_of(module)
    weights = read_weights(stored, dtype=torch.float32)
    called = []

    def linear_of(key: WeightKey) -> Linear:
        weight = weights.pop(key)
        bias = None if key.layer is None else weights.pop(WeightKey(BIAS_OF[key.role], key.layer))

        def multiply(x: Tensor) -> Tensor:
            called.append(key)
            return torch.nn.functional.linear(x, weight, bias)

        return multiply

    keys = [WeightKey("head"), WeightKey("gate", 1), WeightKey("query", 3)]
    linears = {key: linear_of(key) for key in keys}
    runner = make_decoder_runner(TorchDecoder(stored.spec, weights, linears=linears))
    logits = run_chunked(runner, PROMPT, TABLE, chunk_tokens=P)
    expected = last_rows(eager_logits(module, PROMPT), P)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    assert set(called) == set(keys)


def test_single_rows_are_fast_where_linear_is(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    init = FastLinear.__init__

    def noting(self: FastLinear, linear: torch.nn.Linear) -> None:
        made.append(linear.weight.data_ptr())
        init(self, linear)

    monkeypatch.setattr(FastLinear, "__init__", noting)
    monkeypatch.setattr("inference.model.linear._is_faster_here", lambda: True)
    weights = weights_of(make_variant("llama-tied"))
    tensors = read_weights(weights, dtype=torch.float32)
    TorchDecoder(weights.spec, tensors)
    assert len(made) == 7 * 4 + 1
    assert tensors[WeightKey("embedding")].data_ptr() in made  # the tied head is no copy
    made.clear()
    decoder_of(make_variant("llama", dtype=torch.bfloat16))
    assert made == []


def test_decoder_runs_where_transformers_is_never_imported() -> None:
    code = (
        "import sys\n"
        "import inference.model.decoder, inference.model.decoder_weights\n"
        "import inference.model.spec_configs, inference.model.spec_weights\n"
        "assert 'transformers' not in sys.modules\n"
        "assert 'accelerate' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
