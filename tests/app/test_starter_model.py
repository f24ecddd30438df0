import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.settings import Settings
from app.starter_model import ModelChoice, choose_model, find_starter_model
from app.version import quire_version, version_of


def test_starter_is_found_in_its_package_without_importing_it(starter_model_path: Path) -> None:
    assert find_starter_model() == starter_model_path
    code = (
        "import sys; from app.starter_model import find_starter_model as f; f();"
        "print(any(name.startswith('llm') for name in sys.modules))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.stdout.split() == ["False"]


def test_starter_of_a_frozen_app_is_found_in_its_resources(tmp_path: Path) -> None:
    assert find_starter_model("no-such-package", tmp_path) is None
    (tmp_path / "b.gguf").write_bytes(b"")
    (tmp_path / "a.gguf").write_bytes(b"")
    assert find_starter_model("no-such-package", tmp_path) == tmp_path / "a.gguf"
    # A package that is there and holds no model.
    assert find_starter_model("pytest", tmp_path) == tmp_path / "a.gguf"
    assert find_starter_model("pytest", tmp_path / "nowhere") is None


@pytest.fixture
def starter(tmp_path: Path) -> Path:
    path = tmp_path / "starter.gguf"
    path.write_bytes(b"")
    return path


def test_choice_is_the_one_asked_for_even_if_it_is_not_there(starter: Path) -> None:
    settings = Settings(model_path=str(starter))
    assert choose_model(settings, Path("x"), starter=starter) == ModelChoice(Path("x"))


def test_choice_is_the_last_one_if_it_is_there(tmp_path: Path, starter: Path) -> None:
    settings = Settings(model_path=str(tmp_path))
    assert choose_model(settings, starter=starter) == ModelChoice(tmp_path)


def test_choice_is_the_starter_when_none_was_made(starter: Path) -> None:
    assert choose_model(Settings(), starter=starter) == ModelChoice(starter)
    assert choose_model(Settings(), starter=None) == ModelChoice(None)


def test_choice_that_vanished_is_told(starter: Path) -> None:
    settings = Settings(model_path="/gone/big.gguf")
    assert choose_model(settings, starter=starter) == ModelChoice(
        starter, "The model big.gguf is not where it was. The starter model is used."
    )
    assert choose_model(settings, starter=None) == ModelChoice(
        None, "The model big.gguf is not where it was. Choose another one."
    )


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), OSError(36, "Too long")]
)
def test_choice_that_cannot_be_looked_at_stays_for_a_load_to_say_why(
    starter: Path, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: object) -> None:
        raise error

    monkeypatch.setattr(os, "stat", refuse)
    choice = choose_model(Settings(model_path="/closed/m.gguf"), starter=starter)
    assert choice == ModelChoice(Path("/closed/m.gguf"))


def test_starter_that_moved_is_no_news(starter: Path) -> None:
    settings = Settings(model_path="/old/starter.gguf")
    assert choose_model(settings, starter=starter) == ModelChoice(starter)


def test_version_is_the_one_of_pyproject(tmp_path: Path) -> None:
    assert quire_version() == "0.1.0"
    assert quire_version(tmp_path) == version_of("quire")
    assert version_of("no-such-package") == "unknown"
    assert version_of("pytest")[0].isdigit()
