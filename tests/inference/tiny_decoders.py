"""Our decoder over the weights of tiny transformers models, with every option that a family has."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    Ernie4_5Config,
    Exaone4Config,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GemmaConfig,
    Glm4Config,
    GraniteConfig,
    LlamaConfig,
    Ministral3Config,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SeedOssConfig,
    SmolLM3Config,
)

from inference.config import KvSchemeName
from inference.formats.gguf import GgufFile
from inference.formats.gguf_types import GgufTensor
from inference.kv_cache.schemes import find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.model.decoder import TorchDecoder
from inference.model.decoder_weights import DecoderWeights, read_weights
from inference.model.gguf_decoder import describe_gguf
from inference.model.gguf_models import plan_model
from inference.model.runner import ModelRunner
from inference.model.spec import ModelSpec
from inference.model.spec_configs import spec_from_folder
from inference.model.spec_weights import folder_sources
from tests.inference.tiny_models import (
    VOCAB_SIZE,
    WINDOW,
    fill_with_garbage,
    make_attention,
    vary_layer_scales,
)

SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BASE = {"rope_theta": 10_000.0}
ROPES = {
    "linear": {**_BASE, "rope_type": "linear", "factor": 4.0},
    "llama3": {
        **_BASE,
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        **_BASE,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    },
}
_LONGROPE = {
    **_BASE,
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [4.0] * 4,
}
_TYPE_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_WINDOWED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2}

VARIANTS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "llama-tied": lambda: LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama-biases": lambda: LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama-wide-heads": lambda: LlamaConfig(**{**SHAPE, "num_key_value_heads": 1}, head_dim=16),
    "llama-linear": lambda: LlamaConfig(**SHAPE, rope_parameters=dict(ROPES["linear"])),
    "llama-llama3": lambda: LlamaConfig(**SHAPE, rope_parameters=dict(ROPES["llama3"])),
    "llama-yarn": lambda: LlamaConfig(**SHAPE, rope_parameters=dict(ROPES["yarn"])),
    "mistral": lambda: MistralConfig(**SHAPE, sliding_window=None),
    "mistral-window": lambda: MistralConfig(**SHAPE, sliding_window=WINDOW),
    "ministral3": lambda: Ministral3Config(
        **SHAPE, head_dim=16, rope_parameters={**ROPES["yarn"], "llama_4_scaling_beta": 0.0}
    ),
    "ministral3-growing": lambda: Ministral3Config(
        **SHAPE,
        head_dim=16,
        rope_parameters={
            **ROPES["yarn"],
            "original_max_position_embeddings": 37,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.4,
        },
    ),
    "qwen2": lambda: Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen2-window": lambda: Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
    ),
    "qwen2-yarn": lambda: Qwen2Config(**SHAPE, rope_parameters=dict(ROPES["yarn"])),
    "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=16),
    "qwen3-biases": lambda: Qwen3Config(**SHAPE, head_dim=16, attention_bias=True),
    "gemma": lambda: GemmaConfig(**SHAPE, head_dim=16),
    "gemma2": lambda: Gemma2Config(
        **SHAPE,
        **_WINDOWED,
        head_dim=16,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
        query_pre_attn_scalar=24,
    ),
    "gemma2-no-caps": lambda: Gemma2Config(
        **SHAPE, sliding_window=WINDOW, attn_logit_softcapping=None, final_logit_softcapping=None
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **SHAPE, **_WINDOWED, head_dim=16, query_pre_attn_scalar=24, final_logit_softcapping=30.0
    ),
    "gemma3-linear": lambda: Gemma3TextConfig(
        **{**SHAPE, "num_hidden_layers": 7},
        head_dim=16,
        sliding_window=WINDOW,
        rope_parameters={
            "full_attention": {**ROPES["linear"], "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    ),
    "gemma4": lambda: Gemma4TextConfig(
        **{**SHAPE, "num_hidden_layers": 6},
        head_dim=16,
        global_head_dim=24,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 3,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB_SIZE,
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
        final_logit_softcapping=30.0,
    ),
    "gemma4-keys-as-values": lambda: Gemma4TextConfig(
        **SHAPE,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
        final_logit_softcapping=None,
    ),
    "phi3": lambda: Phi3Config(**SHAPE, sliding_window=WINDOW),
    "phi3-partial": lambda: Phi3Config(
        **SHAPE, rope_parameters={**_BASE, "rope_type": "default", "partial_rotary_factor": 0.5}
    ),
    "phi3-longrope": lambda: Phi3Config(
        **SHAPE, rope_parameters=dict(_LONGROPE), original_max_position_embeddings=96
    ),
    "granite": lambda: GraniteConfig(
        **SHAPE,
        attention_bias=True,
        embedding_multiplier=3.0,
        residual_multiplier=0.22,
        attention_multiplier=0.2,
        logits_scaling=4.0,
    ),
    "olmo2": lambda: Olmo2Config(**SHAPE),
    "olmo2-biases": lambda: Olmo2Config(**SHAPE, attention_bias=True),
    "olmo3": lambda: Olmo3Config(**SHAPE, sliding_window=WINDOW),
    "olmo3-yarn": lambda: Olmo3Config(
        **SHAPE,
        **_WINDOWED,
        rope_parameters={
            "full_attention": {**ROPES["yarn"], "rope_theta": 500_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0},
        },
    ),
    "smollm3": lambda: SmolLM3Config(**SHAPE),
    "smollm3-other-layers": lambda: SmolLM3Config(
        **SHAPE, no_rope_layers=[0, 1, 1, 0], attention_bias=True, mlp_bias=True
    ),
    "exaone4": lambda: Exaone4Config(
        **SHAPE, sliding_window=WINDOW, rope_parameters=dict(ROPES["llama3"])
    ),
    "exaone4-no-window": lambda: Exaone4Config(
        **SHAPE, sliding_window=None, layer_types=["full_attention"] * 4
    ),
    "glm4": lambda: Glm4Config(**SHAPE, head_dim=16),
    "glm4-no-biases": lambda: Glm4Config(
        **SHAPE,
        head_dim=16,
        attention_bias=False,
        rope_parameters={**_BASE, "rope_type": "default", "partial_rotary_factor": 1.0},
    ),
    "seed_oss": lambda: SeedOssConfig(**SHAPE, head_dim=16),
    "ernie4_5": lambda: Ernie4_5Config(**SHAPE, head_dim=16),
}


def make_variant(name: str, *, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A transformers model in which every number counts, norms and biases too."""
    torch.manual_seed(5)
    module: PreTrainedModel = AutoModelForCausalLM.from_config(VARIANTS[name]())
    with torch.no_grad():
        for parameter_name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 1.0 if "embed" in parameter_name else 0.12)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        vary_layer_scales(module)
    return module.to(dtype).eval()


