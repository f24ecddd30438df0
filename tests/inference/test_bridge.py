"""Transformers models over blocks, against their own eager forward; and what is refused."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.llama.modeling_llama import LlamaAttention

from inference.config import KvSchemeName
from inference.errors import ModelFileError, UnsupportedModelError
from inference.kv_cache.schemes import LayerGeometry
from inference.model.bridge import ATTENTION_NAME, TransformersBridge
from inference.model.step import Chunk
from inference.model.verification import TESTED_ARCHITECTURES, verify
from tests.inference.tiny_decoders import make_variant
from tests.inference.tiny_models import (
    VOCAB_SIZE,
    eager_logits,
    fill_with_garbage,
    make_config,
    make_module,
    make_runner,
    make_tokens,
    run_chunked,
)

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "phi3", "granite", "olmo2", "gemma2", "gemma3"]
P = 8  # block size of the runners
PROMPT = make_tokens(3 * P + 5)
TABLE = [5, 6, 7, 9, 2, 1]  # a run of three, then scattered


def last_rows(logits: Tensor, chunk_tokens: int) -> Tensor:
    """The rows of a whole prompt's logits after which a chunk ends."""
    ends = [min(low + chunk_tokens, len(PROMPT)) - 1 for low in range(0, len(PROMPT), chunk_tokens)]
    return logits[ends]


def test_families_tested_are_the_ones_taken_at_their_word() -> None:
    assert set(FAMILIES) == TESTED_ARCHITECTURES


