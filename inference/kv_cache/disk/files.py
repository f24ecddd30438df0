"""Reading, writing and removing files of the disk tier. Any thread; a link in a file's place is never followed.

Files are private (0600 in folders of 0700, whatever the umask), and each is written under another
name and then renamed, so that under its own name it is whole or absent. Nothing is brought to the
disk by force: after a power cut a file may be missing or damaged, which is a miss and no loss.
"""

import contextlib
import errno
import itertools
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from typing import IO

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_READ = _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0)
_WRITE = os.O_WRONLY | os.O_CREAT | _NO_FOLLOW | getattr(os, "O_BINARY", 0)
_numbers = itertools.count()

MOST_SMALL_BYTES = 2**26
"""Of a journal or a trail: those of a chat with a million tokens take a sixteenth of it."""


def open_for_reading(path: str) -> IO[bytes]:
    """Open a file without a buffer.

    Raises:
        OSError: It cannot be read, or is a link.
    """
    return open(path, "rb", buffering=0, opener=lambda name, flags: _open_ours(name, flags | _READ))


def read_small(path: str) -> bytes:
    """The whole of a journal or a trail; empty if it cannot be read, or cannot be one by its kind or size."""
    try:
        with open_for_reading(path) as file:
            _check_small(path, file.fileno())
            return file.read()
    except OSError:
        return b""


def fill(file: IO[bytes], buffer: bytearray) -> bool:
    """Read until a buffer is full; False if the file ends before."""
    view, done = memoryview(buffer), 0
    while done < len(buffer):
        count = file.readinto(view[done:])  # type: ignore[attr-defined]  # raw files have it
        if not count:
            return False
        done += count
    return True


def write_file(
    path: str, parts: Sequence[memoryview | bytes], used: float, *, made_in: str | None = None
) -> None:
    """Write a file that is whole or absent.

    Args:
        path: Its place, in a folder that is there.
        parts: What it holds.
        used: The time that it gets, in seconds.
        made_in: Folder of the same file system in which it lies until it is whole; None is its own.

    Raises:
        OSError: It could not be written; nothing is left of it.
    """
    temporary = temporary_in(made_in or os.path.dirname(path))
    try:
        handle = os.open(temporary, _WRITE | os.O_EXCL, 0o600)
        try:
            _make_private(temporary, handle)
            _write_all(handle, parts)
        finally:
            os.close(handle)
        with contextlib.suppress(OSError):
            set_used(temporary, used)
        _put(temporary, path)
    except BaseException:
        remove_file(temporary)
        raise


def append(path: str, data: bytes, record_bytes: int) -> None:
    """Append records to a file, which is made if need be; a torn record at its end goes.

    Raises:
        OSError: It cannot be written, or `read_small` would not read it.
    """
    handle = _open_ours(path, _WRITE | os.O_APPEND)
    try:
        _check_small(path, handle)
        _make_private(path, handle)
        torn = os.fstat(handle).st_size % record_bytes
        if torn:
            os.ftruncate(handle, os.fstat(handle).st_size - torn)
        _write_all(handle, [data])
    finally:
        os.close(handle)


def _check_small(path: str, handle: int) -> None:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_SMALL_BYTES:
        raise OSError(errno.EPERM, "not a file of ours", path)


def set_used(path: str, used: float) -> None:
    """Note on a file when it was last used.

    Raises:
        OSError: It is gone or not ours.
    """
    when = int(used * 1e9)
    os.utime(path, ns=(when, when))


def size_of(path: str) -> int | None:
    """Length of a plain file; None if there is none."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def can_take(folder: str, num_bytes: int) -> bool:
    """Whether so many bytes can be written to a folder now, as far as the system tells.

    Also if the folder is not there: whoever writes makes it.
    """
    try:
        is_open = os.access(folder, os.W_OK) or not os.path.isdir(folder)
        return is_open and shutil.disk_usage(folder).free >= num_bytes
    except OSError:
        return True


def remove_file(path: str) -> bool:
    """Remove a file or a link; True if it is gone.

    Windows keeps a file that is being read; it goes another time.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def clear_place(path: str) -> bool:
    """Remove whatever lies in the place of a file of ours; True if nothing is there any more.

    A folder with something in it is not ours to empty: it gets another name.
    """
    if remove_file(path):
        return True
    try:
        try:
            os.rmdir(path)
        except OSError:
            os.rename(path, temporary_in(os.path.dirname(path)))
    except OSError:
        return False
    return True


def make_folders(root: str, *names: str) -> str:
    """Make private folders, one in the other; links and files in their places below the root go.

    A folder below the root that somebody closed is opened again.

    Args:
        root: Where they begin; may itself be a link to a folder elsewhere.
        names: Their names, from the root on.

    Returns:
        The path of the last.

    Raises:
        OSError: One cannot be made.
    """
    if not os.path.isdir(root):
        os.makedirs(root, 0o700)
        _open_to_us_only(root)
    path = root
    for name in names:
        path = os.path.join(path, name)
        if os.path.islink(path) or os.path.isfile(path):
            os.unlink(path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            _open_to_us_only(path)
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            _open_to_us_only(path)
    return path


def temporary_in(folder: str) -> str:
    """A new path for a file that is not whole yet."""
    return os.path.join(folder, f"{os.getpid()}-{next(_numbers)}.tmp")


def entries(path: str) -> Iterator[os.DirEntry[str]]:
    """What lies in a folder; nothing if it cannot be read."""
    try:
        with os.scandir(path) as found:
            yield from found
    except OSError:
        return


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder that is really there, and not a way to another."""
    try:
        if not entry.is_dir(follow_symlinks=False):
            return False
        attributes = getattr(entry.stat(follow_symlinks=False), "st_file_attributes", 0)
    except OSError:
        return False
    return not attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT


def _open_ours(path: str, flags: int) -> int:
    """Open a file; one whose permissions somebody changed gets its own again, if it is still ours."""
    try:
        return os.open(path, flags, 0o600)
    except PermissionError:
        if size_of(path) is None:
            raise
        with contextlib.suppress(OSError):
            os.chmod(path, 0o600)
        return os.open(path, flags, 0o600)


def _put(temporary: str, path: str) -> None:
    try:
        os.replace(temporary, path)
    except OSError:
        if not os.path.isdir(path) or not clear_place(path):
            raise
        os.replace(temporary, path)


def _open_to_us_only(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)


def _make_private(path: str, handle: int) -> None:
    # Undoes a umask that takes more than it should; some file systems have no permissions.
    if stat.S_IMODE(os.fstat(handle).st_mode) != 0o600:
        with contextlib.suppress(OSError):
            os.chmod(path, 0o600)


def _write_all(handle: int, parts: Sequence[memoryview | bytes]) -> None:
    for part in parts:
        rest = memoryview(part).cast("B")
        while rest:
            rest = rest[os.write(handle, rest) :]
