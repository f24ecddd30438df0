"""What is made ready for the engine, and that it stops nothing meanwhile."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app import preload
from app.preload import preload_libraries, weights_ahead
from inference.config import EngineConfig

ROOT = Path(__file__).resolve().parents[2]

_MEASURE = """
import sys, threading, time
from app.preload import preload_torch
done = threading.Event()
result = []
def work():
    result.append(preload_torch())
    done.set()
threading.Thread(target=work).start()
num_beats = 0
while not done.is_set():
    time.sleep(0.001)
    num_beats += 1
import torch
print(result[0], num_beats, int(torch.ones(2).sum()), 'torch._C' in sys.modules)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="torch does it by itself there")
def test_preload_lets_other_threads_run_and_torch_works_after_it() -> None:
    result = subprocess.run(
        [sys.executable, "-c", _MEASURE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    num_loaded, num_beats, total, is_imported = result.stdout.split()
    assert int(num_loaded) >= 4
    assert int(num_beats) >= 5
    assert (total, is_imported) == ("2", "True")


@pytest.mark.skipif(sys.platform == "win32", reason="torch does it by itself there")
def test_library_that_cannot_be_loaded_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    ending = ".dylib" if sys.platform == "darwin" else ".so"
    (tmp_path / f"libbroken{ending}").write_bytes(b"no library")
    assert preload_libraries(tmp_path, ("broken", "missing")) == 0


def test_import_of_the_engine_hides_its_objects_from_the_garbage_collector() -> None:
    code = (
        "import gc\n"
        "from app.preload import import_engine\n"
        "engine = import_engine()\n"
        "print(engine.__name__, gc.isenabled(), gc.get_freeze_count() > 100_000)\n"
        "print(len(gc.get_objects()) < 50_000)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["Engine", "True", "True", "True"]


def sizes_asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of memory that are asked for from now on, on a machine where that is of use."""
    sizes: list[int] = []

    @contextmanager
    def memory_ahead(num_bytes: int) -> Iterator[None]:
        sizes.append(num_bytes)
        yield

    class Available:
        available = 10_000

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(preload, "memory_ahead", memory_ahead)
    monkeypatch.setattr(preload, "why_no_kernels", lambda: "")
    monkeypatch.setattr("psutil.virtual_memory", Available)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    return sizes


def model_of(tmp_path: Path, num_bytes: int, name: str = "model.gguf") -> str:
    path = tmp_path / name
    path.write_bytes(bytes(num_bytes))
    return str(path)


def test_memory_for_packed_weights_is_made_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = sizes_asked(monkeypatch)
    with weights_ahead(model_of(tmp_path, 4000), EngineConfig()):
        assert sizes == [4200]


@pytest.mark.parametrize(
    ("num_bytes", "name", "config"),
    [
        (4000, "model.gguf", EngineConfig(device="cuda")),
        (4000, "model.gguf", EngineConfig(backend="torch")),
        (4000, "model.gguf", EngineConfig(weights="float")),
        (4000, "model.safetensors", EngineConfig()),
        (5000, "model.gguf", EngineConfig()),  # over half of what is free
    ],
)
def test_no_memory_is_made_ready_that_may_not_be_wanted_or_is_scarce(
    num_bytes: int,
    name: str,
    config: EngineConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = sizes_asked(monkeypatch)
    with weights_ahead(model_of(tmp_path, num_bytes, name), config):
        assert sizes == [0]


def test_no_memory_is_made_ready_without_time_a_core_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = sizes_asked(monkeypatch)
    model = model_of(tmp_path, 4000)
    for path in (str(tmp_path / "missing.gguf"), str(tmp_path), "nul\0.gguf"):
        with weights_ahead(path, EngineConfig()):
            pass
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with weights_ahead(model, EngineConfig()):
        pass
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setitem(sys.modules, "torch", object())  # it is imported: nothing is waited for
    with weights_ahead(model, EngineConfig()):
        pass
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(preload, "why_no_kernels", lambda: "they were not built")
    with weights_ahead(model, EngineConfig()):
        pass
    assert sizes == [0] * 6
