"""Rounding to block types, against the gguf package."""

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from inference.formats.quantize import QUANTIZERS, to_q4_1, to_q8_0


def random_rows(num_rows: int, num_columns: int, *, seed: int = 5) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(num_rows, num_columns)).astype(np.float32)


def back(packed: npt.NDArray[np.uint8], name: str) -> npt.NDArray[np.float32]:
    numbers: npt.NDArray[np.float32] = gguf.quants.dequantize(
        packed, gguf.GGMLQuantizationType[name]
    )
    return numbers


def error(numbers: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    return float(np.sqrt(((numbers - other) ** 2).mean()))


def test_to_q8_0_is_the_formats_own_rounding() -> None:
    numbers = random_rows(7, 96)
    numbers[2] = 0.0
    expected = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
    found = to_q8_0(numbers)
    assert found.shape == expected.shape
    scales = np.abs(numbers.reshape(7, -1, 32)).max(axis=2, keepdims=True) / 127
    assert (
        np.abs((back(found, "Q8_0") - numbers).reshape(7, -1, 32)) <= 0.51 * scales + 1e-9
    ).all()
    assert not back(found, "Q8_0")[2].any()


@pytest.mark.parametrize("tail", [2.0, 30.0])
def test_to_q4_1_loses_less_than_the_formats_own_rounding(tail: float) -> None:
    numbers = np.random.default_rng(1).standard_t(tail, size=(64, 512)).astype(np.float32)
    plain = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q4_1)
    found = to_q4_1(numbers)
    assert found.shape == plain.shape
    assert error(back(found, "Q4_1"), numbers) < 0.93 * error(back(plain, "Q4_1"), numbers)


def test_to_q4_1_keeps_what_it_can_hold() -> None:
    steps = np.tile(np.arange(16, dtype=np.float32), 4).reshape(1, 64)
    for numbers in (steps, steps - 8, 0.25 * steps + 3, np.full_like(steps, -1.5), 0 * steps):
        assert np.array_equal(back(to_q4_1(numbers), "Q4_1"), numbers)


def test_extreme_blocks_stay_finite_and_near() -> None:
    rows = random_rows(6, 64)
    rows *= np.array([1e-8, 1e-5, 1.0, 1e3, 1e4, 1.0], dtype=np.float32)[:, None]
    rows[5, 7] = 6e4
    for name, quantize in QUANTIZERS.items():  # scales below 6e-8 are no fp16 numbers
        found = back(quantize(rows), name)
        blocks = (found - rows).reshape(6, -1, 32)
        largest = np.abs(rows).reshape(6, -1, 32).max(axis=2)
        assert (np.abs(blocks).max(axis=2) <= 0.12 * largest + 4e-6).all()


def test_rows_are_rounded_each_for_itself() -> None:
    rows = random_rows(9, 96)
    for quantize in QUANTIZERS.values():
        alone = np.concatenate([quantize(rows[index : index + 1]) for index in range(9)])
        assert np.array_equal(quantize(rows), alone)
