"""Guards of the project itself: what must stay true about files, pins and imports."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("app", "inference", "resources", "ui")
HEAVY = ("torch", "transformers", "accelerate")


def read_project() -> dict[str, object]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert isinstance(project, dict)
    return project


def read_requirements(*, extras: tuple[str, ...] = ()) -> dict[str, Requirement]:
    project = read_project()
    lines = list(project["dependencies"])  # type: ignore[call-overload]  # a list in this file
    for extra in extras:
        lines += project["optional-dependencies"][extra]  # type: ignore[index]  # a table there
    return {canonical(req.name): req for req in map(Requirement, lines)}


def read_constraints() -> dict[str, str]:
    text = (ROOT / "packaging" / "constraints.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {canonical(name): version for name, _, version in (ln.partition("==") for ln in lines)}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def run_python(code: str) -> str:
    """What a fresh interpreter prints that has imported nothing of ours before."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ------------------------------------------------------------------------------ files


def test_packaging_folder_has_no_init_file() -> None:
    """With one, `import packaging` would find our folder instead of the library."""
    assert not (ROOT / "packaging" / "__init__.py").exists()


def test_tests_folders_have_no_init_files() -> None:
    """With one, tests/inference would hide the real package."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_init_files_of_packages_import_nothing() -> None:
    files = [path for name in PRODUCT for path in (ROOT / name).rglob("__init__.py")]

    importing = [
        str(path.relative_to(ROOT))
        for path in files
        if path.parent.name != "resources"
        and re.search(r"^\s*(import|from)\s", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]

    assert len(files) >= len(PRODUCT)
    assert importing == []


def test_version_is_written_only_in_pyproject() -> None:
    version = str(read_project()["version"])
    files = [path for name in PRODUCT for path in (ROOT / name).rglob("*.py")]

    holders = [path for path in files if f'"{version}"' in path.read_text(encoding="utf-8")]

    assert holders == []


def test_shipped_fonts_and_icons_have_their_licences() -> None:
    resources = ROOT / "resources"
    families = {path.stem.partition("-")[0] for path in (resources / "fonts").glob("*.ttf")}
    licences = {
        path.stem.partition("-")[0]: path.read_text(encoding="utf-8")
        for path in (resources / "licences").glob("*.txt")
    }

    assert len(families) >= 2
    assert licences.keys() >= {*families, "Lucide"}
    assert all("Copyright" in text and len(text) > 500 for text in licences.values())


def test_every_library_that_is_used_is_told_with_its_licence() -> None:
    text = (ROOT / "resources" / "libraries.txt").read_text(encoding="utf-8")
    told = {
        canonical(line.split()[0]) for line in text.splitlines() if re.match(r"  \w.*\s{2}", line)
    }
    assert told == set(read_requirements())


def test_licence_of_the_project_is_apache_2() -> None:
    first_lines = (ROOT / "LICENSE").read_text(encoding="utf-8").split("\n", 3)

    assert read_project()["license"] == "Apache-2.0"
    assert [line.strip() for line in first_lines[:2]] == [
        "Apache License",
        "Version 2.0, January 2004",
    ]


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_documents_point_only_to_files_that_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    modules = re.findall(r"python -m (tests(?:\.\w+)+)", text)
    paths = links + [module.replace(".", "/") + ".py" for module in modules]

    assert [path for path in paths if "://" not in path and not (ROOT / path).exists()] == []


def test_architecture_names_modules_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:app|ui|inference|tests)/[\w/]+\.py)`", text))

    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


# ------------------------------------------------------------------------------ pins


def test_pyside_stays_below_6_12() -> None:
    """6.12.0 drops a reference to True with each emit, until Python 3.11 aborts."""
    specifier = read_requirements()["pyside6-essentials"].specifier

    assert Version("6.11.3") in specifier
    assert Version("6.12.0") not in specifier


def test_torch_stays_on_one_minor_release() -> None:
    specifier = read_requirements()["torch"].specifier

    assert Version("2.13.0") in specifier
    assert Version("2.14.0") not in specifier


def test_constraints_pin_every_direct_dependency_within_its_range() -> None:
    constraints = read_constraints()

    for name, requirement in read_requirements(extras=("dev",)).items():
        assert name in constraints, f"packaging/constraints.txt does not pin {name}"
        assert Version(constraints[name]) in requirement.specifier, name


def test_emitting_a_signal_keeps_references_to_true() -> None:
    """The fault behind the pin of PySide6, looked for in what is installed."""
    code = (
        "import sys\n"
        "from PySide6.QtCore import QObject, Signal\n"
        "class Sender(QObject):\n"
        "    sent = Signal(object)\n"
        "sender = Sender()\n"
        "before = sys.getrefcount(True)\n"
        "for _ in range(200):\n"
        "    sender.sent.emit(1)\n"
        "print(sys.getrefcount(True) - before)\n"
    )

    assert int(run_python(code)) >= 0


# ------------------------------------------------------------------------------ what loads what


@pytest.mark.parametrize(
    "module", ["app.messages", "app.settings", "app.worker", "app.chat_session", "ui.start"]
)
def test_importing_app_and_ui_never_loads_torch(module: str) -> None:
    loaded = run_python(f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])")

    assert loaded == "[]"


def test_importing_app_main_loads_neither_torch_nor_qt() -> None:
    names = (*HEAVY, "PySide6")

    loaded = run_python(
        f"import sys, app.__main__; print([m for m in {names!r} if m in sys.modules])"
    )

    assert loaded == "[]"


@pytest.mark.slow
def test_ask_answers_without_loading_qt(starter_model_path: Path, tmp_path: Path) -> None:
    arguments = ["ask", "Hi", "--model", str(starter_model_path), "--max-tokens", "2"]
    arguments += ["--profile", str(tmp_path)]
    code = (
        "import sys\n"
        "from app.__main__ import main\n"
        f"code = main({arguments!r})\n"
        "print('\\nfound:', code, 'torch' in sys.modules, 'PySide6' in sys.modules)\n"
    )

    assert run_python(code).splitlines()[-1] == "found: 0 True False"


@pytest.mark.slow
def test_import_contracts_are_kept() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
