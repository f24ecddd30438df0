"""Files and folders that nobody but their owner can read. Pure Python; any thread.

On Windows a person's own folders are closed to others as it is; there is nothing to set.
"""

import contextlib
import os
import stat
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_OF_OTHERS = 0o077


def private_opener(path: str, flags: int) -> int:
    """For `open`: a file that is made is its owner's alone; one that is there stays as it is."""
    return os.open(path, flags, FILE_MODE)


def make_private_file(path: Path) -> None:
    """Make an empty file if there is none, before a library makes it for all to read.

    Where that is refused nothing is said: who opens the file says it better.
    """
    with contextlib.suppress(OSError):
        os.close(private_opener(os.fspath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL))


def make_private_folder(folder: Path) -> bool:
    """Make a folder and what it lies in; gives whether it was not there before.

    Raises:
        OSError: It cannot be made.
    """
    if folder.is_dir():
        return False
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    return True


def keep_private(path: Path) -> None:
    """Take the rights of others on our file or folder away, if it is there and belongs to us."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        found = path.stat()
        is_plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
        if is_plain and found.st_uid == os.geteuid() and found.st_mode & _OF_OTHERS:
            path.chmod(stat.S_IMODE(found.st_mode) & ~_OF_OTHERS)
