"""Our decoder over GGUF files, against the model that was written and against the bridge."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Phi3Config, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from inference.formats.gguf import GgufFile
from inference.model.gguf_decoder import describe_gguf
from inference.model.gguf_models import plan_model
from inference.model.loader import load_model
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import (
    EXTRA,
    TWINS,
    make_twin,
    make_twin_module,
    remake,
    wide_config,
)
from tests.inference.tiny_decoders import ROPES, decoder_from_gguf, make_decoder_runner
from tests.inference.tiny_models import (
    VOCAB_SIZE,
    eager_logits,
    make_runner,
    make_tokens,
    run_chunked,
)

TABLE = list(range(40))


def assert_same_logits(path: Path, module: PreTrainedModel, *, num_tokens: int = 40) -> None:
    tokens = make_tokens(num_tokens)
    decoder = decoder_from_gguf(path)
    logits = run_chunked(make_decoder_runner(decoder), tokens, TABLE, chunk_tokens=7)
    expected = eager_logits(module, tokens)
    ends = [min(low + 7, num_tokens) - 1 for low in range(0, num_tokens, 7)]
    torch.testing.assert_close(logits, expected[ends], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("family", TWINS)
def test_twin_gives_logits_of_the_original(tmp_path: Path, family: str) -> None:
    path = tmp_path / "twin.gguf"
    module = make_twin(family, path)
    assert_same_logits(path, module)


def test_twin_with_biases_and_tied_head_gives_logits_of_the_original(tmp_path: Path) -> None:
    module = remake(wide_config(attention_bias=True, mlp_bias=True, tie_word_embeddings=True))
    assert_same_logits(write_twin(module, tmp_path / "twin.gguf"), module)


def test_twin_with_rope_factors_gives_logits_of_the_original(tmp_path: Path) -> None:
    module = remake(wide_config(rope_parameters=dict(ROPES["llama3"])))
    plain = LlamaRotaryEmbedding(wide_config()).inv_freq
    factors = (plain / module.model.rotary_emb.inv_freq).numpy()
    path = write_twin(module, tmp_path / "t.gguf", extra_tensors={"rope_freqs.weight": factors})
    assert_same_logits(path, module, num_tokens=200)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_twin_with_scaled_rope_gives_logits_of_the_original(tmp_path: Path, kind: str) -> None:
    module = remake(wide_config(rope_parameters=dict(ROPES[kind])))
    extra: dict[str, object] = {
        "llama.rope.scaling.type": kind,
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 128,
    }
    path = write_twin(module, tmp_path / "twin.gguf", extra=extra)
    assert_same_logits(path, module, num_tokens=200)


def test_twin_with_longrope_gives_logits_of_the_original(tmp_path: Path) -> None:
    short, long = np.linspace(1, 1.5, 8), np.linspace(1, 6, 8)
    config = Phi3Config(
        vocab_size=VOCAB_SIZE, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        original_max_position_embeddings=128, pad_token_id=None,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0,
            "short_factor": short.tolist(), "long_factor": long.tolist(), "attention_factor": 1.19,
            "original_max_position_embeddings": 128,
        },
    )  # fmt: skip
    module = remake(config)
    path = write_twin(
        module,
        tmp_path / "twin.gguf",
        extra={
            "phi3.rope.scaling.original_context_length": 128,
            "phi3.rope.scaling.attn_factor": 1.19,
        },
        extra_tensors={
            "rope_factors_long.weight": long.astype(np.float32),
            "rope_factors_short.weight": short.astype(np.float32),
        },
    )
    assert decoder_from_gguf(path).stable_context_tokens == 128
    assert_same_logits(path, module, num_tokens=128)


def test_starter_model_gives_logits_of_the_bridge(starter_model_path: Path) -> None:
    loaded = load_model(starter_model_path, dtype="float32")
    tokens = loaded.tokenizer.encode_text(
        "The capital of France is Paris. Water boils at a hundred degrees, and ice is frozen water. "
        "Once upon a time there lived a king who had three daughters, and the youngest"
    )
    theirs = make_runner(loaded.module, num_blocks=64)
    ours = make_decoder_runner(decoder_from_gguf(starter_model_path), num_blocks=64)
    for chunk_tokens in (len(tokens), 8, 1):
        expected = run_chunked(theirs, tokens, TABLE, chunk_tokens=chunk_tokens)
        actual = run_chunked(ours, tokens, TABLE, chunk_tokens=chunk_tokens)
        torch.testing.assert_close(actual, expected, atol=1e-3, rtol=0)
        assert torch.equal(actual.argmax(1), expected.argmax(1))


def test_queries_grow_without_a_scaling_too(tmp_path: Path) -> None:
    rope = {
        "rope_type": "default", "rope_theta": 20_000.0, "original_max_position_embeddings": 9,
        "llama_4_scaling_beta": 0.3,
    }  # fmt: skip
    module = make_twin_module("mistral3", rope_parameters=rope)
    extra: dict[str, object] = {
        "mistral3.rope.scaling.original_context_length": 9,
        "mistral3.attention.temperature_scale": 0.3,
        "mistral3.attention.sliding_window": 4,  # as files may say that have none
    }
    assert_same_logits(write_twin(module, tmp_path / "twin.gguf", extra=extra), module)


def test_gpt_oss_looks_back_so_far_if_the_file_does_not_say(tmp_path: Path) -> None:
    module = make_twin_module("gpt-oss")
    path = write_twin(
        module,
        tmp_path / "twin.gguf",
        extra=EXTRA["gpt-oss"],
        drop_keys=("gpt-oss.attention.sliding_window",),
    )
    with GgufFile.read(path) as file:
        spec = describe_gguf(plan_model(file), file).spec
    assert [layer.window for layer in spec.layers] == [128, None, 128, None]
