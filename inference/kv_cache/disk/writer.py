"""Tries to write, makes folders that are not there, and holds still after a failure. Any thread."""

import errno
from collections.abc import Callable

from inference.kv_cache.disk.files import make_folders
from inference.kv_cache.disk.format import Miss

PAUSE_SECONDS = 60.0
"""After a failure nothing is written for so long."""

FULL = "The disk is full, so chats are not kept beyond memory. Free some space."

_NO_SPACE = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


class Writer:
    """Writes below the folder of one namespace.

    Attributes:
        problem: What is wrong and what to do, for people; "" if the last piece or trail could be written.
    """

    def __init__(self, root: str, folder_name: str, clock: Callable[[], float]) -> None:
        """Take the root, the namespace's folder in it, and a clock in seconds."""
        self.problem = ""
        self._root = root
        self._folder_name = folder_name
        self._clock = clock
        self._miss: Miss = "not_writable"
        self._until = float("-inf")

    def why_not(self) -> Miss | None:
        """Why nothing may be written now; None if it may."""
        # A clock that was set back does not prolong a pause.
        is_paused = self._until - PAUSE_SECONDS <= self._clock() < self._until
        return self._miss if is_paused else None

    def make_folders(self, *folders: str) -> Miss | None:
        """Make folders below that of the namespace; why that failed, None if it did not."""
        return self.write(lambda: make_folders(self._root, self._folder_name, *folders))

    def write(self, write: Callable[[], object], *folders: str) -> Miss | None:
        """Write something; once more after its folders were made, if that may be what is wrong.

        Args:
            write: May raise OSError, and then has left nothing.
            folders: Names from that of the namespace's folder on.

        Returns:
            Why it failed; None if it did not.
        """
        try:
            try:
                write()
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                make_folders(self._root, self._folder_name, *folders)
                write()
        except OSError as error:
            return self._fail(error)
        return None

    def succeed(self) -> None:
        """A piece or a trail was written, so there is no problem any more."""
        self.problem = ""
        self._until = float("-inf")

    def _fail(self, error: OSError) -> Miss:
        is_full = error.errno in _NO_SPACE
        self.problem = FULL if is_full else not_writable(self._root, error)
        self._miss = "no_space" if is_full else "not_writable"
        self._until = self._clock() + PAUSE_SECONDS
        return self._miss


def not_writable(root: str, error: OSError) -> str:
    """What to say of a folder in which nothing can be written."""
    return (
        f"The cache folder {root} cannot be written ({error.strerror}), so chats are not kept beyond"
        " memory. Check its rights and its disk."
    )
