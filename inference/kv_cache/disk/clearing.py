"""Removes whole folders of the disk tier: few files at once, many a little later. Any thread.

Who clears the cache waits for it, and a reply that streams with it: 30,000 files take seconds. So a folder
with many gets another name, under which nobody looks for anything, and a thread empties it. What is left of
one when the program ends is removed at its next start.
"""

import contextlib
import os
import sys
import threading

from inference.kv_cache.disk import names
from inference.kv_cache.disk.files import (
    entries,
    is_folder,
    remove_file,
    size_of,
    temporary_in,
)

MOST_AT_ONCE = 500
"""Files that are removed while others wait: some 30 ms."""


def clear_folder(path: str) -> int:
    """Remove a folder and all in it; nobody finds any of it from now on.

    Returns:
        Bytes freed, by now or soon.
    """
    num_files, num_bytes = _extent(path)
    if num_files <= MOST_AT_ONCE:
        return remove_tree(path)
    aside = temporary_in(os.path.dirname(path))
    try:
        os.rename(path, aside)
    except OSError:  # Windows, while a file in it is open
        return remove_tree(path)
    _remove_soon([aside])
    return num_bytes


def clear_leftovers(root: str) -> None:
    """Remove what an earlier program had set aside and not emptied yet, a little later."""
    left = [
        entry.path
        for entry in entries(root)
        if names.temporary_process(entry.name) is not None and is_folder(entry)
    ]
    if left:
        _remove_soon(left)


def remove_tree(path: str) -> int:
    """Remove a folder and all in it, links but not what they lead to; bytes freed."""
    freed = 0
    for entry in list(entries(path)):
        if is_folder(entry):
            freed += remove_tree(entry.path)
            continue
        size = size_of(entry.path)
        if remove_file(entry.path):
            freed += size or 0
    with contextlib.suppress(OSError):
        os.rmdir(path)
    return freed


def _extent(path: str) -> tuple[int, int]:
    """How many files a folder has, those in its folders too, and their bytes."""
    num_files = num_bytes = 0
    for entry in entries(path):
        if is_folder(entry):
            more_files, more_bytes = _extent(entry.path)
            num_files, num_bytes = num_files + more_files, num_bytes + more_bytes
        else:
            num_files, num_bytes = num_files + 1, num_bytes + (size_of(entry.path) or 0)
    return num_files, num_bytes


def _remove_soon(folders: list[str]) -> None:
    # Nobody waits for it when the program ends.
    threading.Thread(target=_remove_each, args=(folders,), name="kv-clear", daemon=True).start()


def _remove_each(folders: list[str]) -> None:
    if sys.platform == "linux":  # where the system knows threads apart
        with contextlib.suppress(OSError):  # it only takes longer then
            os.nice(19)
    for folder in folders:
        remove_tree(folder)
