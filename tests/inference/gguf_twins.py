"""Tiny models written as GGUF files and loaded back, for the tests of the GGUF loader."""

from pathlib import Path

import torch
from transformers import (
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
from tests.inference.tiny_models import (
    VOCAB_SIZE,
    eager_logits,
    make_config,
    make_tokens,
)

TWINS = [
    "gemma", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "granite", "olmo2",
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
