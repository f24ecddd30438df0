import os
import sys
from pathlib import Path

import pytest

import build_kernels

# Writes what it is asked to make, unless it is told to refuse a flag or everything.
FAKE = """
import os, sys
arguments = sys.argv[1:]
with open(os.environ["FAKE_LOG"], "a") as log:
    print(" ".join(arguments), file=log)
refused = os.environ.get("FAKE_REFUSES")
if refused and refused in arguments:
    sys.exit("cannot do " + refused)
open(arguments[arguments.index("-o") + 1], "w").close()
"""


class Said(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with some sources and a compiler."""
    folder = tmp_path / "checkout"
    sources = folder / build_kernels.SOURCES
    sources.mkdir(parents=True)
    for name in ("team.cpp", "isa_avx2.cpp", "isa_neon.cpp", "team.h"):
        (sources / name).touch()
    fake = tmp_path / "compiler.py"
    fake.write_text(FAKE)
    monkeypatch.setenv("CXX", f"'{sys.executable}' '{fake}'")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log.txt"))
    monkeypatch.setattr(build_kernels, "__file__", str(sources / "team.h"))
    # What the fake makes is empty, and is told from what is no library by that.
    monkeypatch.setattr(
        build_kernels, "TRY_TO_LOAD", "import sys; sys.exit(open(sys.argv[2]).read() or 0)"
    )
    return folder


def calls(root: Path) -> list[str]:
    log = root.parent / "log.txt"
    return log.read_text().splitlines() if log.exists() else []


def touch_later(path: Path) -> None:
    later = path.stat().st_mtime + 100
    os.utime(path, (later, later))


def test_ensure_built_compiles_each_file_and_links_once(root):
    said = Said()
    build_kernels.ensure_built(root, said)
    assert len(calls(root)) == 4
    assert (root / build_kernels.LIBRARY).exists()
    assert len(said) == 1
    build_kernels.ensure_built(root, said)
    assert len(calls(root)) == 4
    assert len(said) == 1


def test_ensure_built_after_one_file_changed_compiles_that_file(root):
    build_kernels.ensure_built(root, Said())
    touch_later(root / build_kernels.SOURCES / "team.cpp")
    build_kernels.ensure_built(root, Said())
    again = calls(root)[4:]
    assert len(again) == 2
    assert "team.cpp" in again[0]
    assert "-shared" in again[1]


def test_ensure_built_after_a_header_changed_compiles_everything(root):
    build_kernels.ensure_built(root, Said())
    touch_later(root / build_kernels.SOURCES / "team.h")
    build_kernels.ensure_built(root, Said())
    assert len(calls(root)) == 8


def test_ensure_built_makes_a_library_anew_that_cannot_be_loaded(root):
    build_kernels.ensure_built(root, Said())
    count = len(calls(root))
    library = root / build_kernels.LIBRARY
    library.write_text("garbage")
    touch_later(library)
    said = Said()
    build_kernels.ensure_built(root, said)
    assert (library.read_text(), len(said)) == ("", 1)
    assert len(calls(root)) == count + 1  # it was linked; nothing was to be compiled
    build_kernels.ensure_built(root, said)
    assert (len(calls(root)), len(said)) == (count + 1, 1)


def test_library_that_could_be_loaded_is_not_tried_again(root, monkeypatch):
    build_kernels.ensure_built(root, Said())
    monkeypatch.setattr(build_kernels, "TRY_TO_LOAD", "raise SystemExit('tried')")
    assert build_kernels.why_not_loaded(root) == ""
    touch_later(root / build_kernels.LIBRARY)
    assert build_kernels.why_not_loaded(root) == "tried"


def test_library_that_is_built_and_cannot_be_loaded_is_said_and_not_built_again(root, monkeypatch):
    monkeypatch.setattr(build_kernels, "TRY_TO_LOAD", "raise SystemExit('no such processor')")
    said = Said()
    build_kernels.ensure_built(root, said)
    assert "torch alone" in said[-1]
    assert "no such processor" in (root / build_kernels.FAILURE).read_text()
    count = len(calls(root))
    build_kernels.ensure_built(root, said)
    assert (len(calls(root)), len(said)) == (count, 2)


def test_objects_that_give_no_sound_library_are_made_anew(root, monkeypatch):
    build_kernels.ensure_built(root, Said())
    damaged = root / "build" / "kernels" / "team.o"
    damaged.write_text("garbage")
    touch_later(damaged)
    touch_later(root / build_kernels.LIBRARY)
    code = f"import sys; sys.exit(open({str(damaged)!r}).read() or 0)"
    monkeypatch.setattr(build_kernels, "TRY_TO_LOAD", code)
    said = Said()
    build_kernels.ensure_built(root, said)
    assert len(said) == 1
    assert damaged.read_text() == ""
    assert build_kernels.why_not_loaded(root) == ""


def test_damaged_library_that_ends_whoever_loads_it_is_told(root, monkeypatch):
    (root / build_kernels.LIBRARY).write_text("garbage")
    monkeypatch.setattr(build_kernels, "TRY_TO_LOAD", "import os; os.abort()")
    assert "ended a program" in build_kernels.why_not_loaded(root)
    (root / build_kernels.LIBRARY).unlink()
    assert "No such file" in build_kernels.why_not_loaded(root)


@pytest.mark.skipif(not (build_kernels.ROOT / build_kernels.LIBRARY).exists(), reason="not built")
def test_library_is_loaded_as_the_program_does(tmp_path):
    package = Path("inference", "kernels")
    (tmp_path / package).mkdir(parents=True)
    for name in (
        "__init__.py",
        "kernels/__init__.py",
        "kernels/library.py",
        "kernels/structures.py",
    ):
        source = build_kernels.ROOT / "inference" / name
        (tmp_path / "inference" / name).write_bytes(source.read_bytes())
    library = tmp_path / build_kernels.LIBRARY
    whole = (build_kernels.ROOT / build_kernels.LIBRARY).read_bytes()
    library.write_bytes(whole)
    assert build_kernels.why_not_loaded(tmp_path) == ""
    library.write_bytes(b"no library")
    assert "cannot be loaded" in build_kernels.why_not_loaded(tmp_path)
    library.write_bytes(whole[: len(whole) // 2])
    assert build_kernels.why_not_loaded(tmp_path) != ""


def test_ensure_built_that_fails_says_so_and_is_not_tried_again(root, monkeypatch):
    monkeypatch.setenv("FAKE_REFUSES", "-c")
    said = Said()
    build_kernels.ensure_built(root, said)
    assert "torch alone" in said[-1]
    assert "cannot do -c" in (root / build_kernels.FAILURE).read_text()
    count = len(calls(root))
    build_kernels.ensure_built(root, said)
    assert (len(calls(root)), len(said)) == (count, 2)
    touch_later(root / build_kernels.SOURCES / "team.cpp")
    monkeypatch.delenv("FAKE_REFUSES")
    build_kernels.ensure_built(root, said)
    assert (root / build_kernels.LIBRARY).exists()
    assert not (root / build_kernels.FAILURE).exists()


def test_build_with_a_compiler_that_lacks_an_instruction_set_leaves_it_out(
    root, monkeypatch, capsys
):
    monkeypatch.setenv("FAKE_REFUSES", "-mavx2")
    compiler = build_kernels.find_compiler()
    assert compiler is not None
    folder = root / "objects"
    folder.mkdir()
    compile_one = build_kernels.Compiler(compiler, folder, 0.0, machine="x86_64")
    compile_one(root / build_kernels.SOURCES / "isa_avx2.cpp")
    first, second = calls(root)
    assert "-mavx2" in first
    assert "-mavx2" not in second
    assert "isa_avx2 is left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("machine", "stem", "flag"),
    [("x86_64", "isa_avx2", "-mavx2"), ("AMD64", "isa_avx2", "-mavx2"), ("arm64", "isa_avx2", ""),
     ("arm64", "isa_neon", "dotprod"), ("x86_64", "isa_neon", ""), ("riscv64", "isa_neon", "")],
)  # fmt: skip
def test_flags_are_those_of_the_machine(root, machine, stem, flag):
    compiler = build_kernels.find_compiler()
    assert compiler is not None
    compile_one = build_kernels.Compiler(compiler, root, 0.0, machine=machine)
    compile_one(root / build_kernels.SOURCES / f"{stem}.cpp")
    (call,) = calls(root)
    assert flag in call
    assert flag or "-m" not in call.replace("-fno-math-errno", "")


def test_ensure_built_without_a_compiler_says_nothing(root, monkeypatch):
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    said = Said()
    build_kernels.ensure_built(root, said)
    assert said == []
    assert not (root / build_kernels.LIBRARY).exists()
