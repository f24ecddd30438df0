"""Keeps a file that cannot be used as it was, beside the one that takes its place. Pure Python; any thread."""

import contextlib
import itertools
from pathlib import Path

from app.private_files import private_opener
from inference.regular_file import open_regular


def keep_copy(path: Path, content: bytes) -> Path:
    """Write `content`, which `path` holds, under another name; gives that.

    Nothing is ever overwritten: it may be what somebody wants back. What is kept already is not kept twice.

    Raises:
        OSError: It cannot be written.
    """
    names = itertools.chain([".bak"], (f".bak-{number}" for number in itertools.count(2)))
    copies = (path.with_name(path.name + name) for name in names)
    return next(copy for copy in copies if _holds(copy, content) or _is_written(copy, content))


def _holds(copy: Path, content: bytes) -> bool:
    try:
        with open_regular(copy) as file:
            return file.read() == content
    except OSError:
        return False


def _is_written(copy: Path, content: bytes) -> bool:
    """Write it; False if there is something else by that name."""
    try:
        with open(copy, "xb", opener=private_opener) as file:
            file.write(content)
    except FileExistsError:
        return False
    except OSError:
        with contextlib.suppress(OSError):
            copy.unlink()  # a part of it
        raise
    return True
