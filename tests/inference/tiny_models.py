"""Tiny seeded models of several families, made on the spot, and the truth about their logits."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from inference.attention.base import AttentionBackend
from inference.attention.blocks import BlocksAttention
from inference.attention.reference import ReferenceAttention
from inference.config import KvSchemeName
from inference.kv_cache.schemes import LayerGeometry, find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.model.bridge import TransformersBridge
from inference.model.runner import ModelRunner
from inference.model.step import Chunk

VOCAB_SIZE = 260  # 256 bytes after 4 control tokens, see tiny_engine
WINDOW = 11  # smaller than every prompt in the tests
_SHAPE = {
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
_SLIDING = {"head_dim": 16, "sliding_window": WINDOW}
_MIXED_LAYERS = ["sliding_attention", "full_attention"] * 2


def make_config(family: str) -> PretrainedConfig:
    """A configuration of the family's shape, as small as its features allow."""
    makers = {
        "llama": lambda: LlamaConfig(**_SHAPE),
        "mistral": lambda: MistralConfig(**_SHAPE, sliding_window=WINDOW),
        "qwen2": lambda: Qwen2Config(**_SHAPE),
        "qwen3": lambda: Qwen3Config(**_SHAPE, head_dim=16),
        "phi3": lambda: Phi3Config(**_SHAPE),
        "granite": lambda: GraniteConfig(**_SHAPE, attention_multiplier=0.2),
        "olmo2": lambda: Olmo2Config(**_SHAPE),
        "gemma2": lambda: Gemma2Config(
            **_SHAPE,
            **_SLIDING,
            layer_types=_MIXED_LAYERS,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=3.0,
            query_pre_attn_scalar=24,
        ),
        "gemma3": lambda: Gemma3TextConfig(
            **_SHAPE, **_SLIDING, layer_types=_MIXED_LAYERS, query_pre_attn_scalar=24
        ),
    }
    return makers[family]()


def make_module(
    family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """A model with random weights, large enough that every layer moves the logits."""
    torch.manual_seed(seed)
    module = AutoModelForCausalLM.from_config(make_config(family))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.12 if "embed" not in name else 1.0)
    tiny: PreTrainedModel = module.to(dtype).eval()
    return tiny


def make_tokens(count: int, *, seed: int = 1) -> list[int]:
    """Random token ids, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, VOCAB_SIZE, (count,), generator=generator).tolist()


def eager_logits(module: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """What transformers' own eager forward says, (T, V)."""
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    with torch.inference_mode():
        logits: Tensor = module(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[
            0
        ]
    module.set_attn_implementation(before)
    return logits.float()


def make_attention(name: str) -> AttentionBackend:
    return BlocksAttention() if name == "blocks" else ReferenceAttention()


def make_runner(
    module: PreTrainedModel,
    *,
    attention: str = "blocks",
    num_blocks: int = 64,
    block_size: int = 8,
    kv_scheme: KvSchemeName = "fp32",
) -> ModelRunner:
    """A runner over the model whose free blocks are full of garbage."""
    bridge = TransformersBridge(module, Path("tiny"))
    kv = make_tensors(
        bridge.geometry,
        kv_scheme,
        num_blocks=num_blocks,
        block_size=block_size,
        dtype=bridge.dtype,
    )
    return ModelRunner(bridge, kv, make_attention(attention), device=torch.device("cpu"))


def make_tensors(
    geometry: Sequence[LayerGeometry],
    scheme: KvSchemeName,
    *,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype = torch.float32,
) -> KvTensors:
    """Blocks on the CPU, full of garbage: NaN wherever there are floats."""
    kv = KvTensors(
        geometry,
        num_blocks=num_blocks,
        block_size=block_size,
        scheme=find_scheme(scheme, dtype),
        device=torch.device("cpu"),
    )
    fill_with_garbage(kv)
    return kv


def fill_with_garbage(kv: KvTensors) -> None:
    """Make every bit of every block 1: NaN in all float types, so also in all scales."""
    for layer in kv.layers:
        for plane in layer.planes:
            plane.view(torch.uint8).fill_(255)


def run_chunked(
    runner: ModelRunner,
    token_ids: Sequence[int],
    block_table: Sequence[int],
    *,
    chunk_tokens: int,
    start: int = 0,
) -> Tensor:
    """Feed a prompt in chunks; the logits after each chunk, one row per chunk."""
    rows = []
    for low in range(start, len(token_ids), chunk_tokens):
        part = token_ids[low : low + chunk_tokens]
        rows.append(runner.run([Chunk(part, low, block_table, needs_logits=True)])[0])
    return torch.stack(rows)


def vary_layer_scales(module: nn.Module) -> None:
    """Give Gemma 4's numbers behind each layer values that count: they are no parameters."""
    for name, buffer in module.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.uniform_(0.6, 1.4)
