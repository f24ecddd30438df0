"""Compiles the CPU kernels: hatchling's build hook, and a program.

`python packaging/build_kernels.py` puts the library beside inference/kernels/library.py; with
`--sanitize` a slow one that checks addresses and undefined behaviour goes to build/kernels-sanitize.
Without a compiler the program is installed all the same and computes with torch.
Standard library only (and hatchling, when that runs it).
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, where hatchling need not be
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parents[1]
SOURCES = Path("inference", "kernels", "src")
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
LIBRARY = Path("inference", "kernels", f"quire_kernels{SUFFIX}")

# One file per instruction set. A compiler that refuses the flags gets none: the file is empty then.
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mtune=haswell"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"]
AVX512 += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # in GCC's own headers
FLAGS = {
    "isa_avx2": AVX2,
    "isa_avxvnni": [*AVX2, "-mavxvnni"],
    "isa_avx512vnni": ["-mavx2", "-mfma", "-mf16c", *AVX512, "-mtune=icelake-server"],
    "isa_neon": ["-march=armv8.2-a+dotprod"],
}
MSVC_FLAGS = {
    "isa_avx2": ["/arch:AVX2"],
    "isa_avxvnni": ["/arch:AVX2"],
    "isa_avx512vnni": ["/arch:AVX512"],
}
# Without contraction, or what is computed would depend on what the compiler inlines.
COMMON = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
COMMON += ["-fno-tree-reassoc", "-fno-math-errno", "-pthread", "-Wall", "-Wextra"]
SANITIZE = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
SANITIZE += ["-fno-sanitize-recover=undefined"]
MSVC_COMMON = ["/nologo", "/std:c++17", "/O2", "/EHsc", "/MD", "/fp:precise"]


class BuildError(Exception):
    """The compiler failed; the text is what it said."""


def find_compiler() -> list[str] | None:
    """The command of a C++ compiler: $CXX, or the first one on the path."""
    if command := os.environ.get("CXX"):
        return shlex.split(command)
    names = ("cl", "clang++", "g++") if sys.platform == "win32" else ("c++", "g++", "clang++")
    return next(([found] for name in names if (found := shutil.which(name))), None)


def build(root: Path, compiler: Sequence[str], is_sanitized: bool = False) -> Path:
    """Compile what changed and link.

    Raises:
        BuildError: The compiler refused a file.
    """
    folder = root / "build" / ("kernels-sanitize" if is_sanitized else "kernels")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / LIBRARY.name if is_sanitized else root / LIBRARY
    shared = [*(root / SOURCES).glob("*.h"), *(root / SOURCES).glob("*.inc"), Path(__file__)]
    newest = max(path.stat().st_mtime for path in shared)
    build_one = Compiler(compiler, folder, newest, is_sanitized)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(build_one, sorted((root / SOURCES).glob("*.cpp"))))
    build_one.link(objects, target)
    return target


class Compiler:
    """Runs one compiler, in the manner of GCC and Clang or of MSVC."""

    def __init__(
        self, command: Sequence[str], folder: Path, newest_header: float, is_sanitized: bool
    ) -> None:
        self._command = list(command)
        self._folder = folder
        self._newest_header = newest_header
        self._is_sanitized = is_sanitized
        self._is_msvc = Path(command[0]).stem.lower() == "cl"

    def __call__(self, source: Path) -> Path:
        """Compile one file unless its object is newer than it and all headers."""
        result = self._folder / f"{source.stem}{'.obj' if self._is_msvc else '.o'}"
        newest = max(self._newest_header, source.stat().st_mtime)
        if result.exists() and result.stat().st_mtime > newest:
            return result
        flags = (MSVC_FLAGS if self._is_msvc else FLAGS).get(source.stem, [])
        try:
            self._compile(source, result, flags)
        except BuildError:
            if not flags:
                raise
            self._compile(source, result, [])
        return result

    def _compile(self, source: Path, result: Path, flags: list[str]) -> None:
        if self._is_msvc:
            self._run([*MSVC_COMMON, *flags, "/c", str(source), f"/Fo{result}"])
        else:
            extra = SANITIZE if self._is_sanitized else []
            self._run([*COMMON, *flags, *extra, "-c", str(source), "-o", str(result)])

    def link(self, objects: list[Path], target: Path) -> None:
        """Make the library under another name first: a running program may have the old one."""
        fresh = self._folder / f"fresh-{target.name}"
        names = [str(path) for path in objects]
        if self._is_msvc:
            self._run(["/nologo", "/LD", *names, f"/Fe{fresh}"])
        else:
            extra = SANITIZE if self._is_sanitized else []
            self._run(["-shared", "-pthread", *extra, *names, "-o", str(fresh)])
        os.replace(fresh, target)

    def _run(self, arguments: list[str]) -> None:
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=self._folder,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode:
            raise BuildError(done.stdout + done.stderr)
        if done.stderr:
            print(done.stderr, file=sys.stderr)


class KernelsHook(BuildHookInterface):  # type: ignore[misc]
    """Builds the kernels before hatchling collects the files of the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling; never fails, as the kernels are optional."""
        if self.target_name != "wheel":
            return
        compiler = find_compiler()
        if compiler is None:
            self.app.display_warning("no C++ compiler: Quire will compute with torch alone")
            return
        try:
            build(Path(self.root), compiler)
        except (BuildError, OSError) as error:
            self.app.display_warning(f"the CPU kernels could not be built:\n{error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(LIBRARY.as_posix())


def main() -> int:
    """Build, say where the library is, and return the exit status."""
    parser = argparse.ArgumentParser(description="Compile Quire's CPU kernels.")
    parser.add_argument("--sanitize", action="store_true", help="check addresses and behaviour")
    options = parser.parse_args()
    compiler = find_compiler()
    if compiler is None:
        print("There is no C++ compiler (set CXX, or install g++, clang++ or MSVC).")
        return 1
    try:
        print(build(ROOT, compiler, options.sanitize))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
