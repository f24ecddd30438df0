"""Weights that stay packed, in whole models: by the CPU's operators, against plain ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.errors import UnsupportedModelError
from inference.formats.gguf import GgufFile
from inference.model import gpu_weights, model_paths
from inference.model.decoder import TorchDecoder
from inference.model.gpu_linear import PackedLinear
from inference.model.gpu_weights import load_weights
from inference.model.int4_product import CpuInt4, CudaInt4
from inference.model.loader import load_model
from inference.model.model_paths import Wish
from inference.model.spec import WeightKey
from inference.model.weight_plan import WeightPlan, plan_weights
from tests.inference.loaded_models import logits_of
from tests.inference.packed_models import (
    CPU,
    NONE,
    NUM_LAYERS,
    TOKENS,
    decoder_of,
    make_twin,
    plain_logits,
    weights_in,
)
from tests.inference.test_gpu_linear import shuffled_convert


def bits_of(plan: WeightPlan) -> dict[int, int]:
    bits = [matrix.num_bits for matrix in plan.matrices.values()]
    return {number: bits.count(number) for number in sorted(set(bits))}


# --- what is packed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantization", "num_bits"),
    [("Q4_0", 4), ("Q4_1", 4), ("Q5_0", 8), ("Q5_1", 8), ("Q8_0", 8)],
)
def test_packed_weights_give_logits_of_the_file(
    tmp_path: Path, quantization: str, num_bits: int
) -> None:
    path = make_twin(tmp_path, quantization, attention_bias=True, mlp_bias=True)
    with GgufFile.read(path) as file:
        weights = weights_in(file)
        plan = plan_weights(weights, torch.float32, CpuInt4())
        assert bits_of(plan) == {num_bits: 7 * NUM_LAYERS + 1}
        expected = plain_logits(weights, torch.float32)
        actual = logits_of(decoder_of(plan), TOKENS, chunk_tokens=7)
        torch.testing.assert_close(actual, expected, atol=2e-3, rtol=1e-4)
        half = logits_of(
            decoder_of(plan_weights(weights, torch.bfloat16, CpuInt4())), TOKENS, chunk_tokens=7
        )
        # As far as the type that is computed in allows.
        error = (half - expected).norm() / expected.norm()
        plain_error = (plain_logits(weights, torch.bfloat16) - expected).norm() / expected.norm()
        assert error < 2 * plain_error


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_1"])
def test_floats_are_rounded_if_that_is_wished_for(tmp_path: Path, type_name: Any) -> None:
    path = make_twin(tmp_path, "F16")
    with GgufFile.read(path) as file:
        weights = weights_in(file)
        expected = plain_logits(weights, torch.float32)
        kept = plan_weights(weights, torch.float32, CpuInt4())
        assert kept.is_plain
        plan = plan_weights(weights, torch.float32, CpuInt4(), type_name)
        assert (kept.rounded_to, plan.rounded_to) == ("", type_name)
        layers = 7 * NUM_LAYERS
        # The head keeps 8 bits even then.
        assert bits_of(plan) == ({8: layers + 1} if type_name == "Q8_0" else {4: layers, 8: 1})
        assert kept.arithmetic != plan.arithmetic
        assert kept.words == ""
        assert (
            plan.words
            == {"Q8_0": "weights in 8 bits", "Q4_1": "weights in 4 and 8 bits"}[type_name]
        )
        error = (logits_of(decoder_of(plan), TOKENS) - expected).norm() / expected.norm()
        assert 1e-4 < error < {"Q8_0": 0.04, "Q4_1": 0.25}[type_name]


def test_type_without_a_product_of_its_own_gets_8_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.model.weight_plan.CODED_TYPES", frozenset({"Q8_0"}))
    path = make_twin(tmp_path, "Q5_1")  # as if it were Q6_K, which the writer cannot make
    with GgufFile.read(path) as file:
        weights = weights_in(file)
        plan = plan_weights(weights, torch.float32, CpuInt4())
        assert bits_of(plan) == {8: 7 * NUM_LAYERS + 1}
        assert plan.rounded_to == ""  # it had no floats
        expected = plain_logits(weights, torch.float32)
        error = (logits_of(decoder_of(plan), TOKENS) - expected).norm() / expected.norm()
        assert error < 0.04


def test_matrices_that_fit_no_tile_are_floats(tmp_path: Path) -> None:
    path = make_twin(tmp_path, "Q4_0", vocab_size=260)
    with GgufFile.read(path) as file:
        plan = plan_weights(weights_in(file), torch.float32, CpuInt4())
        assert bits_of(plan) == {0: 1, 4: 7 * NUM_LAYERS}
        assert plan.matrices[WeightKey("head")].num_bits == 0
        expected = plain_logits(plan.weights, torch.float32)
        actual = logits_of(decoder_of(plan), TOKENS)
        torch.testing.assert_close(actual, expected, atol=2e-3, rtol=1e-4)


def test_float_unpacks_all(tmp_path: Path) -> None:
    with GgufFile.read(make_twin(tmp_path, "Q4_0")) as file:
        plan = plan_weights(weights_in(file), torch.float32, CpuInt4(), "float")
        assert plan.is_plain
        assert plan.arithmetic == "torch.float32"
        assert plan_weights(weights_in(file), torch.float32, None).is_plain


@pytest.mark.parametrize("quantization", ["Q4_1", "Q8_0", "F32"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_planned_bytes_are_those_of_the_tensors(
    tmp_path: Path, quantization: str, is_tied: bool
) -> None:
    path = make_twin(tmp_path, quantization, tie_word_embeddings=is_tied)
    with GgufFile.read(path) as file:
        plan = plan_weights(weights_in(file), torch.bfloat16, CpuInt4())
        placed = load_weights(plan, CPU, NONE, num_threads=1)
        addresses: dict[int, int] = {}
        for linear in placed.linears.values():
            for tensor in tensors_of(linear):
                addresses[tensor.data_ptr()] = tensor.nbytes
        for tensor in placed.vectors.values():
            addresses[tensor.data_ptr()] = tensor.nbytes
        assert sum(addresses.values()) == plan.shared_bytes + sum(plan.layer_bytes)
        expected = plain_logits(plan.weights, torch.bfloat16)
        actual = logits_of(decoder_of(plan), TOKENS, chunk_tokens=7)
        assert (actual - expected).norm() < 0.05 * expected.norm()


def tensors_of(linear: Any) -> list[Tensor]:
    if isinstance(linear, PackedLinear):
        return [tensor for part in linear._parts for tensor in part]
    return [linear.weight]


def test_large_matrix_is_packed_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GgufFile.read(make_twin(tmp_path, "Q4_1")) as file:
        plan = plan_weights(weights_in(file), torch.float32, CpuInt4())
        whole = logits_of(decoder_of(plan), TOKENS)
        monkeypatch.setattr(gpu_weights, "_SLICE_ELEMENTS", 1)  # 64 rows at a time
        assert torch.equal(logits_of(decoder_of(plan), TOKENS), whole)


class EmulatedCuda(CudaInt4):
    """The product of CUDA with its tiles and checks, computed with what it unpacks."""

    def __init__(self) -> None:
        super().__init__(shuffled_convert)

    def multiply(self, x: Tensor, packed: Tensor, scales_and_zeros: Tensor) -> Tensor:
        (num_rows, K), N = x.shape, packed.shape[0] * 8
        assert num_rows > 0
        assert x.dtype == scales_and_zeros.dtype == torch.bfloat16
        assert x.is_contiguous()
        assert packed.is_contiguous()
        assert packed.shape[1:] == (K // (32 * packed.shape[3]), 32, packed.shape[3])
        assert scales_and_zeros.shape == (K // 32, N, 2)
        scale, zero = scales_and_zeros.float().permute(2, 1, 0).repeat_interleave(32, dim=2)
        weights = (self.unpack(packed, K).float() - 8) * scale + zero
        product: Tensor = x.float() @ weights.bfloat16().float().t()
        return product.bfloat16()


@pytest.mark.parametrize("many_rows", [5, 512])
def test_packed_for_cuda_a_model_gives_logits_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many_rows: int
) -> None:
    monkeypatch.setattr("inference.model.gpu_linear.MANY_ROWS", many_rows)
    path = make_twin(tmp_path, "Q4_1", tie_word_embeddings=True, attention_bias=True)
    with GgufFile.read(path) as file:
        weights = weights_in(file)
        plan = plan_weights(weights, torch.bfloat16, EmulatedCuda())
        assert bits_of(plan) == {4: 7 * NUM_LAYERS + 1}
        expected = plain_logits(weights, torch.float32)
        plain = plain_logits(weights, torch.bfloat16)
        there = decoder_of(plan, frozenset({2, 3}))
    bound = 2 * (plain - expected).norm()
    for chunk_tokens in (7, 1):
        logits = logits_of(there, TOKENS, chunk_tokens=chunk_tokens)
        assert (logits - expected).norm() < bound
    monkeypatch.setattr(model_paths, "find_int4", lambda _device: EmulatedCuda())
    assert model_paths._int4_product(Wish("cpu", "auto", "auto", 1)) is None
    assert model_paths._int4_product(Wish("cuda", "auto", "auto", 1)) is not None


@pytest.mark.slow
def test_starter_model_loses_no_more_by_packing_than_by_its_type(starter_model_path: Path) -> None:
    with GgufFile.read(starter_model_path) as file:
        weights = weights_in(file)
        plan = plan_weights(weights, torch.bfloat16, CpuInt4())
        assert bits_of(plan) == {4: 210, 8: 1}
        assert plan.shared_bytes + sum(plan.layer_bytes) < 0.6 * 2 * weights.num_parameters
        expected = plain_logits(weights, torch.float32)
        plain = plain_logits(weights, torch.bfloat16)
        packed = logits_of(decoder_of(plan), TOKENS, chunk_tokens=7)
    assert (packed - expected).norm() < 1.5 * (plain - expected).norm()


# --- which device may do what -----------------------------------------------------------------


def test_packing_on_a_cpu_is_left_to_the_kernels(tmp_path: Path) -> None:
    path = make_twin(tmp_path, "Q4_0")
    model = load_model(path, backend="torch").model
    assert isinstance(model, TorchDecoder)
    assert not isinstance(model._head, PackedLinear)
    plain = load_model(path, backend="auto", weights="float").model
    assert isinstance(plain, TorchDecoder)
    with pytest.raises(UnsupportedModelError, match="the kernels compute with weights as the file"):
        load_model(path, backend="fast", weights="float")


def test_rounding_without_a_product_for_the_type_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuInt4, "can_take", lambda *_: False)
    monkeypatch.setattr(model_paths, "_int4_product", lambda _wish: CpuInt4())
    with pytest.raises(UnsupportedModelError, match="Weights are kept as Q8_0"):
        load_model(make_twin(tmp_path, "F16"), backend="torch", weights="Q8_0")
