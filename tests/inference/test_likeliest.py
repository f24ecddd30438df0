"""The likeliest tokens, by our kernels and by numpy: never fewer than asked for, and few more."""

from collections.abc import Callable

import numpy as np
import pytest

from inference.errors import ComputeError
from inference.kernels.library import KernelError, load_kernels
from inference.likeliest import Floats, Ids, likeliest, likeliest_by_numpy

Find = Callable[[Floats, int], Ids]


def logits_of(size: int, seed: int = 0) -> Floats:
    return (np.random.default_rng(seed).standard_normal(size) * 5).astype(np.float32)


def check(logits: Floats, count: int, found: Ids) -> None:
    """Whether exactly the tokens above some bound were found, with the highest among them."""
    assert found.dtype == np.int64
    assert list(found) == sorted(set(found))
    bound = np.sort(logits)[-count]
    least = logits[found].min()
    assert least <= bound
    assert list(found) == list(np.flatnonzero(logits >= least))


@pytest.mark.parametrize("find", [likeliest, likeliest_by_numpy])
@pytest.mark.parametrize("size", [2, 3, 41, 63, 64, 65, 1000, 49152, 49155, 151936])
@pytest.mark.parametrize("count", [1, 2, 40, 1024])
def test_the_highest_are_found_and_few_others(find: Find, size: int, count: int) -> None:
    logits = logits_of(size)
    found = find(logits, count)
    if count >= size:
        assert list(found) == list(range(size))
    else:
        check(logits, count, found)
        assert len(found) <= 2 * count + 64


@pytest.mark.parametrize("find", [likeliest, likeliest_by_numpy])
def test_equals_of_the_lowest_are_all_found(find: Find) -> None:
    logits = np.full(5000, -3.0, dtype=np.float32)
    logits[[7, 4000]] = 2.0
    assert list(find(logits, 2)) == [7, 4000]
    assert len(find(logits, 3)) == 5000
    logits[[11, 1200, 4700]] = [0.0, -0.0, 0.0]  # equal, as floats are
    assert list(find(logits, 3)) == [7, 11, 1200, 4000, 4700]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 31, 4999])
@pytest.mark.parametrize("count", [1, 40, 5000])
def test_what_is_no_number_is_an_error(value: float, place: int, count: int) -> None:
    logits = logits_of(5000)
    logits[place] = value
    with pytest.raises(ComputeError, match="not numbers"):
        likeliest(logits, count)


def test_logits_that_do_not_lie_side_by_side_are_read_right() -> None:
    logits = logits_of(6000)[::2]
    check(logits, 40, likeliest(logits, 40))


@pytest.mark.parametrize(("size", "count"), [(100, 100), (100, 0), (0, 1), (-1, 1)])
def test_sizes_that_cannot_be_are_refused_by_the_kernels(size: int, count: int) -> None:
    kernels = load_kernels()
    if kernels is None:
        pytest.skip("no kernels")
    logits, ids = logits_of(100), np.empty(100, dtype=np.int32)
    with pytest.raises(KernelError):
        kernels.likeliest(logits.ctypes.data, size, count, ids.ctypes.data, len(ids))


def test_no_more_is_written_than_there_is_room_for() -> None:
    kernels = load_kernels()
    if kernels is None:
        pytest.skip("no kernels")
    logits, ids = np.zeros(100, dtype=np.float32), np.full(100, -7, dtype=np.int32)
    assert kernels.likeliest(logits.ctypes.data, 100, 3, ids.ctypes.data, 10) == 100
    assert list(ids) == [*range(10), *[-7] * 90]
