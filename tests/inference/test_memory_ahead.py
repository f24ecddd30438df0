"""Memory that is made ready while torch is imported: whole, taken once, of use or given back."""

import ctypes
import mmap
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from inference.kernels.library import load_kernels
from inference.model import memory, memory_ahead
from tests.inference.packed_models import make_twin
from tests.inference.test_packed_weights import packed

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only there"),
    pytest.mark.skipif(load_kernels() is None, reason="no kernels"),
]

SIZE = 2**26


@pytest.fixture(autouse=True)
def no_torch_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(memory_ahead, "_is_torch_there", lambda: False)
    yield
    memory_ahead.drop()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.truncate(SIZE)
    return path


def until_cleared(num_bytes: int) -> None:
    deadline = time.monotonic() + 60.0
    while memory_ahead.ready_bytes() < num_bytes:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "memory"]


def test_memory_is_cleared_and_taken_once(model: Path) -> None:
    memory_ahead.begin(model)
    until_cleared(int(0.97 * SIZE))
    taken = memory_ahead.take(SIZE)
    assert taken is not None
    assert len(taken) >= SIZE
    assert taken[: SIZE + 1000] == bytes(SIZE + 1000)
    assert memory_ahead.take(1) is None
    assert memory_ahead.ready_bytes() == 0
    taken[:5] = b"bytes"  # it can be written, and nobody else writes to it
    assert threads() == []
    assert taken[:6] == b"bytes\0"


def test_memory_that_is_not_taken_is_given_back(model: Path) -> None:
    memory_ahead.begin(model)
    memory_ahead.drop()
    assert threads() == []
    assert memory_ahead.take(1) is None


def test_memory_for_another_model_takes_its_place(model: Path) -> None:
    memory_ahead.begin(model)
    memory_ahead.begin(model)
    assert len(threads()) <= 1
    assert memory_ahead.take(SIZE) is not None
    assert memory_ahead.take(SIZE) is None


def test_memory_that_is_too_little_is_given_back(model: Path) -> None:
    memory_ahead.begin(model)
    assert memory_ahead.take(2 * SIZE) is None
    assert threads() == []
    assert memory_ahead.ready_bytes() == 0


def test_what_is_cleared_counts_as_free(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory_ahead.begin(model)
    until_cleared(int(0.97 * SIZE))
    found = SimpleNamespace(available=1000)
    monkeypatch.setattr("psutil.virtual_memory", lambda: found)
    assert memory.free_bytes("cpu") == 1000 + int(0.97 * SIZE)


@pytest.mark.parametrize("name", ["torch", "kernels", "folder", "missing", "small", "little"])
def test_nothing_is_begun_where_it_is_of_no_use(
    model: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model
    match name:
        case "torch":
            monkeypatch.undo()
        case "kernels":
            monkeypatch.setattr(memory_ahead, "LIBRARY_PATH", model.with_name("none.so"))
        case "folder":
            path = model.parent
        case "missing":
            path = model.with_name("none.gguf")
        case "small":
            monkeypatch.setattr(memory_ahead, "_LEAST_BYTES", SIZE + 1)
        case "little":
            found = SimpleNamespace(available=2 * SIZE - 1)
            monkeypatch.setattr("psutil.virtual_memory", lambda: found)
    memory_ahead.begin(path)
    assert memory_ahead.take(1) is None


def test_weights_are_packed_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_twin(tmp_path, "Q8_0")
    monkeypatch.setattr(memory_ahead, "_LEAST_BYTES", 0)
    monkeypatch.setattr(memory_ahead, "_ROOM", 20.0)  # matrices are small and rounded up
    memory_ahead.begin(path)
    ahead = memory_ahead._newest
    assert ahead is not None
    in_it, beside = packed(path), packed(path)
    for key, matrix in in_it.matrices.items():
        assert matrix.data.tobytes() == beside.matrices[key].data.tobytes()
        assert _lies_in(ahead.memory, matrix.data.ctypes.data)
        assert not _lies_in(ahead.memory, beside.matrices[key].data.ctypes.data)


def _lies_in(memory: mmap.mmap, address: int) -> bool:
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return first <= address < first + len(memory)
