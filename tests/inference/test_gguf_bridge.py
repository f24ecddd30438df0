"""GGUF files of families that only transformers computes, from the file to the logits over blocks."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from inference.model.loader import load_model
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import BRIDGE_TWINS, make_twin, make_twin_module
from tests.inference.tiny_models import eager_logits, make_runner, make_tokens, run_chunked

TABLE = [5, 6, 7, 9, 2, 1, 4]
TOKENS = make_tokens(45)


@pytest.mark.parametrize(
    "family", [*BRIDGE_TWINS, "mixtral", "qwen2moe", "qwen3moe", "olmoe", "granitemoe"]
)
def test_loaded_model_gives_logits_of_the_original_over_blocks(tmp_path: Path, family: str) -> None:
    path = tmp_path / "twin.gguf"
    module = make_twin(family, path)
    loaded = load_model(path, dtype="float32")
    assert isinstance(loaded.module, PreTrainedModel)
    runner = make_runner(loaded.module, block_size=8)
    logits = run_chunked(runner, TOKENS, TABLE, chunk_tokens=7)
    expected = eager_logits(module, TOKENS)
    ends = [min(low + 7, len(TOKENS)) - 1 for low in range(0, len(TOKENS), 7)]
    torch.testing.assert_close(logits, expected[ends], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("quantization", ["Q8_0", "F16"])
def test_experts_of_rounded_weights_are_joined_as_they_lie(
    tmp_path: Path, quantization: str
) -> None:
    module = make_twin_module("olmoe")
    exact, rounded = (
        load_model(write_twin(module, tmp_path / f"{name}.gguf", quantization=name))
        for name in ("F32", quantization)
    )
    for name, weight in module.named_parameters():
        ours = rounded.module.get_parameter(name).float()
        torch.testing.assert_close(exact.module.get_parameter(name).float(), weight, rtol=0, atol=0)
        step = float(weight.detach().abs().max()) / (127 if quantization == "Q8_0" else 2048)
        np.testing.assert_allclose(ours.detach(), weight.detach(), atol=step, rtol=0)
