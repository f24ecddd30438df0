"""Quire's version, written in one place only: pyproject.toml. Pure Python."""

import tomllib
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def quire_version(root: Path = _ROOT) -> str:
    """From the checkout if this is one, else from the installed package; "unknown" if neither."""
    try:
        with (root / "pyproject.toml").open("rb") as file:
            return str(tomllib.load(file)["project"]["version"])
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return version_of("quire")


def version_of(distribution: str) -> str:
    """The version of an installed package; "unknown" if it is not there."""
    from importlib import metadata  # see app.starter_model

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
