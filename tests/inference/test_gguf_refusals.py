import contextlib
from functools import partial

import numpy as np
import pytest

from inference.errors import EngineError, ModelFileError, UnsupportedModelError
from inference.formats.gguf import GgufFile
from inference.model.gguf_loading import check_weight_types
from inference.model.loader import load_model
from tests.inference.gguf_files import raw_array, raw_entry, raw_gguf, raw_string, write_twin
from tests.inference.gguf_twins import EXTRA, load_module, make_twin_module
from tests.inference.tiny_models import (
    make_module,
)

REQUIRED = [
    "block_count", "context_length", "embedding_length", "feed_forward_length",
    "attention.head_count", "attention.layer_norm_rms_epsilon",
]  # fmt: skip


@pytest.mark.parametrize("key", REQUIRED)
def test_plan_missing_key_names_it(tmp_path, key):
    path = write_twin(make_module("llama"), tmp_path / "t.gguf", drop_keys=(f"llama.{key}",))
    with pytest.raises(ModelFileError, match=rf"The metadata key 'llama\.{key}' is missing"):
        load_module(path)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("llama.block_count", 0, r"'llama\.block_count' must be a whole number from 1 to 1,024"),
        ("llama.block_count", 2**31, r"'llama\.block_count' must be a whole number"),
        ("llama.block_count", "four", r"must be a whole number from 1 to 1,024, not 'four'"),
        ("llama.block_count", 5, r"The tensors 'blk\.4\.\*' are missing"),
        ("llama.block_count", 3, r"The tensor 'blk\.3\..*' has no place"),
        ("llama.embedding_length", 64, r"'token_embd\.weight' has the shape \(\d+, 48\)"),
        ("llama.feed_forward_length", 81, r"'blk\.0\.ffn_gate\.weight' has the shape \(80, 48\)"),
        ("llama.attention.head_count", 7, "7 attention heads cannot share 2 key/value heads"),
        ("llama.attention.head_count_kv", 3, r"'blk\.0\.attn_k\.weight' has the shape"),
        ("llama.attention.head_count_kv", [2, 2, 1, 2], "differs between layers"),
        ("llama.attention.key_length", 10**9, r"'llama\.attention\.key_length' must be"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "must be a number above 0"),
        ("llama.rope.freq_base", -1.0, "must be a number above 0"),
        ("llama.rope.scaling.type", "spiral", "The rotary scaling 'spiral'"),
        ("llama.rope.dimension_count", 4, "Rotary embedding over 4 of 8 numbers per head"),
        ("llama.expert_count", 8, "'llama.expert_used_count' is missing"),
        (
            "general.architecture",
            "warp",
            r"'warp' is not one of the \d\d that Quire opens from GGUF, such as llama",
        ),
        ("general.architecture", "clip", "the image part of a model"),
    ],
)
def test_load_wrong_metadata_says_what_is_wrong(tmp_path, key, value, words):
    if key == "general.architecture":
        path = tmp_path / "t.gguf"
        path.write_bytes(raw_gguf([raw_entry(key, 8, raw_string(value))], []))
    else:
        path = write_twin(make_module("llama"), tmp_path / "t.gguf", extra={key: value})
    with pytest.raises(ModelFileError, match=words):
        load_module(path)


@pytest.mark.parametrize(
    ("family", "extra", "words"),
    [
        (
            "qwen2",
            {
                "qwen2.attention.key_length": 16,
                "qwen2.attention.value_length": 16,
                "qwen2.rope.dimension_count": 16,
            },
            "size of their own.*'qwen2'",
        ),
        (
            "phi3",
            {"phi3.attention.key_length": 16, "phi3.attention.value_length": 16},
            "size of their own.*'phi3'",
        ),
        ("qwen2", {"qwen2.expert_count": 8}, "mixture of experts of the architecture 'qwen2'"),
        ("llama", {"llama.attention.value_length": 16}, r"heads of 8 \(keys\) and 16 \(values\)"),
        ("llama", {"llama.rope.scaling.type": "longrope"}, "rotary scaling 'longrope'"),
        ("llama", {"llama.rope.scaling.attn_factor": 1.5}, "a factor of its own"),
        ("qwen3", {"qwen3.rope.dimension_count": 8}, "8 of 16 numbers per head"),
        ("gemma2", {"gemma2.rope.freq_base_swa": 5_000.0}, "Two bases.*'gemma2'"),
        ("llama", {"llama.attention.temperature_scale": 0.1}, "Queries that grow.*'llama'"),
        ("qwen2", {"qwen2.attention.causal": False}, "embeddings of texts"),
        (
            "gemma2",
            {"gemma2.attention.sliding_window_pattern": [True, False]},
            "has 2 items for 4 layers",
        ),
        ("llama", {"llama.attention.head_count": 5}, "5 attention heads cannot share 2"),
    ],
)
def test_load_variant_that_cannot_run_is_refused(tmp_path, family, extra, words):
    path = write_twin(make_module(family), tmp_path / "t.gguf", extra=extra)
    with pytest.raises(ModelFileError, match=words):
        load_module(path)


