"""Bounds of every field of the engine's configuration and of sampling, and how they are refused."""

import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.config import (
    MAX_SEED,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    EngineConfig,
    SamplingParams,
)
from inference.errors import InvalidRequestError

HUGE = 10**5000  # more digits than Python writes, and no float

FLOATS: dict[str, tuple[Any, Any]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
INTS: dict[str, tuple[Any, Any]] = {
    "top_k": (0, 2**31 - 1),
    "seed": (0, MAX_SEED),
    "max_tokens": (1, 2**63 - 1),
}
ENGINE_INTS = {
    "context_tokens": (2, 2**63 - 1),
    "kv_cache_bytes": (2**20, 2**63 - 1),
    "ram_cache_bytes": (0, 2**63 - 1),
    "disk_cache_bytes": (0, 2**63 - 1),
    "prefill_chunk_tokens": (1, 65_536),
    "num_threads": (1, 1024),
    "draft_tokens": (1, 16),
}
CHOICES: dict[str, list[Any]] = {
    "device": ["auto", "cpu", "cuda", "mps", "xpu"],
    "dtype": ["auto", "float32", "bfloat16", "float16"],
    "kv_scheme": ["auto", "fp32", "fp16", "bf16", "int8", "int4"],
    "backend": ["auto", "fast", "torch", "bridge"],
    "weights": ["auto", "float", "Q8_0", "Q4_1"],
    "attention_backend": ["auto", "varlen", "flash", "blocks", "reference"],
}


def make(kind: Callable[..., Any], field: str, value: object) -> Any:
    return kind(**{field: value})


def refusal(kind: Callable[..., Any], field: str, value: object) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        kind(**{field: value})
    assert caught.value.field == field
    assert len(str(caught.value)) < 200
    return caught.value


def test_every_field_is_covered_here():
    assert {f.name for f in fields(SamplingParams)} == {*FLOATS, *INTS, "stop"}
    assert {f.name for f in fields(EngineConfig)} == {
        *ENGINE_INTS,
        *CHOICES,
        "block_size",
        "cache_dir",
        "cuda_graphs",
        "guess",
        "draft_model",
    }


@pytest.mark.parametrize("value", ["", 5, b"kv", True])
def test_cache_folder_that_is_no_path_is_refused(value):
    assert "folder" in refusal(EngineConfig, "cache_dir", value).reason
    assert EngineConfig(cache_dir="kv").cache_dir == "kv"


def test_defaults_are_valid_and_as_documented():
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.7, 40, 0.95, 0.05)
    assert (params.seed, params.max_tokens, params.stop) == (None, None, ())
    config = EngineConfig()
    assert (config.device, config.attention_backend) == ("auto", "auto")
    assert config.prefill_chunk_tokens is None


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", FLOATS)
def test_float_field_at_its_bounds_is_accepted(field):
    for value in FLOATS[field]:
        assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize("field", FLOATS)
def test_float_field_beyond_its_bounds_is_refused_with_the_range(field):
    low, high = FLOATS[field]
    allowed = f"must be a number from {low:g} to {high:g}"
    for value in (math.nextafter(low, -math.inf), math.nextafter(high, math.inf), -5000.0, 1e300):
        assert refusal(SamplingParams, field, value).reason == f"{allowed}, not {value!r}."


@pytest.mark.parametrize("field", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_float_field_that_is_no_finite_number_is_refused(field, value):
    assert refusal(SamplingParams, field, value).reason.endswith(f", not {value!r}.")


@pytest.mark.parametrize("field", FLOATS)
@pytest.mark.parametrize("value", ["0.5", None, True, [0.5], 1j, b"1"])
def test_float_field_of_another_type_is_refused(field, value):
    reason = refusal(SamplingParams, field, value).reason
    assert reason.endswith(f", not {type(value).__name__} {value!r}.")


@pytest.mark.parametrize("field", FLOATS)
def test_float_field_whole_number_is_accepted(field):
    assert getattr(make(SamplingParams, field, 1), field) == 1


@pytest.mark.parametrize(
    ("kind", "field"),
    [(SamplingParams, name) for name in (*FLOATS, *INTS)]
    + [(EngineConfig, name) for name in (*ENGINE_INTS, "block_size")],
)
@pytest.mark.parametrize("value", [HUGE, -HUGE], ids=["huge", "-huge"])
def test_number_field_of_thousands_of_digits_is_refused_in_few_words(kind, field, value):
    assert refusal(kind, field, value).reason.endswith(", not a number of 16,610 bits.")


INT_CASES = [(SamplingParams, name, *bounds) for name, bounds in INTS.items()] + [
    (EngineConfig, name, *bounds) for name, bounds in ENGINE_INTS.items()
]


@pytest.mark.parametrize(("kind", "field", "low", "high"), INT_CASES)
def test_int_field_at_its_bounds_is_accepted(kind, field, low, high):
    for value in (low, high):
        assert getattr(kind(**{field: value}), field) == value


@pytest.mark.parametrize(("kind", "field", "low", "high"), INT_CASES)
def test_int_field_beyond_its_bounds_is_refused_with_the_range(kind, field, low, high):
    allowed = f"must be a whole number from {low:,} to {high:,}"
    for value in (low - 1, high + 1, -(10**9)):
        assert refusal(kind, field, value).reason == f"{allowed}, not {value}."


@pytest.mark.parametrize(("kind", "field", "low", "high"), INT_CASES)
@pytest.mark.parametrize("value", [2.0, math.nan, math.inf, "2", True, [2], {}])
def test_int_field_of_another_type_is_refused(kind, field, low, high, value):
    reason = refusal(kind, field, value).reason
    assert reason.endswith(f", not {type(value).__name__} {value!r}.")


def test_int_field_that_is_not_optional_refuses_none():
    refusal(SamplingParams, "top_k", None)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (SamplingParams, "seed"),
        (SamplingParams, "max_tokens"),
        (EngineConfig, "context_tokens"),
        (EngineConfig, "block_size"),
        (EngineConfig, "kv_cache_bytes"),
        (EngineConfig, "prefill_chunk_tokens"),
        (EngineConfig, "num_threads"),
    ],
)
def test_int_field_that_is_optional_takes_none(kind, field):
    assert getattr(kind(**{field: None}), field) is None


