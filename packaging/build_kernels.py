"""Compiles the CPU kernels: hatchling's build hook, and a program.

`python packaging/build_kernels.py` puts the library beside inference/kernels/library.py; with
`--sanitize` a slow one that checks addresses and undefined behaviour goes to build/kernels-sanitize.
Without a compiler the program is installed all the same and computes with torch.
Standard library only (and hatchling, when that runs it).
"""

import argparse
import contextlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
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

# One file per instruction set. On other machines, and with a compiler that refuses the flags, it is
# compiled without them and then empty.
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mtune=haswell"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"]
X86_FLAGS = {
    "isa_avx2": AVX2,
    "isa_avxvnni": [*AVX2, "-mavxvnni"],
    "isa_avx512vnni": ["-mavx2", "-mfma", "-mf16c", *AVX512, "-mtune=icelake-server"],
}
ARM_FLAGS = {"isa_neon": ["-march=armv8.2-a+dotprod"]}
FLAGS = {"x86_64": X86_FLAGS, "amd64": X86_FLAGS, "aarch64": ARM_FLAGS, "arm64": ARM_FLAGS}
MSVC_FLAGS = {
    "isa_avx2": ["/arch:AVX2"],
    "isa_avxvnni": ["/arch:AVX2"],
    "isa_avx512vnni": ["/arch:AVX512"],
}
# Without contraction, or what is computed would depend on what the compiler inlines.
COMMON = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
COMMON += ["-fno-math-errno", "-pthread", "-Wall", "-Wextra"]
SANITIZE = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
SANITIZE += ["-fno-sanitize-recover=undefined"]
MSVC_COMMON = ["/nologo", "/std:c++17", "/O2", "/EHsc", "/MD", "/fp:precise"]


# What the last failure was; until a source changes it is not tried again.
FAILURE = Path("build", "kernels", "failure.txt")
# Which library could be loaded: as long as it is that file, it is not tried again.
LOADED = Path("build", "kernels", "loaded.txt")

# In a process of its own, which a damaged library may end. Says what is wrong, if anything is.
TRY_TO_LOAD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from inference.kernels.library import open_library
found = open_library(Path(sys.argv[2]))
sys.exit(found if isinstance(found, str) else 0)
"""


class BuildError(Exception):
    """The compiler failed; the text is what it said."""


def find_compiler() -> list[str] | None:
    """The command of a C++ compiler: $CXX, or the first one on the path."""
    if command := os.environ.get("CXX"):
        return shlex.split(command)
    names = ("cl", "clang++", "g++") if sys.platform == "win32" else ("c++", "g++", "clang++")
    return next(([found] for name in names if (found := shutil.which(name))), None)


def ensure_built(root: Path, say: Callable[[str], None]) -> None:
    """Compile if a source is newer than the library, or if that cannot be loaded.

    What goes wrong is said once, never raised.
    """
    compiler = find_compiler()
    if compiler is None or is_current(root):
        return
    say("\nCompiling the kernels for this kind of processor; it takes some 20 seconds, once")
    failure = root / FAILURE
    try:
        failure.unlink(missing_ok=True)
        build_sound(root, compiler)
    except (BuildError, OSError) as error:
        say(f"That failed; Quire will compute with torch alone. The details are in {failure}.")
        with contextlib.suppress(OSError):
            failure.parent.mkdir(parents=True, exist_ok=True)
            failure.write_text(str(error), encoding="utf-8")


def build_sound(root: Path, compiler: Sequence[str]) -> None:
    """Build a library that can be loaded, from nothing if the objects that are there give none.

    Raises:
        BuildError: The compiler refused a file, or nothing that it makes can be loaded.
    """
    problem = ""
    for _ in range(2):
        build(root, compiler)
        problem = why_not_loaded(root)
        if not problem:
            return
        shutil.rmtree(root / "build" / "kernels", ignore_errors=True)
    raise BuildError(f"The library was built and cannot be used: {problem}")


def is_current(root: Path) -> bool:
    """Whether the library is newer than all sources and sound, or known not to be built from them."""
    sources = [*(root / SOURCES).iterdir(), Path(__file__)]
    newest = max(path.stat().st_mtime for path in sources)
    failure, library = root / FAILURE, root / LIBRARY
    if failure.exists() and failure.stat().st_mtime > newest:
        return True
    if not library.exists() or library.stat().st_mtime <= newest:
        return False
    return not why_not_loaded(root)


def why_not_loaded(root: Path) -> str:
    """What is wrong with the library, as the program will find it; empty if nothing is."""
    library, loaded = root / LIBRARY, root / LOADED
    try:
        status = library.stat()
        stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
        if loaded.exists() and loaded.read_text(encoding="utf-8") == stamp:
            return ""
        # -S: what is installed beside this Python is not there for everybody.
        command = [sys.executable, "-S", "-c", TRY_TO_LOAD, str(root), str(library)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            return done.stderr.strip() or f"loading it ended a program with {done.returncode}"
        loaded.parent.mkdir(parents=True, exist_ok=True)
        loaded.write_text(stamp, encoding="utf-8")
    except OSError as error:
        return str(error)
    return ""


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
        self,
        command: Sequence[str],
        folder: Path,
        newest_header: float,
        is_sanitized: bool = False,
        machine: str = platform.machine(),
    ) -> None:
        self._command = list(command)
        self._folder = folder
        self._newest_header = newest_header
        self._is_sanitized = is_sanitized
        self._is_msvc = Path(command[0]).stem.lower() == "cl"
        machine_flags = FLAGS.get(machine.lower(), {})
        self._flags = MSVC_FLAGS if self._is_msvc else machine_flags

    def __call__(self, source: Path) -> Path:
        """Compile one file unless its object is newer than it and all headers."""
        result = self._folder / f"{source.stem}{'.obj' if self._is_msvc else '.o'}"
        newest = max(self._newest_header, source.stat().st_mtime)
        if result.exists() and result.stat().st_mtime > newest:
            return result
        flags = self._flags.get(source.stem, [])
        try:
            self._compile(source, result, flags)
        except BuildError:
            if not flags:
                raise
            print(f"The compiler refused {' '.join(flags)}; {source.stem} is left out.")
            self._compile(source, result, [])
        return result

    def _compile(self, source: Path, final: Path, flags: list[str]) -> None:
        result = final.with_name(f"{os.getpid()}-{final.name}")  # two programs may build at once
        if self._is_msvc:
            self._run([*MSVC_COMMON, *flags, "/c", str(source), f"/Fo{result}"])
        else:
            extra = SANITIZE if self._is_sanitized else []
            self._run([*COMMON, *flags, *extra, "-c", str(source), "-o", str(result)])
        os.replace(result, final)

    def link(self, objects: list[Path], target: Path) -> None:
        """Make the library under another name first: a running program may have the old one."""
        fresh = self._folder / f"{os.getpid()}-{target.name}"
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
