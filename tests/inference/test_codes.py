"""Codes, scales and minima, as they lie in the blocks, against the weights that the blocks stand for."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from inference.formats.codes import CODED_TYPES, FOUR_BIT_TYPES, GROUP, read_codes
from inference.formats.gguf_types import TENSOR_TYPES_BY_NAME
from tests.inference.weight_blocks import make_blocks

SCALES = [[0.0123, -0.5, 1.0], [0.0], [6e-8, 5e-7, -6e-8], [60000.0, -60000.0]]


@pytest.mark.parametrize("type_name", sorted(CODED_TYPES))
@pytest.mark.parametrize("scales", SCALES, ids=["ordinary", "zero", "subnormal", "largest"])
def test_codes_stand_for_the_weights_of_the_blocks(type_name: str, scales: list[float]) -> None:
    num_rows, blocks_per_row = 7, 3
    blocks = make_blocks(type_name, num_rows * blocks_per_row, scales)
    rows = blocks.reshape(num_rows, -1)
    read = read_codes(torch.from_numpy(rows), type_name)
    K = blocks_per_row * TENSOR_TYPES_BY_NAME[type_name].block_elements
    assert read.codes.dtype == torch.uint8
    assert read.codes.shape == (num_rows, K)
    assert read.scale.shape == read.minimum.shape == (num_rows, K // GROUP)
    if type_name in FOUR_BIT_TYPES:
        assert int(read.codes.max()) <= 15
    expected = gguf.quants.dequantize(rows, GGMLQuantizationType[type_name])
    largest = float(np.abs(expected).max())
    # The order of the sums differs: exact up to the rounding of float32.
    np.testing.assert_allclose(
        read.weights.numpy(), expected.reshape(num_rows, K), rtol=0, atol=2e-5 * largest
    )


def test_codes_are_those_of_the_file() -> None:
    values = np.arange(32, dtype=np.float32)[None] / 2 - 1
    rows = gguf.quants.quantize(np.minimum(values, 6.5), GGMLQuantizationType.Q4_1)
    read = read_codes(torch.from_numpy(rows), "Q4_1")
    assert read.codes[0].tolist() == [*range(16), *[15] * 16]
    assert read.scale.tolist() == [[0.5]]
    assert read.minimum.tolist() == [[-1.0]]
