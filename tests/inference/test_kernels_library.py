import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inference.kernels import library, structures
from inference.kernels.library import (
    ENVIRONMENT_VARIABLE,
    LIBRARY_PATH,
    Kernels,
    load_kernels,
    open_library,
)

needs_kernels = pytest.mark.skipif(load_kernels() is None, reason="the kernels were not built")


def say(environment: dict[str, str]) -> str:
    """What a fresh interpreter finds."""
    code = (
        "import sys\n"
        "from inference.kernels.library import load_kernels, why_no_kernels\n"
        "kernels = load_kernels()\n"
        "print(kernels.isa if kernels else why_no_kernels())\n"
        "assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def environment():
    """This process's variables, without ours; the repository on the path."""
    copy = {name: value for name, value in os.environ.items() if name != ENVIRONMENT_VARIABLE}
    return copy | {"PYTHONPATH": str(Path(library.__file__).parents[2])}


@needs_kernels
def test_kernels_that_are_there_are_loaded_once():
    assert load_kernels() is load_kernels()
    assert library.why_no_kernels() == ""


@needs_kernels
def test_environment_chooses_the_instruction_set(environment):
    assert say(environment | {ENVIRONMENT_VARIABLE: "portable"}) == "portable"
    assert say(environment | {ENVIRONMENT_VARIABLE: ""}) == say(environment)


def test_environment_switches_the_kernels_off(environment):
    assert say(environment | {ENVIRONMENT_VARIABLE: "off"}) == (
        "QUIRE_KERNELS is off: unset it to use the kernels"
    )


@needs_kernels
def test_instruction_set_that_is_not_there_is_the_reason(environment):
    reason = say(environment | {ENVIRONMENT_VARIABLE: "mmx"})
    assert reason == "QUIRE_KERNELS is mmx, which this processor does not have: unset it"


def test_library_that_is_missing_is_the_reason(tmp_path):
    assert "not built" in str(open_library(tmp_path / "quire_kernels.so"))


def test_library_that_is_no_library_is_the_reason(tmp_path):
    path = tmp_path / "quire_kernels.so"
    path.write_bytes(b"no library")
    assert "cannot be loaded" in str(open_library(path))


@needs_kernels
def test_library_of_another_version_is_the_reason(monkeypatch):
    monkeypatch.setattr(library, "ABI_VERSION", library.ABI_VERSION + 1)
    assert "another version" in str(open_library(LIBRARY_PATH))


@needs_kernels
def test_structure_that_differs_is_the_reason(monkeypatch):
    class Longer(ctypes.Structure):
        _fields_ = (("number", ctypes.c_int64), ("more", ctypes.c_int64 * 99))

    monkeypatch.setattr(library, "ALL_STRUCTURES", (Longer, *structures.ALL_STRUCTURES[1:]))
    assert "another version" in str(open_library(LIBRARY_PATH))


@needs_kernels
def test_instruction_set_without_a_name_like_that_is_left():
    kernels = load_kernels()
    assert isinstance(kernels, Kernels)
    before = kernels.isa
    assert not kernels.set_isa("mmx")
    assert kernels.isa == before


@needs_kernels
@pytest.mark.skipif(sys.platform != "linux", reason="of ELF files")
@pytest.mark.parametrize("share", [0.0, 0.00003, 0.05, 0.5, 0.9999])
def test_library_that_was_cut_is_told_and_does_not_end_the_process(tmp_path, share):
    whole = LIBRARY_PATH.read_bytes()
    cut = tmp_path / LIBRARY_PATH.name
    cut.write_bytes(whole[: int(len(whole) * share)])
    assert isinstance(open_library(cut), str)
    cut.write_bytes(whole)
    assert isinstance(open_library(cut), Kernels)
