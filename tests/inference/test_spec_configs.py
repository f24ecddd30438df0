"""A `ModelSpec` from config.json, as it is written today and as it was; and what is refused."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace

import pytest
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Ernie4_5Config,
    Exaone4Config,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GemmaConfig,
    Glm4Config,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    LlamaConfig,
    Ministral3Config,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoeConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SeedOssConfig,
    SmolLM3Config,
)

from inference.model.spec import (
    ExpertSpec,
    LayerSpec,
    ModelSpec,
    QueryGrowth,
    UnsupportedSpecError,
    WeightKey,
)
from inference.model.spec_configs import spec_from_folder, spec_from_gguf
from inference.model.spec_families import FAMILIES
from tests.inference.tiny_decoders import ROPES, VARIANTS, make_variant, spec_of

CLASSES: dict[str, type[PretrainedConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "ministral3": Ministral3Config,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma": GemmaConfig,
    "gemma2": Gemma2Config,
    "gemma3": Gemma3TextConfig,
    "gemma4": Gemma4TextConfig,
    "phi3": Phi3Config,
    "granite": GraniteConfig,
    "olmo2": Olmo2Config,
    "olmo3": Olmo3Config,
    "smollm3": SmolLM3Config,
    "exaone4": Exaone4Config,
    "glm4": Glm4Config,
    "seed_oss": SeedOssConfig,
    "ernie4_5": Ernie4_5Config,
    "mixtral": MixtralConfig,
    "qwen2_moe": Qwen2MoeConfig,
    "qwen3_moe": Qwen3MoeConfig,
    "olmoe": OlmoeConfig,
    "granitemoe": GraniteMoeConfig,
    "gpt_oss": GptOssConfig,
    "gemma4_moe": Gemma4TextConfig,
}
WITH_EXPERTS = [name for name, family in FAMILIES.items() if family.has_experts]
_SIZES: dict[str, object] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
}
_LLAMA: dict[str, object] = {"model_type": "llama", **_SIZES}


def test_classes_cover_every_family() -> None:
    assert set(CLASSES) == set(FAMILIES)


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - WITH_EXPERTS))
def test_missing_values_are_those_of_the_config_class(family: str) -> None:
    sizes = {**_SIZES, "vocab_size_per_layer_input": 100} if family == "gemma4" else _SIZES
    config = CLASSES[family](**sizes, pad_token_id=None)
    bare = {"model_type": config.model_type, **sizes}
    assert spec_from_folder(bare) == spec_from_folder(json.loads(config.to_json_string(False)))


@pytest.mark.parametrize("family", FAMILIES)
def test_family_names_the_class_that_transformers_takes(family: str) -> None:
    config = CLASSES[family](**{**_SIZES, "num_hidden_layers": 1}, pad_token_id=None)
    module = AutoModelForCausalLM.from_config(config)
    assert type(module).__name__ == FAMILIES[family].model_class


@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_folders_of_experts_are_for_the_bridge(family: str) -> None:
    options = {"enable_moe_block": True} if family == "gemma4_moe" else {}
    config = CLASSES[family](**_SIZES, **options, pad_token_id=None)
    reason = "enable_moe_block" if options else config.model_type
    with pytest.raises(UnsupportedSpecError, match=reason):
        spec_from_folder(json.loads(config.to_json_string(False)))


@pytest.mark.parametrize("name", ["mixtral", "olmoe"])
def test_more_experts_for_a_token_than_there_are_is_refused(name: str) -> None:
    key = {"mixtral": "num_local_experts", "olmoe": "num_experts"}[name]
    values = {**_SIZES, "max_position_embeddings": 64, key: 4, "num_experts_per_tok": 5}
    with pytest.raises(UnsupportedSpecError, match="5 of 4 experts"):
        spec_from_gguf(name, values)
    spec = spec_from_gguf(name, {**values, "num_experts_per_tok": 4, "norm_topk_prob": False})
    assert spec.experts == ExpertSpec(4, 4, weights_sum_to_one=False)


@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_are_those_of_the_module(variant: str) -> None:
    module = make_variant(variant)
    spec = spec_of(module)
    scales = [b for name, b in module.named_buffers() if name.endswith("layer_scalar")]
    total = sum(weight.numel() for weight in [*module.parameters(), *scales])
    ours = 0
    for key in spec.weight_keys:
        if key == WeightKey("head") and spec.is_head_tied:
            continue
        rows, *columns = spec.shape(key.role, key.layer)
        ours += rows * (columns[0] if columns else 1)
    assert ours == total


def test_numbers_of_gemma3_are_as_published() -> None:
    """The 1B: values of its config.json, from before the rotary parameters had a table."""
    spec = spec_from_folder(
        {
            "architectures": ["Gemma3ForCausalLM"],
            "attention_bias": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "max_position_embeddings": 32768,
            "model_type": "gemma3_text",
            "num_attention_heads": 4,
            "num_hidden_layers": 26,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "vocab_size": 262144,
        }
    )
    assert spec.is_head_tied
    assert spec.attention_scale == 1 / 16
    assert spec.embedding_scale == pytest.approx(1152**0.5)
    assert spec.rotary_dim == 256
    assert spec.layers[5] == LayerSpec(window=None, rope_index=0)
    assert spec.layers[6] == LayerSpec(window=512, rope_index=1)
    assert [index for index, layer in enumerate(spec.layers) if not layer.window] == [5, 11, 17, 23]
    full, sliding = (rope.inverse_frequencies[64] for rope in spec.ropes)
    assert (full, sliding) == pytest.approx((1e6**-0.5, 1e4**-0.5), rel=1e-6)


OLD_AND_NEW: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "llama3": (
        {
            "model_type": "llama",
            "rope_theta": 500_000.0,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 1024,
            },
        },
        {"model_type": "llama", "rope_parameters": {**ROPES["llama3"], "rope_theta": 500_000.0,
                                                    "original_max_position_embeddings": 1024}},
    ),
    "linear-by-type": (
        {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"model_type": "llama", "rope_parameters": ROPES["linear"]},
    ),
    "yarn-over-whole-context": (
        {"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"model_type": "qwen2", "rope_parameters": {**ROPES["yarn"],
                                                    "original_max_position_embeddings": 4096}},
    ),
    "longrope": (
        {
            "model_type": "phi3", "partial_rotary_factor": 1.0, "rope_theta": 10_000.0,
            "original_max_position_embeddings": 128, "hidden_size": 256,
            "rope_scaling": {"type": "longrope", "short_factor": [1.5] * 4, "long_factor": [3.0] * 4},
        },
        {
            "model_type": "phi3", "hidden_size": 256, "original_max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0,
                "short_factor": [1.5] * 4, "long_factor": [3.0] * 4,
            },
        },
    ),
    "gemma3": (
        {
            "model_type": "gemma3_text", "rope_theta": 2e6, "rope_local_base_freq": 3e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window_pattern": 3,
        },
        {
            "model_type": "gemma3_text",
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
            },
            "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 10,
        },
    ),
    "olmo3": (
        {
            "model_type": "olmo3", "num_hidden_layers": 4, "rope_theta": 500_000,
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2,
                             "original_max_position_embeddings": 512},
        },
        {
            "model_type": "olmo3", "num_hidden_layers": 4,
            "rope_parameters": {
                "full_attention": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2,
                                   "original_max_position_embeddings": 512, "rope_theta": 500_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0},
            },
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        },
    ),
    "glm4": (
        {"model_type": "glm4", "partial_rotary_factor": 0.25, "rope_theta": 20_000.0},
        {"model_type": "glm4", "rope_parameters": {"rope_type": "default", "rope_theta": 20_000.0,
                                                   "partial_rotary_factor": 0.25}},
    ),
    "smollm3": (
        {"model_type": "smollm3", "no_rope_layer_interval": 3, "rope_theta": 5e6},
        {"model_type": "smollm3", "no_rope_layers": [1, 1, 0] * 10,
         "rope_parameters": {"rope_type": "default", "rope_theta": 5e6}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OLD_AND_NEW)
def test_old_spelling_means_the_same_as_the_new(case: str) -> None:
    old, new = ({**_SIZES, **values} for values in OLD_AND_NEW[case])
    spec = spec_from_folder(old)
    assert spec == spec_from_folder(new)
    # What transformers makes of the old one, written down again.
    model_type = str(old.pop("model_type"))
    config = AutoConfig.for_model(model_type, **json.loads(json.dumps(old)), pad_token_id=None)
    assert spec == spec_from_folder(json.loads(config.to_json_string(False)))


@pytest.mark.parametrize("word", ["su", "yarn"])
def test_first_phis_name_their_rotary_embedding_otherwise(word: str) -> None:
    old, _ = OLD_AND_NEW["longrope"]
    scaling = old["rope_scaling"]
    assert isinstance(scaling, dict)
    renamed = {**old, "rope_scaling": {**scaling, "type": word}}
    assert spec_from_folder({**_SIZES, **renamed}) == spec_from_folder({**_SIZES, **old})


def test_first_gemmas_name_their_activation_wrongly() -> None:
    gemma = {"model_type": "gemma", **_SIZES}
    spec = spec_from_folder({**gemma, "hidden_act": "gelu"})
    assert spec == spec_from_folder(gemma)
    assert spec.activation == "gelu_tanh"


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mixtral"},
        {"model_type": "gemma3"},
        {"model_type": None},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"architectures": "LlamaForCausalLM"},
        {"quantization_config": {"quant_method": "gptq"}},
        {"hidden_act": "gelu"},
        {"hidden_size": 63},
        {"hidden_size": True},
        {"hidden_size": None},
        {"head_dim": 15},
        {"head_dim": 4098},
        {"head_dim": 2**63},
        {"num_key_value_heads": 5},
        {"num_hidden_layers": 10**6},
        {"rms_norm_eps": "small"},
        {"tie_word_embeddings": "yes"},
        {"sliding_window": 128},
        {"partial_rotary_factor": 0.5},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": "linear"},
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        {"model_type": "qwen2", "layer_types": ["linear_attention"] * 30},
        {"model_type": "qwen2", "layer_types": ["sliding_attention"] * 30},
        {"model_type": "qwen2", "layer_types": ["full_attention"]},
        {"model_type": "qwen2", "layer_types": [1] * 30},
        {"model_type": "gemma2", "sliding_window": None},
        {"model_type": "gemma3_text", "use_bidirectional_attention": True},
        {"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1e4}},
        {"model_type": "olmo3", "rope_parameters": {"rope_theta": 1e4}},
        {"model_type": "olmo3", "rope_theta": 1e4},
        {"model_type": "smollm3", "no_rope_layers": [1, 0]},
        {"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 9},
        {"model_type": "exaone4", "sliding_window": None},
        {"model_type": "seed_oss", "attention_out_bias": True},
        {"model_type": "ernie4_5", "use_bias": True},
        {
            "model_type": "gemma3_text",
            "rope_scaling": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
        },
    ],
    ids=str,
)
def test_what_is_not_known_is_refused(changes: Mapping[str, object]) -> None:
    spec_from_folder(_LLAMA)
    with pytest.raises(UnsupportedSpecError):
        spec_from_folder({**_LLAMA, **changes})


def test_rotary_factors_of_a_model_with_two_embeddings_are_refused() -> None:
    with pytest.raises(UnsupportedSpecError):
        spec_from_gguf("gemma3", _SIZES, {"rope_freqs.weight": [1.0] * 128})


def test_longrope_without_its_factors_is_refused() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "attention_factor": 1.0}
    with pytest.raises(UnsupportedSpecError):
        spec_from_gguf("phi3", {**_SIZES, "rope_parameters": rope})


def test_a_head_that_is_stored_is_used_even_if_it_is_called_tied() -> None:
    """As transformers does if both are there and differ."""
    tied = {**_LLAMA, "tie_word_embeddings": True}
    assert spec_from_folder(tied, {"model.embed_tokens.weight"}).is_head_tied
    both = {"model.embed_tokens.weight", "lm_head.weight"}
    assert not spec_from_folder(tied, both).is_head_tied


def test_spec_is_a_value() -> None:
    spec: ModelSpec = spec_from_folder(_LLAMA)
    assert hash(spec) == hash(spec_from_folder(dict(_LLAMA)))
    assert spec != spec_from_folder({**_LLAMA, "rms_norm_eps": 1e-5})


def test_text_of_a_model_has_what_is_not_as_in_most() -> None:
    spec = spec_of(make_variant("llama"))
    text = spec.text
    assert text.startswith("ModelSpec(family='llama', vocab_size=")
    assert "experts" not in text
    assert "query_growth" not in text
    grown = replace(spec, query_growth=QueryGrowth(0.1, 16))
    assert grown.text != text
    assert "query_growth=QueryGrowth(factor=0.1, num_tokens=16)" in grown.text
    assert replace(spec, residual_scale=0.5).text != text
    # Whatever differs, the text does.
    others: dict[str, object] = {
        "attention_softcap": 5.0,
        "logit_softcap": 5.0,
        "experts": ExpertSpec(4, 2, weights_sum_to_one=True),
        "stable_context_tokens": 7,
        "activation": "clamped_swish",
        "layer_roles": spec.layer_roles[:-1],
    }
    for each in fields(spec):
        value = getattr(spec, each.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            others[each.name] = value + 1
    texts = {replace(spec, **{name: value}).text for name, value in others.items()}  # type: ignore[arg-type]  # of each its type
    assert len(texts | {text}) == len(others) + 1


def test_growth_of_queries_is_read_from_rope_scaling_too() -> None:
    config = json.loads(make_variant("ministral3-growing").config.to_json_string(False))
    assert spec_from_folder(config).query_growth == QueryGrowth(0.4, 37)
    config["rope_scaling"] = {**config["rope_parameters"], "llama_4_scaling_beta": 0.2}
    assert spec_from_folder(config).query_growth == QueryGrowth(0.2, 37)
