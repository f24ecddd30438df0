import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from inference.formats import dequantize as module
from inference.formats.dequantize import can_dequantize, dequantize
from inference.formats.gguf_types import TENSOR_TYPES, TENSOR_TYPES_BY_NAME
from tests.inference.weight_blocks import BLOCK_TYPES, Bytes, make_blocks, oracle


def ours(blocks: Bytes, type_name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    shape = (blocks.shape[0], TENSOR_TYPES_BY_NAME[type_name].block_elements)
    return dequantize(torch.from_numpy(blocks.reshape(-1)), type_name, shape, dtype)


def test_type_table_against_gguf_package_is_equal():
    known = {int(t): size for t, size in gguf.GGML_QUANT_SIZES.items() if int(t) in TENSOR_TYPES}
    assert {i: (t.block_elements, t.block_bytes) for i, t in TENSOR_TYPES.items()} == known
    assert all(GGMLQuantizationType(i).name == t.name for i, t in TENSOR_TYPES.items())


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
@pytest.mark.parametrize(
    "scales",
    [[0.0123, -0.5, 1.0], [0.0], [6e-8, 5e-7, -6e-8], [65504.0, -65504.0]],
    ids=["ordinary", "zero", "subnormal", "largest"],
)
def test_dequantize_random_blocks_equals_oracle_exactly(type_name, scales):
    blocks = make_blocks(type_name, 37, scales)
    np.testing.assert_array_equal(ours(blocks, type_name).numpy(), oracle(blocks, type_name))


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_dequantize_blocks_of_zero_bytes_gives_zeros(type_name):
    blocks = np.zeros((3, TENSOR_TYPES_BY_NAME[type_name].block_bytes), dtype=np.uint8)
    # The least scale of MXFP4 is no zero.
    assert float(ours(blocks, type_name).abs().max()) <= (1e-37 if type_name == "MXFP4" else 0)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_dequantize_quantized_weights_stays_near_them(type_name):
    weights = np.random.default_rng(1).normal(size=(8, 64)).astype(np.float32)
    packed = gguf.quants.quantize(weights, GGMLQuantizationType[type_name])
    result = dequantize(torch.from_numpy(packed.reshape(-1)), type_name, (8, 64), torch.float32)
    bits = 8 if type_name == "Q8_0" else int(type_name[1])
    step = 2 * np.abs(weights).max() / 2**bits
    assert np.abs(result.numpy() - weights).max() <= step


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_dequantize_over_several_slices_equals_oracle(type_name, monkeypatch):
    monkeypatch.setattr(module, "SLICE_ELEMENTS", 1024)
    blocks = make_blocks(type_name, 101, [0.01, 0.02])
    expected = torch.from_numpy(oracle(blocks, type_name))
    assert torch.equal(ours(blocks, type_name), expected)
    assert torch.equal(ours(blocks, type_name, torch.bfloat16), expected.bfloat16())
    assert torch.equal(ours(blocks, type_name, torch.float16), expected.half())


@pytest.mark.parametrize(
    ("type_name", "dtype"),
    [
        ("F32", torch.float32),
        ("F16", torch.float16),
        ("BF16", torch.bfloat16),
        ("F64", torch.float64),
        ("I8", torch.int8),
        ("I16", torch.int16),
        ("I32", torch.int32),
    ],
)
@pytest.mark.parametrize("shift", [0, 1])
def test_dequantize_plain_type_keeps_values_and_copies(type_name, dtype, shift):
    values = torch.tensor([[0, 1, -2], [100, -128, 127]]).to(dtype)
    raw = torch.zeros(values.numel() * dtype.itemsize + shift, dtype=torch.uint8)
    raw[shift:] = values.view(torch.uint8).reshape(-1)
    result = dequantize(raw[shift:], type_name, (2, 3), torch.float32)
    raw.zero_()
    assert torch.equal(result, values.float())


def test_can_dequantize_each_known_type_only_listed_ones():
    known = {name for name in TENSOR_TYPES_BY_NAME if can_dequantize(name)}
    assert known == {*BLOCK_TYPES, "F32", "F16", "BF16", "F64", "I8", "I16", "I32"}
