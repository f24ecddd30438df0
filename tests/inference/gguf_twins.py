"""Tiny models written as GGUF files and loaded back, for the tests of the GGUF loader."""

import copy
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from inference.formats.gguf import GgufFile
from inference.model.gguf_loading import build_module, check_weight_types, fill_weights
from inference.model.gguf_models import plan_model
from inference.model.progress import LoadReporter
from tests.inference.gguf_files import write_twin
from tests.inference.tiny_models import (
    VOCAB_SIZE,
    WINDOW,
    eager_logits,
    make_config,
    make_tokens,
    vary_layer_scales,
)

_SHAPE = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_HALF = {"rope_type": "default", "rope_theta": 20_000.0, "partial_rotary_factor": 0.5}
_WHOLE = {"rope_type": "default", "rope_theta": 20_000.0}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 20_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "truncate": False,
}
_GROWING = {
    "rope_type": "yarn",
    "rope_theta": 20_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 9,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
_LAYERS = ["sliding_attention"] * 3 + ["full_attention"]
_EXPERTS: dict[str, object] = {"num_experts": 6, "num_experts_per_tok": 2}
_GEMMA4: dict[str, object] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": WINDOW,
    "vocab_size_per_layer_input": VOCAB_SIZE,
}
_LOCAL_EXPERTS: dict[str, object] = {"num_local_experts": 6, "num_experts_per_tok": 2}

