"""Memory that is ready before somebody wants it."""

import mmap
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from inference.model import memory_ahead as ahead
from inference.model.memory import free_bytes
from inference.model.memory_ahead import PIECE_BYTES, give_back, held_bytes, memory_ahead, take

pytestmark = pytest.mark.skipif(
    not hasattr(mmap, "MAP_PRIVATE"), reason="the system gives no such memory"
)
SIZE = 3 * PIECE_BYTES + 4096


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.001)


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "memory-ahead"]


def resident_bytes(pages: mmap.mmap) -> int:
    """What the system has given of some memory, as it says page by page."""
    address = np.frombuffer(pages, dtype=np.uint8).ctypes.data
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(address // mmap.PAGESIZE * 8)
        entries = np.frombuffer(file.read(len(pages) // mmap.PAGESIZE * 8), dtype=np.uint64)
    is_there = (entries >> np.uint64(62)) != 0  # in memory, or swapped out
    return int(is_there.sum()) * mmap.PAGESIZE


def test_what_is_taken_is_empty_writable_and_the_takers_own():
    with memory_ahead(SIZE):
        wait_until(lambda: held_bytes() == SIZE)
        pages = take(SIZE - 100)
        assert pages is not None
        assert held_bytes() == 0
        assert take(1) is None
    whole = np.frombuffer(pages, dtype=np.uint8)
    assert len(whole) >= SIZE - 100
    assert not whole.any()
    whole[:] = 7
    assert (int(whole[0]), int(whole[-1]), threads()) == (7, 7, [])


def test_what_is_taken_before_it_is_ready_is_whole_all_the_same(monkeypatch):
    monkeypatch.setattr(ahead, "PIECE_BYTES", 4096)
    with memory_ahead(64 * PIECE_BYTES):
        pages = take(64 * PIECE_BYTES)
    assert pages is not None
    assert len(pages) == 64 * PIECE_BYTES
    assert threads() == []
    pages[-1] = 3
    assert pages[-1] == 3


def held_pages() -> mmap.mmap:
    assert ahead._held is not None
    return ahead._held.pages


def test_what_is_not_taken_is_given_back_at_the_end():
    with memory_ahead(SIZE):
        wait_until(lambda: held_bytes() > 0)
        pages = held_pages()
    assert (held_bytes(), threads(), pages.closed) == (0, [], True)
    assert take(1) is None


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_it_is_given_back_after_an_error_too(error):
    with pytest.raises(error), memory_ahead(SIZE):
        raise error
    assert (held_bytes(), threads()) == (0, [])


def test_too_little_is_given_back_at_once():
    with memory_ahead(SIZE):
        pages = held_pages()
        assert take(SIZE + 1) is None
        assert (held_bytes(), threads(), pages.closed) == (0, [], True)


def test_what_nobody_will_take_is_given_back_at_once():
    with memory_ahead(SIZE):
        pages = held_pages()
        give_back()
        assert (held_bytes(), threads(), pages.closed) == (0, [], True)
        give_back()
        assert take(1) is None


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="the system cannot take part of it")
def test_what_was_too_much_goes_back_to_the_system():
    with memory_ahead(SIZE):
        wait_until(lambda: held_bytes() == SIZE)
        pages = take(PIECE_BYTES)
    assert pages is not None
    try:
        resident = resident_bytes(pages)
    except OSError:
        pytest.skip("nobody tells here what is there")
    assert PIECE_BYTES <= resident < 2 * PIECE_BYTES


def test_memory_that_is_held_counts_as_free(monkeypatch):
    class Available:
        available = 1000

    monkeypatch.setattr("psutil.virtual_memory", Available)
    with memory_ahead(SIZE):
        wait_until(lambda: held_bytes() == SIZE)
        assert free_bytes("cpu") == SIZE + 1000
    assert free_bytes("cpu") == 1000


@pytest.mark.parametrize("num_bytes", [0, -1, 2**62, 2**80])
def test_none_and_what_no_system_has_are_no_error(num_bytes):
    with memory_ahead(num_bytes):
        assert take(1) is None
    assert threads() == []


def test_one_memory_is_held_at_a_most():
    with memory_ahead(SIZE):
        before = held_pages()
        with memory_ahead(2 * SIZE):
            assert before.closed
            assert len(threads()) <= 1
            pages = take(2 * SIZE)
            assert pages is not None
        assert held_bytes() == 0
    assert threads() == []
