"""Builds of the kernels that check themselves: sanitizers, and a processor that is emulated."""

import faulthandler
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import build_kernels

ROOT = Path(build_kernels.__file__).parents[1]
SOURCES = ROOT / build_kernels.SOURCES
CHECKS = Path(__file__).with_name("kernel_checks")
compiler = build_kernels.find_compiler()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler is None or sys.platform != "linux", reason="needs GCC or Clang"),
]


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace"
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def runtime_of(sanitizer: str) -> str:
    """The path of a sanitizer's library, for a program that was not built with it."""
    assert compiler is not None
    command = [*compiler, f"-print-file-name=lib{sanitizer}.so"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(found):
        pytest.skip(f"the compiler has no lib{sanitizer}")
    return found


def test_kernels_under_address_and_behaviour_sanitizers_stay_in_bounds():
    assert compiler is not None
    faulthandler.cancel_dump_traceback_later()  # the build alone may take longer
    preload = f"{runtime_of('asan')} {runtime_of('ubsan')}"
    library = build_kernels.build(ROOT, compiler, is_sanitized=True)
    tests = [
        str(path)
        for pattern in (
            "test_kernels_*.py",
            "test_native_*.py",
            "test_likeliest.py",
            "test_experts.py",
        )
        for path in sorted(CHECKS.parent.glob(pattern))
        if path.name not in ("test_kernels_builds.py", "test_kernels_library.py")
    ]
    environment = os.environ | {
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "QUIRE_KERNELS_LIBRARY": str(library),
    }
    run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests], environment)


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_thread_team_under_sanitizer_has_no_race(tmp_path, sanitizer):
    assert compiler is not None
    program = tmp_path / "team_check"
    flags = ["-std=c++17", "-O1", "-g", "-pthread", f"-fsanitize={sanitizer}", f"-I{SOURCES}"]
    files = [str(CHECKS / "team_check.cpp")]
    files += [str(SOURCES / name) for name in ("team.cpp", "pause.cpp")]
    run([*compiler, *flags, *files, "-o", str(program)])
    run([str(program)])


def test_neon_in_an_emulator_equals_plain_cpp(tmp_path):
    """Needs a cross compiler and QEMU: on Debian g++-aarch64-linux-gnu and qemu-user-static."""
    cross = shutil.which("aarch64-linux-gnu-g++")
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if cross is None or emulator is None:
        pytest.skip("no cross compiler or no emulator")
    folder = tmp_path / "objects"
    folder.mkdir()
    compile_one = build_kernels.Compiler([cross], folder, 0.0, machine="aarch64")
    objects = [str(compile_one(path)) for path in sorted(SOURCES.glob("*.cpp"))]
    program = str(tmp_path / "isa_check")
    check = str(CHECKS / "isa_check.cpp")
    run([cross, "-std=c++17", "-O1", "-static", "-pthread", f"-I{SOURCES}", check, *objects,
         "-o", program])  # fmt: skip
    run([emulator, "-cpu", "max", program, "neon"])