# Kinds of models by a name for each twin; what is not here is from `tiny_models`.
_CONFIGS: dict[str, tuple[str, dict[str, object]]] = {
    "internlm2": ("llama", {}),
    "biased-llama": ("qwen2", {}),
    "exaone": ("llama", {}),
    "qwen2vl": ("qwen2", {}),
    "qwen3vl": ("qwen3", {"head_dim": 32}),
    "mistral3": ("ministral3", {"head_dim": 32, "rope_parameters": _GROWING}),
    "olmo3": ("olmo3", {"sliding_window": WINDOW, "layer_types": _LAYERS}),
    "smollm3": ("smollm3", {"tie_word_embeddings": False}),
    "exaone4": ("exaone4", {"sliding_window": WINDOW, "layer_types": _LAYERS}),
    "exaone4-small": (
        "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}
    ),
    "glm4": ("glm4", {"head_dim": 32, "rope_parameters": _HALF}),
    "seed_oss": ("seed_oss", {"head_dim": 32}),
    "ernie4_5": ("ernie4_5", {"head_dim": 32}),
    "arcee": ("arcee", {"head_dim": 16}),
    "hunyuan-dense": ("hunyuan_v1_dense", {"head_dim": 16, "rope_parameters": _WHOLE}),
    "starcoder2": ("starcoder2", {"sliding_window": 4096}),
    "stablelm": ("stablelm", {"rope_parameters": _HALF, "use_qkv_bias": True}),
    "stablelm-parallel": ("stablelm", {"rope_parameters": _HALF, "use_parallel_residual": True}),
    "nemotron": ("nemotron", {"head_dim": 16, "rope_parameters": _HALF}),
    "olmo": ("olmo", {"clip_qkv": 2.0}),
    "command-r": ("cohere", {"logit_scale": 0.2}),
    "command-r-norms": ("cohere", {"logit_scale": 0.2, "use_qk_norm": True}),
    "cohere2": (
        "cohere2",
        {"head_dim": 16, "logit_scale": 0.2, "sliding_window": WINDOW, "layer_types": _LAYERS},
    ),
    "mixtral": ("mixtral", _LOCAL_EXPERTS),
    "qwen2moe": (
        "qwen2_moe",
        {**_EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    ),
    "qwen3moe": (
        "qwen3_moe",
        {**_EXPERTS, "moe_intermediate_size": 32, "norm_topk_prob": True, "head_dim": 16},
    ),
    "olmoe": ("olmoe", {**_EXPERTS, "num_key_value_heads": 4}),
    "granitemoe": (
        "granitemoe",
        {**_LOCAL_EXPERTS, "attention_multiplier": 0.2, "residual_multiplier": 0.3,
         "embedding_multiplier": 2.0, "logits_scaling": 3.0},
    ),
    "gemma4": (
        "gemma4_text",
        {
            **_GEMMA4, "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "final_logit_softcapping": 30.0,
        },
    ),
    "gemma4-experts": (
        "gemma4_text",
        {
            **_GEMMA4, **_EXPERTS, "hidden_size_per_layer_input": 0, "enable_moe_block": True, "top_k_experts": 2,
            "moe_intermediate_size": 32, "layer_types": _LAYERS, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
    ),
    "gemma4-keys-as-values": (
        "gemma4_text",
        {
            **_GEMMA4, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1, "layer_types": _LAYERS,
        },
    ),
    "gpt-oss": (
        "gpt_oss",
        {**_LOCAL_EXPERTS, "head_dim": 16, "sliding_window": WINDOW, "rope_parameters": _YARN},
    ),
}  # fmt: skip

# Those that our decoder computes, and those that are for the bridge alone.
TWINS = [
    "gemma", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "granite", "olmo2",
    "internlm2", "biased-llama", "exaone", "qwen2vl", "qwen3vl", "olmo3", "smollm3", "exaone4", "exaone4-small",
    "glm4", "seed_oss", "ernie4_5", "mixtral", "qwen2moe", "qwen3moe", "olmoe", "granitemoe",
    "gpt-oss", "mistral3", "gemma4", "gemma4-keys-as-values", "gemma4-experts",
]  # fmt: skip
OURS_ALONE = [
    "gpt-oss",
    "gemma4",
    "gemma4-keys-as-values",
    "gemma4-experts",
]  # of them, those that have no bridge
BRIDGED_TWINS = [name for name in TWINS if name not in OURS_ALONE]
BRIDGE_TWINS = [
    "arcee", "hunyuan-dense", "starcoder2", "stablelm", "stablelm-parallel", "nemotron", "olmo",
    "command-r", "command-r-norms", "cohere2",
]  # fmt: skip

EXTRA: dict[str, dict[str, object]] = {
    "gemma3": {"gemma3.attention.sliding_window_pattern": 4},
    "qwen2vl": {"qwen2vl.rope.dimension_sections": [2, 3, 3, 0]},
    "qwen3vl": {
        "qwen3vl.rope.dimension_sections": [8, 4, 4, 0], "qwen3vl.n_deepstack_layers": 0,
    },
    "mistral3": {
        "mistral3.rope.scaling.type": "yarn", "mistral3.rope.scaling.factor": 4.0,
        "mistral3.rope.scaling.original_context_length": 9, "mistral3.rope.scaling.yarn_log_multiplier": 1.0,
        "mistral3.attention.temperature_scale": 0.3,
    },
    "gpt-oss": {
        "gpt-oss.rope.scaling.type": "yarn", "gpt-oss.rope.scaling.factor": 4.0,
        "gpt-oss.rope.scaling.original_context_length": 128, "gpt-oss.expert_feed_forward_length": 96,
    },
}  # fmt: skip
_ARCHITECTURES = {  # of twins whose kind of model has another word
    **{name: name for name in ("internlm2", "exaone", "qwen2vl", "qwen3vl")},
    "biased-llama": "llama",
}


def load_module(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    with GgufFile.read(path) as file:
        plan = plan_model(file)
        check_weight_types(file)
        module = build_module(plan, file, dtype)
        reporter = LoadReporter(None)
        fill_weights(module, plan, file, device="cpu", dtype=dtype, reporter=reporter)
        loaded: PreTrainedModel = module
        return loaded


def make_twin(family: str, path: Path) -> PreTrainedModel:
    """Write a twin, and give the model that it is of."""
    module = make_twin_module(family)
    architecture = _ARCHITECTURES.get(family)
    write_twin(module, path, architecture=architecture, extra=EXTRA.get(family))
    return module


def make_twin_module(family: str, **changes: object) -> PreTrainedModel:
    """A model whose settings can be told from the file; the head's scale of Gemma cannot."""
    if family in _CONFIGS:
        kind, values = _CONFIGS[family]
        return remake(AutoConfig.for_model(kind, **copy.deepcopy({**_SHAPE, **values, **changes})))
    config = make_config(family) if family != "gemma" else make_gemma_config()
    if family.startswith("gemma"):
        config.query_pre_attn_scalar = config.head_dim
    if family == "mistral":
        config.sliding_window = None
    if family == "gemma3":
        config.layer_types = ["sliding_attention"] * 3 + ["full_attention"]
    return remake(config)


def make_gemma_config() -> GemmaConfig:
    values = wide_config().to_dict()
    keys = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
    )  # fmt: skip
    return GemmaConfig(**{key: values[key] for key in keys}, head_dim=32, pad_token_id=None)


def remake(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(3)
    module: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.3)
        vary_layer_scales(module)
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