@pytest.mark.parametrize("value", [1, 2, 16, 256, 4096])
def test_block_size_power_of_two_is_accepted(value):
    assert EngineConfig(block_size=value).block_size == value


@pytest.mark.parametrize("value", [3, 24, 4095])
def test_block_size_other_number_is_refused(value):
    reason = refusal(EngineConfig, "block_size", value).reason
    assert reason == f"must be a power of two, not {value}."


@pytest.mark.parametrize("value", [0, -16, 8192, True, "16", 16.0])
def test_block_size_out_of_range_or_of_another_type_is_refused(value):
    reason = refusal(EngineConfig, "block_size", value).reason
    assert reason.startswith("must be a whole number from 1 to 4,096, not")


# --- choices ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", CHOICES)
def test_choice_field_takes_each_of_its_words(field):
    for word in CHOICES[field]:
        assert getattr(EngineConfig(**{field: word}), field) == word


@pytest.mark.parametrize("field", CHOICES)
@pytest.mark.parametrize("value", ["", "AUTO", "gpu", None, True, 3, ["auto"], "x" * 10_000])
def test_choice_field_refuses_all_else_and_names_the_words(field, value):
    assert ", ".join(CHOICES[field]) in refusal(EngineConfig, field, value).reason


@pytest.mark.parametrize("value", ["", "yes", None, 0, 1, [True]])
def test_switch_takes_true_and_false_only(value):
    reason = refusal(EngineConfig, "cuda_graphs", value).reason
    assert reason.startswith("must be True or False, not ")
    assert not EngineConfig(cuda_graphs=False).cuda_graphs
    assert EngineConfig().cuda_graphs


# --- stop strings -----------------------------------------------------------------------------


def test_stop_list_is_kept_as_a_tuple():
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]  # meant


def test_stop_at_its_bounds_is_accepted():
    stop = ("x" * MAX_STOP_STRING_CHARS,) * MAX_STOP_STRINGS
    assert SamplingParams(stop=stop).stop == stop


@pytest.mark.parametrize("value", ["stop", None, 3, {"a"}, {"a": 1}, b"ab"])
def test_stop_that_is_no_list_is_refused(value):
    reason = refusal(SamplingParams, "stop", value).reason
    assert reason == f"must be a list of strings, not {type(value).__name__}."


@pytest.mark.parametrize("item", ["", "x" * (MAX_STOP_STRING_CHARS + 1), 3, None, b"a"])
def test_stop_with_a_bad_string_is_refused(item):
    reason = refusal(SamplingParams, "stop", ("fine", item)).reason
    assert reason == "each string must have 1 to 256 characters."


def test_stop_with_too_many_strings_is_refused():
    reason = refusal(SamplingParams, "stop", ("a",) * (MAX_STOP_STRINGS + 1)).reason
    assert reason == "may hold at most 16 strings, not 17."


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 0.0, -0.0])
def test_params_temperature_zero_is_greedy(temperature):
    assert SamplingParams(temperature=temperature).is_greedy


def test_params_temperature_above_zero_is_not_greedy():
    assert not SamplingParams(temperature=5e-324).is_greedy


@pytest.mark.parametrize(
    "value",
    [SamplingParams(seed=3, stop=("a",), top_p=0.5), EngineConfig(device="cpu", block_size=16)],
)
def test_value_pickled_is_equal(value):
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize(
    ("value", "field"), [(SamplingParams(), "top_k"), (EngineConfig(), "device")]
)
def test_value_cannot_be_changed(value, field):
    with pytest.raises(FrozenInstanceError):
        setattr(value, field, None)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=300), st.binary(),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(), st.integers(), max_size=2),
)  # fmt: skip


@given(st.sampled_from([f.name for f in fields(SamplingParams)]), ANYTHING)
def test_params_any_value_is_taken_or_refused_by_name(field, value):
    try:
        SamplingParams(**{field: value})
    except InvalidRequestError as error:
        assert error.field == field  # noqa: PT017  (any other error fails the test)


@given(st.sampled_from([f.name for f in fields(EngineConfig)]), ANYTHING)
def test_engine_config_any_value_is_taken_or_refused_by_name(field, value):
    try:
        EngineConfig(**{field: value})
    except InvalidRequestError as error:
        assert error.field == field  # noqa: PT017  (any other error fails the test)


@pytest.mark.parametrize("value", ["AUTO", "none", 1, None, True, ["auto"]])
def test_guess_is_one_of_its_names(value):
    assert "auto, off, ngram, draft" in refusal(EngineConfig, "guess", value).reason


@pytest.mark.parametrize("value", ["", 1, b"model.gguf", ["model.gguf"]])
def test_draft_model_is_the_path_of_a_model(value):
    assert "the path of a model" in refusal(EngineConfig, "draft_model", value).reason


def test_guessing_by_a_draft_model_alone_needs_one():
    with pytest.raises(InvalidRequestError) as caught:
        EngineConfig(guess="draft")
    assert caught.value.field == "draft_model"
    assert EngineConfig(guess="draft", draft_model="small.gguf").draft_model == "small.gguf"
