import errno
from functools import partial

import pytest
import torch

from inference.errors import (
    NotEnoughMemoryError,
)
from inference.model.memory import (
    choose_dtype,
    is_out_of_memory,
    release_unused,
    reserve_bytes,
    telling_shortage,
)

GIB = 2**30


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


def test_release_unused_of_a_device_that_is_lost_is_logged(monkeypatch, caplog):
    def lost():
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", lost)
    release_unused("cuda")
    assert "an illegal memory access" in caplog.text


@pytest.mark.parametrize(
    ("device", "free", "expected"),
    [
        ("cuda", 24 * GIB, 3 * GIB // 4),
        ("cuda:1", 24 * GIB, 3 * GIB // 4),
        ("cuda", 1000, 200),
        ("cpu", 24 * GIB, 0),
        ("mps", 24 * GIB, 0),
    ],
)
def test_reserve_for_steps_is_a_fixed_part_or_a_share_of_a_small_card(device, free, expected):
    assert reserve_bytes(device, free) == expected


class WindowsLikeError(OSError):
    """As Windows raises them: the number that tells is another one."""

    def __init__(self, winerror: int) -> None:
        super().__init__(errno.EINVAL, "The paging file is too small")
        self.winerror = winerror


SHORTAGES = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.AcceleratorError("CUDA error: out of memory"),  # as pinned memory says it
    RuntimeError("MPS backend out of memory (MPS allocated: 5.00 GB)"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 5 bytes."),
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    WindowsLikeError(1455),
]
OTHERS = [
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    FileNotFoundError(errno.ENOENT, "No such file: out of memory"),
    WindowsLikeError(5),
    ValueError("out of memory"),
]


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_shortage_of_memory_is_told_with_both_numbers(error):
    assert is_out_of_memory(error)
    with pytest.raises(NotEnoughMemoryError) as caught, telling_shortage(7, 5):
        raise error
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (7, 5)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_other_errors_are_not_taken_for_a_shortage(error):
    assert not is_out_of_memory(error)
    with pytest.raises(type(error)) as caught, telling_shortage(7, 5):
        raise error
    assert caught.value is error


def test_what_torch_says_of_memory_that_cannot_be_is_a_shortage():
    with pytest.raises(NotEnoughMemoryError), telling_shortage(2**60, 1):
        torch.empty(2**60, dtype=torch.uint8)
