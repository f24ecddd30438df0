"""Opens regular files and nothing else. Pure Python; any thread.

A named pipe in a file's place would be waited for until somebody writes to it, and a device may have no end.
"""

import errno
import os
import stat
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

_NAMES: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

# Some are of one system only.
_FLAGS = os.O_RDONLY | sum(
    getattr(os, f"O_{name}", 0) for name in ("BINARY", "CLOEXEC", "NONBLOCK")
)


class NotAFileError(OSError):
    """What is there is neither a file nor a folder; `strerror` says what it is."""


def open_regular(path: Path | str) -> BufferedReader:
    """Open a file for reading, without ever waiting for one.

    Raises:
        NotAFileError: It is a pipe, a socket or a device.
        OSError: It cannot be opened, or is a folder.
    """
    check_regular(os.stat(path).st_mode, path)  # first: to open a device may set it going
    handle = os.open(path, _FLAGS)
    try:
        check_regular(os.fstat(handle).st_mode, path)  # it may be another one by now
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def check_regular(mode: int, path: Path | str) -> None:
    """Refuse what is no regular file.

    Args:
        mode: What `stat` says of it.
        path: Where it is.

    Raises:
        OSError: As `open_regular`.
    """
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        name = next((name for is_kind, name in _NAMES if is_kind(mode)), "of an unknown kind")
        raise NotAFileError(errno.EINVAL, f"it is {name}, not a file", os.fspath(path))