@pytest.mark.parametrize("attention", ["blocks", "reference"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_eager_cold_and_in_chunks(family: str, attention: str) -> None:
    module = make_module(family)
    expected = eager_logits(module, PROMPT)
    runner = make_runner(module, attention=attention, block_size=P)
    for chunk_tokens in (1, P - 1, P, P + 1, len(PROMPT)):
        fill_with_garbage(runner.kv)
        logits = run_chunked(runner, PROMPT, TABLE, chunk_tokens=chunk_tokens)
        torch.testing.assert_close(logits, last_rows(expected, chunk_tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("attention", ["blocks", "reference"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_eager_after_a_shared_prefix(family: str, attention: str) -> None:
    module = make_module(family)
    runner = make_runner(module, attention=attention, block_size=P)
    run_chunked(runner, PROMPT[: 2 * P], TABLE, chunk_tokens=P)
    other = PROMPT[: 2 * P] + make_tokens(7, seed=9)
    logits = run_chunked(runner, other, [*TABLE[:2], 20], chunk_tokens=7, start=2 * P)
    torch.testing.assert_close(logits[-1], eager_logits(module, other)[-1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("attention", ["blocks", "reference"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_eager_beside_strangers(family: str, attention: str) -> None:
    module = make_module(family)
    runner = make_runner(module, attention=attention, block_size=P)
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


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_logits_in_half_precision_blocks_do_not_depend_on_the_chunks(family: str) -> None:
    module = make_module(family)
    rows = []
    for chunk_tokens in (1, P - 1, P, P + 1, len(PROMPT)):
        runner = make_runner(module, block_size=P, kv_scheme="fp16")
        rows.append(run_chunked(runner, PROMPT, TABLE, chunk_tokens=chunk_tokens)[-1])
    torch.testing.assert_close(torch.stack(rows), rows[0].expand(5, -1), atol=1e-4, rtol=0)
    expected = eager_logits(module, PROMPT)[-1]
    assert 1e-6 < (rows[0] - expected).abs().max() < 5e-3  # rounded, and only that


def test_geometry_and_vocabulary_come_from_the_model_itself() -> None:
    bridge = TransformersBridge(make_module("qwen3", dtype=torch.bfloat16), Path("tiny"))
    assert bridge.geometry == (LayerGeometry(num_kv_heads=2, head_dim=16),) * 4
    assert bridge.vocab_size == VOCAB_SIZE
    assert bridge.dtype == torch.bfloat16
    assert bridge.stable_context_tokens is None


def test_attention_sinks_are_refused() -> None:
    config = GptOssConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_local_experts=2,
        num_experts_per_tok=1,
        pad_token_id=0,
    )
    module = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(UnsupportedModelError, match="cannot run with another cache") as raised:
        TransformersBridge(module, Path("sinks.gguf"))
    assert raised.value.path == Path("sinks.gguf")


def test_recurrent_layers_are_refused() -> None:
    config = MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4)
    module = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(UnsupportedModelError):
        TransformersBridge(module, Path("mamba"))


def test_layers_without_keys_of_their_own_are_refused() -> None:
    module = make_variant("gemma4")
    for model_type, hint in [("gemma4_text", "GGUF file of this"), ("gemma3n_text", "another")]:
        module.config.model_type = model_type
        with pytest.raises(UnsupportedModelError, match="keys and values of others") as raised:
            TransformersBridge(module, Path("model"))
        assert hint in raised.value.hint


def test_attention_to_later_tokens_is_refused() -> None:
    module = make_module("llama")
    for layer in module.model.layers:
        layer.self_attn.is_causal = False
    with pytest.raises(UnsupportedModelError):
        TransformersBridge(module, Path("encoder"))


def test_window_of_the_code_unlike_the_configuration_is_refused() -> None:
    module = make_module("gemma3")
    module.model.layers[1].self_attn.sliding_window = 5
    with pytest.raises(UnsupportedModelError, match="Layer 1 has the window None"):
        TransformersBridge(module, Path("odd"))


def test_context_ends_where_rotary_angles_would_change() -> None:
    config = make_config("phi3")
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    config = Phi3Config(
        **{
            **config.to_diff_dict(),
            "original_max_position_embeddings": 96,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "original_max_position_embeddings": 96,
                **factors,
            },
        }
    )
    module = AutoModelForCausalLM.from_config(config).eval()
    assert TransformersBridge(module, Path("long")).stable_context_tokens == 96


def assert_runs_like_eager(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(2)
    module = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.2)
    runner = make_runner(module, block_size=P)
    logits = run_chunked(runner, PROMPT, TABLE, chunk_tokens=P + 1)
    expected = last_rows(eager_logits(module, PROMPT), P + 1)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    return module


def test_layer_that_hands_on_no_arguments_is_known_by_what_it_stored_last() -> None:
    """GPT-NeoX: its cache is told the layer alone."""
    config = GPTNeoXConfig(
        vocab_size=VOCAB_SIZE, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
        num_attention_heads=6, max_position_embeddings=512, pad_token_id=0,
    )  # fmt: skip
    module = assert_runs_like_eager(config)
    # What was stored last serves one attention, not a layer that stores nothing.
    query = torch.zeros(1, 6, 1, 8)
    with pytest.raises(ValueError, match="without having stored keys"):
        AttentionInterface()[ATTENTION_NAME](module, query, query, query, None)


def test_result_of_attention_may_be_viewed_otherwise() -> None:
    """AFMoE takes it apart by `view`, which needs it in one piece."""
    config = AutoConfig.for_model(
        "afmoe", vocab_size=VOCAB_SIZE, hidden_size=48, intermediate_size=80, num_hidden_layers=4,
        num_dense_layers=1, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
        moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, sliding_window=64,
        max_position_embeddings=512, pad_token_id=0,
    )  # fmt: skip
    assert_runs_like_eager(config)


class OddAttention(nn.Module):
    """Scales its scores as its configuration does not say, but only with the eager attention."""

    def __init__(self, inner: LlamaAttention) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: object, **kwargs: object) -> object:
        attention: LlamaAttention = self.inner
        is_eager = attention.config._attn_implementation == "eager"
        attention.scaling = 0.05 if is_eager else 0.5
        return attention(*args, **kwargs)


def make_odd_module() -> PreTrainedModel:
    module = make_module("llama")
    for layer in module.model.layers:
        layer.self_attn = OddAttention(layer.self_attn)
    return module


def test_untested_architecture_that_agrees_is_accepted() -> None:
    module = make_module("llama")
    runner = make_runner(module)
    bridge = TransformersBridge(module, Path("new"))
    verify("brand_new", bridge, runner, Path("new"))
    assert module.config._attn_implementation == "quire"


def test_untested_architecture_that_differs_is_refused() -> None:
    module = make_odd_module()
    runner = make_runner(module)
    bridge = TransformersBridge(module, Path("odd"))
    with pytest.raises(UnsupportedModelError, match=r"brand_new.*differently"):
        verify("brand_new", bridge, runner, Path("odd"))


def test_untested_architecture_whose_code_fails_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_module("llama")
    runner = make_runner(module)
    bridge = TransformersBridge(module, Path("odd"))

    def run_out(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("view size is not compatible\nwith more")

    monkeypatch.setattr(type(module.model.layers[2].mlp), "forward", fail)
    with pytest.raises(UnsupportedModelError, match=r"brand_new.*over blocks: view size.*ible\.$"):
        verify("brand_new", bridge, runner, Path("odd"))
    # Memory that ran out says nothing of the model.
    monkeypatch.setattr(type(module.model.layers[2].mlp), "forward", run_out)
    with pytest.raises(torch.OutOfMemoryError):
        verify("brand_new", bridge, runner, Path("odd"))


def test_untested_architecture_with_weights_that_are_not_numbers_may_be_damaged() -> None:
    module = make_module("llama")
    with torch.no_grad():
        next(module.parameters()).fill_(math.nan)
    bridge = TransformersBridge(module, Path("bad"))
    with pytest.raises(ModelFileError, match="not numbers") as raised:
        verify("brand_new", bridge, make_runner(module), Path("bad"))
    assert "may be damaged" in raised.value.hint


def make_module_with_images() -> PreTrainedModel:
    """As Gemma 3 is published: a language model beside one that sees."""
    sight = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
             "num_attention_heads": 2, "image_size": 28, "patch_size": 14}  # fmt: skip
    torch.manual_seed(3)
    config = Gemma3Config(text_config=make_config("gemma3").to_dict(), vision_config=sight)
    return Gemma3ForConditionalGeneration(config).eval()


@pytest.mark.parametrize("chunk_tokens", [1, 7, 40])
def test_language_model_beside_one_for_images_answers_text(chunk_tokens: int) -> None:
    module = make_module_with_images()
    expected = eager_logits(module, PROMPT)
    logits = run_chunked(make_runner(module), PROMPT, TABLE, chunk_tokens=chunk_tokens)
    torch.testing.assert_close(logits, last_rows(expected, chunk_tokens), atol=1e-4, rtol=0)


def test_another_model_in_the_process_keeps_its_own_attention() -> None:
    ours, theirs = make_module("llama"), make_module("llama", seed=1)
    TransformersBridge(ours, Path("ours"))
    assert theirs.config._attn_implementation != "quire"
    assert isinstance(theirs.config, LlamaConfig)
    with torch.inference_mode():
        assert theirs(torch.tensor([PROMPT])).logits.shape == (1, len(PROMPT), VOCAB_SIZE)


@pytest.mark.parametrize("kv_scheme", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_half_precision_model_is_as_near_to_the_truth_as_its_own_code(
    family: str, kv_scheme: KvSchemeName
) -> None:
    truth = eager_logits(make_module(family), PROMPT)
    module = make_module(family, dtype=torch.bfloat16)
    own_error = (eager_logits(module, PROMPT) - truth).abs().mean()
    runner = make_runner(module, block_size=P, kv_scheme=kv_scheme)
    for chunk_tokens in (1, P + 1):
        logits = run_chunked(runner, PROMPT, TABLE, chunk_tokens=chunk_tokens)
        assert (logits - last_rows(truth, chunk_tokens)).abs().mean() < 1.5 * own_error
