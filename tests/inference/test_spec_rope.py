"""Rotary frequencies of each variant against transformers' own."""

from collections.abc import Mapping

import numpy as np
import pytest
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from inference.model.spec import RopeSpec, UnsupportedSpecError
from inference.model.spec_rope import make_rope, stable_context_tokens

CONTEXT = 2048
_LLAMA3 = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
CASES: dict[str, dict[str, object]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": _LLAMA3,
    "llama3-whole-context": {**_LLAMA3, "original_max_position_embeddings": CONTEXT},
    "yarn": _YARN,
    "yarn-given-factor": {**_YARN, "attention_factor": 1.25},
    "yarn-mscale": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn-one-mscale": {**_YARN, "mscale": 0.7},
    "yarn-betas": {**_YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn-not-truncated": {**_YARN, "truncate": False},
    "yarn-shrinks": {**_YARN, "factor": 1.0},
}


def assert_same(actual: RopeSpec, module: LlamaRotaryEmbedding | Phi3RotaryEmbedding) -> None:
    """Equal but for a unit in the last place or two: torch does not round all its powers well."""
    expected = module.inv_freq.numpy()
    frequencies = np.array(actual.inverse_frequencies, dtype=np.float32)
    assert frequencies.tolist() == list(actual.inverse_frequencies)
    np.testing.assert_array_max_ulp(frequencies, expected, maxulp=2)
    assert (frequencies == expected).mean() > 0.9
    assert actual.factor == pytest.approx(module.attention_scaling, rel=1e-12)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0, 1_000_000.0])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("case", CASES)
def test_frequencies_equal_transformers(case: str, head_dim: int, base: float) -> None:
    parameters = {**CASES[case], "rope_theta": base}
    config = LlamaConfig(
        head_dim=head_dim, max_position_embeddings=CONTEXT, rope_parameters=dict(parameters)
    )
    rope = make_rope(parameters, head_dim=head_dim, context_tokens=CONTEXT)
    assert len(rope.inverse_frequencies) == head_dim // 2
    assert_same(rope, LlamaRotaryEmbedding(config))


@pytest.mark.parametrize("partial", [1.0, 0.75])
@pytest.mark.parametrize(
    "more", [{}, {"attention_factor": 1.19}, {"factor": 1.0}], ids=["derived", "given", "shrinks"]
)
def test_longrope_equals_transformers_up_to_its_original_context(
    more: Mapping[str, object], partial: float
) -> None:
    size = int(64 * partial)
    parameters = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": partial,
        "short_factor": np.linspace(1.0, 1.9, size // 2).tolist(),
        "long_factor": np.linspace(1.0, 30.0, size // 2).tolist(),
        "original_max_position_embeddings": 512,
        **more,
    }
    config = Phi3Config(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=CONTEXT,
        original_max_position_embeddings=512, rope_parameters=dict(parameters),
    )  # fmt: skip
    rope = make_rope(parameters, head_dim=64, context_tokens=CONTEXT)
    assert len(rope.inverse_frequencies) == size // 2
    assert_same(rope, Phi3RotaryEmbedding(config))
    assert stable_context_tokens(parameters, CONTEXT) == 512


def test_stable_context_of_other_variants_has_no_end() -> None:
    for parameters in CASES.values():
        assert stable_context_tokens(parameters, CONTEXT) is None


def test_divisors_divide_the_finished_frequencies() -> None:
    parameters = {"rope_type": "default", "rope_theta": 10_000.0}
    plain = make_rope(parameters, head_dim=8, context_tokens=CONTEXT)
    divided = make_rope(
        parameters, head_dim=8, context_tokens=CONTEXT, divisors=(1.0, 2.0, 4.0, 8.0)
    )
    assert divided.inverse_frequencies == tuple(
        frequency / divisor
        for frequency, divisor in zip(plain.inverse_frequencies, (1, 2, 4, 8), strict=True)
    )


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "linear"},
        {"rope_type": "linear", "factor": 0},
        {"rope_type": "linear", "factor": "2"},
        {"rope_theta": None},
        {"rope_theta": float("nan")},
        {"partial_rotary_factor": 0.01},
        {"partial_rotary_factor": 2.0},
        {"partial_rotary_factor": 0.4},  # an odd number of numbers
        {**_LLAMA3, "low_freq_factor": 4.0},
        {**_YARN, "rope_theta": 1.0},
        {**_YARN, "attention_factor": float("inf")},
        {"rope_type": "longrope", "short_factor": [1.0] * 3, "attention_factor": 1.0},
        {"rope_type": "longrope", "short_factor": [0.0] * 4, "attention_factor": 1.0},
        {"rope_type": "longrope", "short_factor": "1", "attention_factor": 1.0},
        {"rope_type": ["default"]},
    ],
    ids=str,
)
def test_parameters_that_are_unknown_or_cannot_be_are_refused(
    parameters: Mapping[str, object],
) -> None:
    with pytest.raises(UnsupportedSpecError):
        make_rope({"rope_theta": 10_000.0, **parameters}, head_dim=8, context_tokens=CONTEXT)


@pytest.mark.parametrize("divisors", [(1.0,), (1.0, 1.0, 1.0, 0.0), (1.0, 1.0, 1.0, float("nan"))])
def test_divisors_that_cannot_be_are_refused(divisors: tuple[float, ...]) -> None:
    parameters = {"rope_type": "default", "rope_theta": 10_000.0}
    with pytest.raises(UnsupportedSpecError):
        make_rope(parameters, head_dim=8, context_tokens=CONTEXT, divisors=divisors)
