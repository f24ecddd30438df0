"""Torch's libraries are loaded with the interpreter's lock given back."""

import subprocess
import sys
from pathlib import Path

import pytest

from app.preload import preload_libraries

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
