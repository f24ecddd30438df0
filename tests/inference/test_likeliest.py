"""The likeliest tokens, by our kernels and by numpy: never fewer than asked for, and few more."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from inference.errors import ComputeError
from inference.kernels.library import KernelError, load_kernels
from inference.likeliest import Floats, Ids, likeliest, likeliest_by_numpy, surest
from inference.surest import surest_of
from tests.inference.native_models import ISAS

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


def probability_of(logits: Floats, token_id: int) -> float:
    exact = np.exp(logits.astype(np.float64) - float(logits.max()))
    return float(exact[token_id] / exact.sum())


@pytest.fixture(params=["numpy", *ISAS])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Without the kernels, or by them with one instruction set."""
    kernels = load_kernels()
    if request.param == "numpy":
        monkeypatch.setattr("inference.likeliest.load_kernels", lambda: None)
    elif kernels is None or not kernels.set_isa(request.param):
        pytest.skip(f"no kernels for {request.param}")
    yield request.param
    if kernels is not None:
        assert any(kernels.set_isa(isa) for isa in ISAS), "the best again"


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 63, 64, 65, 1000, 49155, 151936])
def test_surest_token_and_its_probability(by: str, size: int) -> None:
    for seed in range(5):
        logits = logits_of(size, seed)
        token_id, probability = surest(logits)
        assert token_id == int(logits.argmax())
        assert probability == pytest.approx(probability_of(logits, token_id), rel=1e-5)


def test_surest_of_equals_is_the_first(by: str) -> None:
    logits = np.full(1000, -500.0, dtype=np.float32)
    logits[[200, 7, 900]] = 3.0
    token_id, probability = surest(logits)
    assert token_id == 7
    assert probability == pytest.approx(1 / 3)
    logits[:] = 0.0
    logits[:500] = -0.0  # equal, as floats are
    token_id, probability = surest(logits)
    assert token_id == 0
    assert probability == pytest.approx(1 / 1000)


@pytest.mark.parametrize("place", [0, 999, 500])
def test_surest_far_above_or_hugely_negative_others(by: str, place: int) -> None:
    logits = np.full(1000, -3e38, dtype=np.float32)
    logits[place] = 3e38
    assert surest(logits) == (place, 1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 63, 4999])
def test_surest_of_what_is_no_number_is_an_error(by: str, value: float, place: int) -> None:
    logits = logits_of(5000)
    logits[place] = value
    with pytest.raises(ComputeError, match="not numbers"):
        surest(logits)


def test_rows_of_a_part_of_the_vocabulary_are_read_as_they_lie() -> None:
    logits = torch.from_numpy(np.stack([logits_of(300, seed) for seed in range(3)]))
    found = surest_of(logits[:, :200])
    assert [token_id for token_id, _ in found] == logits[:, :200].argmax(-1).tolist()
    assert surest_of(list(logits[:, :200])) == found
    assert surest_of(logits[:0]) == []


@pytest.mark.gpu
def test_surest_is_the_same_on_a_gpu() -> None:
    logits = torch.from_numpy(np.stack([logits_of(5000, seed) for seed in range(3)]))
    there = surest_of(logits.cuda())
    for one, other in zip(surest_of(logits), there, strict=True):
        assert one[0] == other[0]
        assert one[1] == pytest.approx(other[1], rel=1e-4)


def test_surest_refuses_sizes_that_cannot_be() -> None:
    kernels = load_kernels()
    if kernels is None:
        pytest.skip("no kernels")
    for size in (0, -1):
        with pytest.raises(KernelError):
            kernels.surest(logits_of(10).ctypes.data, size)
    with pytest.raises(KernelError):
        kernels.surest(0, 10)
