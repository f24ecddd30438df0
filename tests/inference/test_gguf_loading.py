import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from inference.errors import EngineError, ModelFileError, UnsupportedModelError
from inference.formats.gguf import GgufFile
from inference.model.gguf_loading import build_module, check_weight_types, fill_weights
from inference.model.gguf_models import FAMILIES, plan_model
from inference.model.progress import LoadReporter
from tests.inference.gguf_files import raw_array, raw_entry, raw_gguf, raw_string, write_twin
from tests.inference.tiny_models import (
    VOCAB_SIZE,
    eager_logits,
    make_config,
    make_module,
    make_tokens,
)

TWINS = [
    "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "granite", "olmo2",
]  # fmt: skip

EXTRA = {"gemma3": {"gemma3.attention.sliding_window_pattern": 4}}


def load_module(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    with GgufFile.read(path) as file:
        plan = plan_model(file)
        check_weight_types(file)
        module = build_module(plan, file, dtype)
        reporter = LoadReporter(None)
        fill_weights(module, plan, file, device="cpu", dtype=dtype, reporter=reporter)
        loaded: PreTrainedModel = module
        return loaded


def make_twin_module(family: str) -> PreTrainedModel:
    """A model whose settings can be told from the file; the head's scale of Gemma cannot."""
    config = make_config(family)
    if family.startswith("gemma"):
        config.query_pre_attn_scalar = config.head_dim
    if family == "mistral":
        config.sliding_window = None
    if family == "gemma3":
        config.layer_types = ["sliding_attention"] * 3 + ["full_attention"]
    return remake(config)


def remake(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(3)
    module: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.3)
    return module


def wide_config(**changes: object) -> LlamaConfig:
    values: dict[str, object] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": None,
    }
    return LlamaConfig(**{**values, **changes})


def assert_same_logits(path: Path, module: PreTrainedModel, *, num_tokens: int = 40) -> None:
    expected = eager_logits(module, make_tokens(num_tokens))
    actual = eager_logits(load_module(path), make_tokens(num_tokens))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", TWINS)
def test_load_twin_gives_logits_of_the_original(tmp_path, family):
    module = make_twin_module(family)
    path = write_twin(module, tmp_path / "twin.gguf", extra=EXTRA.get(family))
    assert_same_logits(path, module)


def test_twins_cover_every_architecture():
    assert set(FAMILIES) == set(TWINS) - {"mistral"}


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_load_twin_has_buffers_of_the_original(tmp_path, family):
    module = make_twin_module(family)
    loaded = load_module(write_twin(module, tmp_path / "twin.gguf", extra=EXTRA.get(family)))
    expected = dict(module.named_buffers())
    assert dict(loaded.named_buffers()).keys() == expected.keys()
    for name, buffer in loaded.named_buffers():
        torch.testing.assert_close(buffer, expected[name], rtol=0, atol=0)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert not loaded.training


def test_load_tied_head_shares_one_tensor(tmp_path):
    module = remake(wide_config(tie_word_embeddings=True))
    path = write_twin(module, tmp_path / "twin.gguf")
    loaded = load_module(path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert_same_logits(path, module)


def test_load_attention_and_mlp_biases_are_used(tmp_path):
    module = remake(wide_config(attention_bias=True, mlp_bias=True))
    assert_same_logits(write_twin(module, tmp_path / "twin.gguf"), module)


def test_load_head_size_of_its_own_is_used(tmp_path):
    module = remake(wide_config(head_dim=32))
    assert_same_logits(write_twin(module, tmp_path / "twin.gguf"), module)


@pytest.mark.parametrize("quantization", ["Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "F16", "BF16"])
def test_load_quantized_twin_equals_model_with_rounded_weights(tmp_path, quantization):
    import gguf

    kind = gguf.GGMLQuantizationType[quantization]
    module = remake(wide_config())
    path = write_twin(module, tmp_path / "twin.gguf", quantization=quantization)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 2:
                rounded = gguf.quants.dequantize(
                    gguf.quants.quantize(parameter.numpy(), kind), kind
                )
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(rounded)))
    assert_same_logits(path, module)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_load_in_half_precision_rounds_weights_once(tmp_path, dtype):
    module = make_twin_module("gemma2")
    loaded = load_module(write_twin(module, tmp_path / "twin.gguf"), dtype)
    for name, parameter in module.named_parameters():
        actual = loaded.get_parameter(name)
        assert actual.dtype == dtype
        step = torch.finfo(dtype).eps * (1 if parameter.dim() > 1 else 2)
        torch.testing.assert_close(actual.float(), parameter.detach(), rtol=step, atol=1e-6)
    assert loaded.model.rotary_emb.inv_freq.dtype == torch.float32


LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip


def test_load_llama3_rope_factors_give_logits_of_the_original(tmp_path):
    module = remake(wide_config(rope_parameters=dict(LLAMA3_ROPE)))
    plain = LlamaRotaryEmbedding(wide_config()).inv_freq
    factors = (plain / module.model.rotary_emb.inv_freq).numpy()
    assert factors.max() == pytest.approx(8.0)
    path = write_twin(module, tmp_path / "t.gguf", extra_tensors={"rope_freqs.weight": factors})
    assert_same_logits(path, module, num_tokens=200)


@pytest.mark.parametrize(
    ("rope", "extra"),
    [
        (
            {"rope_type": "linear", "factor": 4.0},
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 128,
            },
        ),
    ],
    ids=["linear", "yarn"],
)
def test_load_scaled_rope_gives_logits_of_the_original(tmp_path, rope, extra):
    module = remake(wide_config(rope_parameters={**rope, "rope_theta": 10_000.0}))
    assert_same_logits(
        write_twin(module, tmp_path / "twin.gguf", extra=extra), module, num_tokens=200
    )


@pytest.mark.parametrize("num_tokens", [40, 200], ids=["short", "long"])
def test_load_phi3_longrope_gives_logits_of_the_original(tmp_path, num_tokens):
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
    assert_same_logits(path, module, num_tokens=num_tokens)


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
        ("llama.expert_count", 8, "mixture-of-experts"),
        ("general.architecture", "warp", "'warp' is not known. Quire opens GGUF files of gemma2,"),
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
    path.write_bytes(raw_gguf([], [raw_tensor("blk.0.x", (256,), type_id=16)], bytes(66)))
    with (
        GgufFile.read(path) as file,
        pytest.raises(UnsupportedModelError, match=r"'blk\.0\.x' has the weight type IQ2_XXS"),
    ):
        check_weight_types(file)


def test_load_twin_with_odd_metadata_raises_only_engine_errors(tmp_path):
    """Every number of the file in turn becomes 0, 1, 3, and the largest."""
    module = make_module("gemma2")
    path = write_twin(module, tmp_path / "t.gguf")
    with GgufFile.read(path) as file:
        keys = [
            key
            for key, value in file.metadata.items()
            if key.startswith("gemma2.") and isinstance(value, int)
        ]
    assert len(keys) > 8
    for key in keys:
        for value in (0, 1, 3, 2**32 - 1):
            changed = write_twin(module, tmp_path / "c.gguf", extra={key: value})
            with contextlib.suppress(EngineError):
                load_module(changed)
