import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Phi3Config,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from inference.formats.gguf import GgufFile
from inference.model.gguf_families import FAMILIES
from inference.model.gguf_models import plan_model
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import (
    BRIDGE_TWINS,
    BRIDGED_TWINS,
    EXTRA,
    TWINS,
    assert_same_logits,
    load_module,
    make_twin,
    make_twin_module,
    remake,
    wide_config,
)
from tests.inference.tiny_models import (
    VOCAB_SIZE,
    make_config,
)


@pytest.mark.parametrize("family", [*BRIDGED_TWINS, *BRIDGE_TWINS])
def test_load_twin_gives_logits_of_the_original(tmp_path, family):
    path = tmp_path / "twin.gguf"
    module = make_twin(family, path)
    assert_same_logits(path, module)


def test_twins_cover_every_architecture():
    assert set(FAMILIES) <= {*TWINS, *BRIDGE_TWINS}


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


def test_load_window_pattern_as_flags_is_used(tmp_path):
    config = make_config("gemma3")
    config.query_pre_attn_scalar = config.head_dim
    flags = [name == "sliding_attention" for name in config.layer_types]
    assert True in flags
    assert False in flags
    module = remake(config)
    key = "gemma3.attention.sliding_window_pattern"
    assert_same_logits(write_twin(module, tmp_path / "t.gguf", extra={key: flags}), module)


@pytest.mark.parametrize(
    ("family", "num_layers", "expected"),
    [("gemma2", 46, 48 // 6), ("gemma2", 2, 16), ("gemma3", 62, 48 // 6), ("gemma3", 6, 16)],
)
def test_plan_gemma_27b_scales_queries_by_width_per_head(tmp_path, family, num_layers, expected):
    config = make_config(family)
    config.num_hidden_layers = num_layers
    config.layer_types = ["full_attention"] * num_layers
    path = write_twin(AutoModelForCausalLM.from_config(config), tmp_path / "t.gguf")
    with GgufFile.read(path) as file:
        assert plan_model(file).config["query_pre_attn_scalar"] == expected


@pytest.mark.parametrize(
    "keys",
    [
        {"llama.rope.scaling.factor": 4.0},
        {"llama.rope.scale_linear": 4.0},
        {"llama.rope.scale_linear": 4.0, "llama.rope.scaling.factor": 0.0},
    ],
    ids=str,
)
def test_load_scaling_without_a_type_is_linear(tmp_path, keys):
    """As in files from before there was a word for the type."""
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
    module = remake(wide_config(rope_parameters=rope))
    path = write_twin(module, tmp_path / "twin.gguf", extra=keys)
    assert_same_logits(path, module, num_tokens=200)


def test_load_factor_of_a_scaling_that_is_none_has_no_effect(tmp_path):
    module = remake(wide_config())
    extra = {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}
    assert_same_logits(write_twin(module, tmp_path / "twin.gguf", extra=extra), module)


def test_plan_exaone4_32b_has_windows_that_its_file_need_not_name(tmp_path):
    config = make_twin_module("exaone4-small").config
    config.num_hidden_layers = 64
    config.layer_types = ["full_attention"] * 64
    path = write_twin(AutoModelForCausalLM.from_config(config), tmp_path / "t.gguf")
    with GgufFile.read(path) as file:
        values = plan_model(file).config
    assert values["sliding_window"] == 4096
    assert values["layer_types"] == (["sliding_attention"] * 3 + ["full_attention"]) * 16


def test_plan_starcoder2_has_the_window_that_its_file_does_not_name(tmp_path):
    key = "starcoder2.attention.sliding_window"
    module = make_twin_module("starcoder2")
    with GgufFile.read(write_twin(module, tmp_path / "t.gguf", drop_keys=(key,))) as file:
        assert key not in file.metadata
        assert plan_model(file).config["sliding_window"] == 4096


def test_load_olmo3_scales_full_layers_alone(tmp_path):
    config = make_twin_module("olmo3").config
    config.rope_parameters["full_attention"] = {
        "rope_type": "yarn", "rope_theta": 500_000.0, "factor": 4.0,
        "original_max_position_embeddings": 128,
    }  # fmt: skip
    module = remake(config)
    extra = {
        "olmo2.rope.scaling.type": "yarn",
        "olmo2.rope.scaling.factor": 4.0,
        "olmo2.rope.scaling.original_context_length": 128,
    }
    path = write_twin(module, tmp_path / "t.gguf", extra=extra)
    assert_same_logits(path, module, num_tokens=200)
