"""Types that nothing computes with, as others: what is lost of the weights."""

import numpy as np
import pytest

from inference.formats.gguf_types import TENSOR_TYPES_BY_NAME
from inference.formats.repack import REPACKERS
from tests.inference.weight_blocks import Bytes, Floats, make_blocks, make_rows, oracle

# Share of the root mean square that may be lost; fp16 scales lose up to 0.05 % by themselves.
LOST = {
    "IQ3_S": 1e-3, "IQ3_XXS": 0.02, "IQ2_XXS": 0.023,
    "IQ2_XS": 0.065, "IQ2_S": 0.065, "IQ1_M": 0.065, "IQ1_S": 1e-3, "TQ1_0": 0.0, "TQ2_0": 0.0,
    "MXFP4": 0.0, "Q3_K": 0.0,
}  # fmt: skip


def repacked(blocks: Bytes, type_name: str) -> Floats:
    """What blocks stand for after they became another type; as many at a time as make whole blocks of it."""
    target, repack = REPACKERS[type_name]
    result = repack(blocks).reshape(-1, TENSOR_TYPES_BY_NAME[target].block_bytes)
    return oracle(result, target).reshape(len(blocks), -1)


def size(numbers: Floats) -> float:
    return float(np.sqrt((numbers.astype(np.float64) ** 2).mean()))


def test_each_type_has_a_bound() -> None:
    assert LOST.keys() == REPACKERS.keys()


@pytest.mark.parametrize("type_name", LOST)
def test_repacked_weights_are_near_those_of_the_file(type_name: str) -> None:
    rows = make_rows(type_name, 64, 1024, spread=0.05)
    blocks = rows.reshape(-1, TENSOR_TYPES_BY_NAME[type_name].block_bytes)
    expected = oracle(blocks, type_name)
    assert size(repacked(blocks, type_name) - expected) <= LOST[type_name] * size(expected)


@pytest.mark.parametrize("type_name", LOST)
@pytest.mark.parametrize(
    "scales",
    [[0.0123, -0.5, 1.0], [0.0], [6e-8, 5e-7, -6e-8], [900.0, -700.0], [65504.0]],
    ids=["ordinary", "zero", "subnormal", "large", "largest"],
)
def test_scales_of_all_sizes_are_kept(type_name: str, scales: list[float]) -> None:
    blocks = make_blocks(type_name, 64, scales)
    expected, found = oracle(blocks, type_name), repacked(blocks, type_name)
    assert np.isfinite(found).all()
    if scales == [65504.0]:  # scales beyond fp16 become its largest number
        assert (np.abs(found) <= 1.1 * np.abs(expected) + 0.2 * size(expected)).all()
        return
    least_step = 3e-8 * 31 * 15 * 8  # fp16 has no steps below 6e-8, which a level multiplies
    assert size(found - expected) <= LOST[type_name] * size(expected) + least_step


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("type_name", LOST)
def test_scales_that_are_no_numbers_are_not_hidden(type_name: str, bad: float) -> None:
    blocks = make_blocks(type_name, 64, [0.5])
    if type_name == "MXFP4":
        blocks[40, 0] = 255  # its only one
    else:
        blocks[40] = make_blocks(type_name, 64, [bad])[40]
    with np.errstate(all="ignore"):
        found = repacked(blocks, type_name)
    assert np.isnan(found[40]).any()
    assert np.isfinite(found[:40]).all()


@pytest.mark.parametrize("type_name", LOST)
def test_blocks_of_zero_bytes_become_zeros(type_name: str) -> None:
    blocks = np.zeros((8, TENSOR_TYPES_BY_NAME[type_name].block_bytes), dtype=np.uint8)
    assert not repacked(blocks, type_name).any()


@pytest.mark.parametrize("type_name", LOST)
def test_rows_are_repacked_each_for_itself(type_name: str) -> None:
    _, repack = REPACKERS[type_name]
    rows = make_rows(type_name, 5, 512, spread=0.05)
    block_bytes = TENSOR_TYPES_BY_NAME[type_name].block_bytes
    alone = [repack(row.reshape(-1, block_bytes)).reshape(-1) for row in rows]
    whole = repack(rows.reshape(-1, block_bytes)).reshape(5, -1)
    assert np.array_equal(whole, np.stack(alone))
