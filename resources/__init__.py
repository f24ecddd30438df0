"""Icons, fonts and licences that ship with Quire, as files beside this module."""

from pathlib import Path


def path(*parts: str) -> Path:
    """The file or folder `parts` inside `resources/`, in a checkout and in a frozen app alike."""
    return Path(__file__).resolve().parent.joinpath(*parts)