@pytest.mark.parametrize(
    ("family", "extra", "tensor", "words"),
    [
        ("glm4", {"glm4.rope.dimension_sections": [1, 1, 2, 0]}, None, "sees images"),
        ("stablelm", {}, "blk.0.attn_q_norm.weight", "norms on queries and keys"),
        ("mixtral", {}, "blk.0.ffn_gate.0.weight", "every expert for itself"),
        ("arcee", {"arcee.rope.dimension_count": 4}, None, "4 of 16 numbers per head"),
        ("cohere2", {"cohere2.attention.sliding_window": 0}, None, "sliding_window' must be"),
        ("olmoe", {"olmoe.expert_used_count": 7}, None, "expert_used_count' must be"),
        ("qwen3moe", {}, "blk.0.ffn_gate_shexp.weight", "has no place"),
    ],
)
def test_load_variant_of_a_twin_that_cannot_run_is_refused(tmp_path, family, extra, tensor, words):
    tensors = {} if tensor is None else {tensor: np.ones(4, np.float32)}
    module = make_twin_module(family)
    path = write_twin(module, tmp_path / "t.gguf", extra=extra, extra_tensors=tensors)
    with pytest.raises(ModelFileError, match=words):
        load_module(path)


def test_load_experts_of_another_shape_name_the_tensor(tmp_path):
    module = make_twin_module("olmoe")
    tensors = {"blk.1.ffn_up_exps.weight": np.ones((5, 96, 64), np.float32)}
    path = write_twin(module, tmp_path / "t.gguf", extra_tensors=tensors)
    with pytest.raises(ModelFileError, match=r"'blk\.1\.ffn_up_exps\.weight' has the shape \(5, "):
        load_module(path)


def test_load_longrope_factors_of_another_family_are_refused(tmp_path):
    tensors = {"rope_factors_long.weight": np.ones(4, np.float32)}
    path = write_twin(make_module("llama"), tmp_path / "t.gguf", extra_tensors=tensors)
    with pytest.raises(UnsupportedModelError, match=r"'rope_factors_long\.weight' has no place"):
        load_module(path)


def test_load_longrope_without_short_factors_names_them(tmp_path):
    tensors = {"rope_factors_long.weight": np.ones(4, np.float32)}
    path = write_twin(make_module("phi3"), tmp_path / "t.gguf", extra_tensors=tensors)
    with pytest.raises(ModelFileError, match=r"'rope_factors_short\.weight' is missing"):
        load_module(path)


def test_load_rope_factors_that_have_no_use_are_refused(tmp_path):
    module = make_module("gemma3")
    tensors = {"rope_freqs.weight": np.ones(8, np.float32)}
    path = write_twin(module, tmp_path / "t.gguf", extra_tensors=tensors)
    with pytest.raises(UnsupportedModelError, match="has no use in this model"):
        load_module(path)


def test_plan_architecture_missing_names_key(tmp_path):
    path = tmp_path / "t.gguf"
    path.write_bytes(raw_gguf([raw_entry("k", 9, raw_array(4, 0, b""))], []))
    with pytest.raises(
        ModelFileError, match=r"The metadata key 'general\.architecture' is missing"
    ):
        load_module(path)


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.3.ffn_up.weight"])
def test_load_missing_tensor_names_it(tmp_path, name):
    path = write_twin(make_module("llama"), tmp_path / "t.gguf", drop_tensors=(name,))
    with pytest.raises(ModelFileError, match=rf"The tensor '{name}' is missing"):
        load_module(path)


def test_load_extra_tensor_is_unsupported_and_named(tmp_path):
    path = write_twin(
        make_module("llama"),
        tmp_path / "t.gguf",
        extra_tensors={"blk.0.attn_sinks.weight": np.ones(6, np.float32)},
    )
    with pytest.raises(UnsupportedModelError, match=r"'blk\.0\.attn_sinks\.weight' has no place"):
        load_module(path)


@pytest.mark.parametrize(
    ("factors", "words"),
    [(np.ones(3, np.float32), "has 3 factors"), (np.zeros(4, np.float32), "numbers above 0")],
)
def test_load_wrong_rope_factors_are_refused(tmp_path, factors, words):
    path = write_twin(
        make_module("llama"), tmp_path / "t.gguf", extra_tensors={"rope_freqs.weight": factors}
    )
    with pytest.raises(ModelFileError, match=words):
        load_module(path)


def test_check_weight_types_unknown_one_names_tensor_and_type(tmp_path):
    from tests.inference.gguf_files import raw_tensor

    path = tmp_path / "t.gguf"
    path.write_bytes(raw_gguf([], [raw_tensor("blk.0.x", (256,), type_id=15)], bytes(292)))
    with (
        GgufFile.read(path) as file,
        pytest.raises(UnsupportedModelError, match=r"'blk\.0\.x' has the weight type Q8_K"),
    ):
        check_weight_types(file)


@pytest.mark.parametrize(
    "family",
    ["gemma2", "exaone4", "glm4", "smollm3", "qwen2moe", "cohere2", "mistral3", "gpt-oss"],
)
def test_load_twin_with_odd_metadata_raises_only_engine_errors(tmp_path, family):
    """Every number of the file in turn becomes 0, 1, 3, and the largest."""
    module = make_twin_module(family)
    by_us = partial(load_model, backend="auto")
    load = by_us if family == "gpt-oss" else load_module  # it has no bridge
    path = write_twin(module, tmp_path / "t.gguf", extra=EXTRA.get(family))
    with GgufFile.read(path) as file:
        keys = [
            key
            for key, value in file.metadata.items()
            if key.startswith(f"{family}.") and isinstance(value, int)
        ]
    assert len(keys) >= 8
    for key in keys:
        for value in (0, 1, 3, 2**32 - 1):
            extra = {**EXTRA.get(family, {}), key: value}
            changed = write_twin(module, tmp_path / "c.gguf", extra=extra)
            with contextlib.suppress(EngineError):
                load(changed)
