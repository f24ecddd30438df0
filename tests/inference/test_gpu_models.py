"""Whole models on a CUDA device, their weights packed or on the host, against the same on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.formats.gguf import GgufFile
from inference.model import placement
from inference.model.bridge import TransformersBridge
from inference.model.decoder import TorchDecoder
from inference.model.gguf_decoder import describe_gguf
from inference.model.gguf_models import plan_model
from inference.model.gpu_linear import PackedLinear
from inference.model.gpu_weights import load_weights
from inference.model.int4_product import find_int4
from inference.model.loader import load_model
from inference.model.placement import Room
from inference.model.weight_plan import WeightPlan, plan_weights
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import remake, wide_config
from tests.inference.loaded_models import logits_of
from tests.inference.tiny_models import make_tokens

pytestmark = pytest.mark.gpu
TOKENS = make_tokens(30)


def make_twin(folder: Path, quantization: str, num_layers: int = 4) -> Path:
    config = wide_config(num_hidden_layers=num_layers, vocab_size=272, tie_word_embeddings=True)
    module = remake(config)
    return write_twin(module, folder / "twin.gguf", quantization=quantization)


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual.cpu() - expected.cpu()).norm() / expected.cpu().norm())


def on_cuda(path: Path, **wishes: Any) -> TorchDecoder:
    model = load_model(path, device="cuda", backend="auto", **wishes).model
    assert isinstance(model, TorchDecoder)
    assert model.device.type == "cuda"
    return model


@pytest.mark.parametrize("quantization", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16"])
def test_model_on_cuda_gives_logits_of_the_cpu(tmp_path: Path, quantization: str) -> None:
    path = make_twin(tmp_path, quantization)
    expected = logits_of(load_model(path, backend="torch", dtype="float32").model, TOKENS)
    model = on_cuda(path)
    has_product = find_int4(model.device) is not None and model.dtype == torch.bfloat16
    assert isinstance(model._head, PackedLinear) is (has_product and quantization != "F16")
    plain = relative(logits_of(on_cuda(path, weights="float"), TOKENS), expected)
    for chunk_tokens in (30, 7, 1):
        actual = logits_of(model, TOKENS, chunk_tokens=chunk_tokens)
        assert relative(actual, expected) < max(2 * plain, 0.01)


def test_float32_on_cuda_is_that_of_the_cpu(tmp_path: Path) -> None:
    path = make_twin(tmp_path, "Q4_1")
    expected = logits_of(load_model(path, backend="torch", dtype="float32").model, TOKENS)
    actual = logits_of(on_cuda(path, dtype="float32"), TOKENS, chunk_tokens=7)
    torch.testing.assert_close(actual.cpu(), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("quantization", ["Q4_1", "Q8_0", "F16"])
@pytest.mark.parametrize("on_host", [{3}, {2, 3}, {1, 2, 3}, {0, 1, 2, 3}])
def test_layers_on_the_host_give_the_same_bits(
    tmp_path: Path, quantization: str, on_host: set[int]
) -> None:
    device = torch.device("cuda")
    with GgufFile.read(make_twin(tmp_path, quantization)) as file:
        weights = describe_gguf(plan_model(file), file)
        plan = plan_weights(weights, torch.bfloat16, find_int4(device))
        here = _decoder(plan, device, frozenset())
        there = _decoder(plan, device, frozenset(on_host))
    for chunk_tokens in (30, 7, 1):
        expected = logits_of(here, TOKENS, chunk_tokens=chunk_tokens)
        for _ in range(3):
            assert torch.equal(logits_of(there, TOKENS, chunk_tokens=chunk_tokens), expected)


def _decoder(plan: WeightPlan, device: torch.device, on_host: frozenset[int]) -> TorchDecoder:
    placed = load_weights(plan, device, on_host, num_threads=2)
    spec = plan.weights.spec
    return TorchDecoder(spec, placed.vectors, linears=placed.linears, stream=placed.stream)


def test_bridge_is_placed_on_device_and_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_twin(tmp_path, "F16", num_layers=6)
    whole = load_model(path, device="cuda", backend="bridge").module
    layer = sum(p.nbytes for p in whole.model.layers[0].parameters())  # type: ignore[index, union-attr]  # a Llama
    shared = sum(p.nbytes for p in whole.parameters()) - 6 * layer
    room = Room("cuda", 0, shared + 4 * layer + 10_000, 2**30, 0)
    monkeypatch.setattr(placement.Room, "on", lambda _device: room)
    split = load_model(path, device="cuda", backend="bridge")
    assert "layers on cuda" in split.placement
    assert not split.placement.startswith(("0 of", "6 of"))
    expected = logits_of(TransformersBridge(whole, path), TOKENS, chunk_tokens=7)
    actual = logits_of(TransformersBridge(split.module, path), TOKENS, chunk_tokens=7)
    assert relative(actual, expected) < 0.01
