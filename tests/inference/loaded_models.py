"""Runs models as they were loaded, over blocks full of garbage."""

from copy import copy
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from inference.attention.blocks import BlocksAttention
from inference.config import KvSchemeName
from inference.kernels.library import load_kernels
from inference.kv_cache.schemes import find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.model.base import LanguageModel
from inference.model.step import Chunk
from inference.text.tokenizer import Tokenizer
from tests.inference.tiny_models import fill_with_garbage

needs_kernels = pytest.mark.skipif(load_kernels() is None, reason="the kernels are not built")


def endless(tokenizer: Tokenizer) -> Tokenizer:
    """The same, but for ends of turns: a reply goes on behind them."""
    other = copy(tokenizer)
    other.eos_ids = frozenset()
    return other


def num_mappings(path: Path) -> int:
    """How often this process has a file mapped."""
    return sum(1 for item in psutil.Process().memory_maps() if Path(item.path) == path)


def logits_of(
    model: nn.Module | LanguageModel,
    token_ids: list[int],
    *,
    chunk_tokens: int = 1000,
    kv_scheme: KvSchemeName = "fp32",
) -> torch.Tensor:
    """Logits of every row, (T, V), computed in chunks over blocks full of garbage."""
    assert not isinstance(model, nn.Module)
    kv = KvTensors(
        model.geometry,
        num_blocks=64,
        block_size=8,
        scheme=find_scheme(kv_scheme, model.dtype),
        device=model.device,
    )
    fill_with_garbage(kv)
    runner = model.make_runner(kv, BlocksAttention())
    table = list(range(63, -1, -1))
    rows = [
        runner.run([Chunk(token_ids[low : low + chunk_tokens], low, table, True, True)])
        for low in range(0, len(token_ids), chunk_tokens)
    ]
    return torch.cat(rows)