def spec_of(module: PreTrainedModel) -> ModelSpec:
    """What its config.json says."""
    return spec_from_folder(json.loads(module.config.to_json_string()))


class TensorFile:
    """Tensors of this process, as if they lay in a file: a `WeightFile`."""

    path = Path("tensors")

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        self.tensors = {
            name: GgufTensor(name, tuple(tensor.shape), _TYPE_NAMES[tensor.dtype], 0, tensor.nbytes)
            for name, tensor in tensors.items()
        }
        self.released: list[str] = []

    def tensor_data(self, name: str) -> torch.Tensor:
        return self._tensors[name].view(-1).view(torch.uint8)

    def release(self, name: str) -> None:
        self.released.append(name)


def weights_of(module: PreTrainedModel) -> DecoderWeights:
    """Its weights, for our decoder."""
    spec = spec_of(module)
    return DecoderWeights(TensorFile(module.state_dict()), spec, folder_sources(spec))


def decoder_of(module: PreTrainedModel) -> TorchDecoder:
    """Our decoder with its weights."""
    weights = weights_of(module)
    return TorchDecoder(weights.spec, read_weights(weights, dtype=module.dtype))


def decoder_from_gguf(path: Path, dtype: torch.dtype = torch.float32) -> TorchDecoder:
    """Our decoder over a file."""
    with GgufFile.read(path) as file:
        weights = describe_gguf(plan_model(file), file)
        return TorchDecoder(weights.spec, read_weights(weights, dtype=dtype))


def make_decoder_runner(
    decoder: TorchDecoder,
    *,
    attention: str = "blocks",
    num_blocks: int = 64,
    block_size: int = 8,
    kv_scheme: KvSchemeName = "fp32",
) -> ModelRunner:
    """A runner over the decoder whose free blocks are full of garbage."""
    kv = KvTensors(
        decoder.geometry,
        num_blocks=num_blocks,
        block_size=block_size,
        scheme=find_scheme(kv_scheme, decoder.dtype),
        device=decoder.device,
    )
    fill_with_garbage(kv)
    runner = decoder.make_runner(kv, make_attention(attention))
    assert isinstance(runner, ModelRunner)
    return runner
