from functools import partial

import pytest
import torch

from inference.errors import (
    NotEnoughMemoryError,
)
from inference.model.memory import choose_dtype, release_unused


@pytest.mark.parametrize(
    ("dtype_name", "free", "dtype"),
    [
        ("auto", 5334, torch.float32),
        ("auto", 5333, torch.bfloat16),
        ("auto", 2223, torch.bfloat16),
        ("float32", 4445, torch.float32),
        ("float16", 2223, torch.float16),
    ],
)
def test_choose_dtype_on_cpu_takes_what_fits(dtype_name, free, dtype):
    assert choose_dtype(dtype_name, "cpu", 1000, free=free) == dtype


@pytest.mark.parametrize(
    ("dtype_name", "free", "needed"), [("auto", 2222, 2000), ("float32", 4444, 4000)]
)
def test_choose_dtype_that_does_not_fit_says_both_numbers(dtype_name, free, needed):
    with pytest.raises(NotEnoughMemoryError) as caught:
        choose_dtype(dtype_name, "cpu", 1000, free=free)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (needed, free)


def test_choose_dtype_asks_the_machine_when_not_told():
    assert choose_dtype("auto", "cpu", 10) == torch.float32


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_release_unused_empties_the_devices_own_cache_only(kind, monkeypatch):
    emptied: list[str] = []
    for name in ("cuda", "xpu", "mps"):
        monkeypatch.setattr(getattr(torch, name), "empty_cache", partial(emptied.append, name))
    release_unused("cpu")
    assert emptied == []
    release_unused(kind)
    assert emptied == [kind]
