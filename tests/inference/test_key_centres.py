"""What is common to all keys is not stored: the vector itself, and what that is good for."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from inference.model.decoder import TorchDecoder
from inference.model.decoder_weights import read_weights
from inference.model.key_centres import key_centres
from inference.model.spec import LayerSpec, ModelSpec, RopeSpec, WeightKey
from tests.inference.tiny_decoders import make_decoder_runner, make_variant, spec_of, weights_of
from tests.inference.tiny_models import eager_logits, run_chunked

P = 8
PROMPT = [(7 * n + 3) % 90 for n in range(60)]


def qwen_like(*, context_tokens: int = 512) -> ModelSpec:
    """Two layers, one head of six numbers: a pair that stands still, one that turns, two upright."""
    spec = spec_of(make_variant("qwen2"))
    quarter_turn = math.pi / 2
    return dataclasses.replace(
        spec,
        num_kv_heads=1,
        head_dim=6,
        layers=(LayerSpec(rope_index=0), LayerSpec(rope_index=1)),
        ropes=(RopeSpec((0.0, quarter_turn)), RopeSpec((0.0, quarter_turn), factor=2.0)),
        context_tokens=context_tokens,
    )


def test_centre_is_the_bias_where_pairs_stand_still_and_nothing_where_they_turn() -> None:
    bias = torch.tensor([100.0, 10.0, 30.0, 20.0, 7.0, 8.0])
    weights = {WeightKey("key_bias", layer): bias for layer in (0, 1)}
    first, second = key_centres(qwen_like(), weights)
    assert first is not None
    assert second is not None
    # Pairs are (0, 2) and (1, 3); over whole turns a pair's mean is nothing.
    np.testing.assert_allclose(first, [[100.0, 0.0, 30.0, 0.0, 7.0, 8.0]], atol=1e-4)
    np.testing.assert_allclose(second, [[200.0, 0.0, 60.0, 0.0, 7.0, 8.0]], atol=1e-4)
    assert first.dtype == np.float32


def test_centre_is_taken_over_the_context_that_a_model_has() -> None:
    weights = {WeightKey("key_bias", 0): torch.tensor([0.0, 10.0, 0.0, 20.0, 0.0, 0.0])}
    (first, _) = key_centres(qwen_like(context_tokens=2), weights)
    # Turned by 0 and by a quarter: (10, 20) and (-20, 10).
    assert first is not None
    np.testing.assert_allclose(first, [[0.0, -5.0, 0.0, 15.0, 0.0, 0.0]], atol=1e-5)


def test_no_centre_where_attention_or_norms_would_notice_or_nothing_is_known() -> None:
    spec, bias = qwen_like(), {WeightKey("key_bias", 0): torch.ones(6)}
    for other in (
        dataclasses.replace(spec, attention_softcap=5.0),
        dataclasses.replace(spec, query_key_norm="head"),
        dataclasses.replace(spec, query_key_norm="whole"),
        dataclasses.replace(spec, layer_roles=(*spec.layer_roles, "sinks")),
    ):
        assert key_centres(other, bias) == (None, None)
    assert key_centres(spec, {}) == (None, None)
    centres = key_centres(spec, bias)
    assert centres[0] is not None
    assert centres[1] is None


def test_int8_bears_large_key_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_variant("qwen2")
    with torch.no_grad():
        for layer in module.model.layers:
            layer.self_attn.k_proj.bias.view(2, 8)[:, [3, 7]] += 100.0  # the slowest pair
    truth = eager_logits(module, PROMPT)

    def worst_error() -> float:
        weights = weights_of(module)
        decoder = TorchDecoder(weights.spec, read_weights(weights, dtype=torch.float32))
        runner = make_decoder_runner(decoder, block_size=P, kv_scheme="int8")
        logits = run_chunked(runner, PROMPT, range(10), chunk_tokens=len(PROMPT))
        return float((logits[-1] - truth[-1]).abs().max())

    centred = worst_error()
    monkeypatch.setattr("inference.model.decoder.key_centres", lambda spec, _: (None,) * 4)
    assert centred < worst_error() / 4
