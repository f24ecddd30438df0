"""The folder of the disk tier with all its namespaces, looked at without a store.

Only what has a name that we give is counted or removed; a link is removed and never followed.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Set
from pathlib import Path

import psutil

from inference.kv_cache.disk import names
from inference.kv_cache.disk.clearing import clear_folder, clear_leftovers
from inference.kv_cache.disk.files import (
    MOST_SMALL_BYTES,
    clear_place,
    entries,
    is_folder,
    remove_file,
    size_of,
)
from inference.kv_cache.disk.index import Entry
from inference.kv_cache.disk.journal import read_tags

TEMPORARY_SECONDS = 3600.0
"""A file that nobody finished is removed at this age even if its process seems to live."""

ORPHAN_SECONDS = 600.0
"""A piece without an owner is removed at this age; before, another process may be about to own it."""


def namespace_paths(root: str) -> list[str]:
    """Folders of all namespaces."""
    return [
        entry.path
        for entry in entries(root)
        if names.is_namespace_folder(entry.name) and is_folder(entry)
    ]


def scan_pieces(
    namespace_path: str, now: float, *, but_not: Set[bytes] = frozenset()
) -> list[Entry]:
    """All pieces of a namespace, none used after `now`; what was never finished is removed.

    Those with an owner tag of `but_not` are passed over, at little cost.
    """
    found = []
    for entry in _block_entries(namespace_path):
        parsed = names.parse_piece_name(entry.name)
        if parsed is None:
            _remove_unfinished(entry, now)
            continue
        if but_not and names.owner_tag(parsed[0].key) in but_not:
            continue
        with contextlib.suppress(OSError):
            if not entry.is_file(follow_symlinks=False):
                clear_place(entry.path)
                continue
            status = entry.stat(follow_symlinks=False)
            used = min(status.st_mtime, now)
            found.append(Entry(entry.path, *parsed, status.st_size, used))
    return found


def scan_namespace(namespace_path: str, now: float) -> list[Entry]:
    """The pieces of a namespace that somebody owns; what nobody does is removed."""
    # Files before journals: a piece that another process writes meanwhile has an owner by then.
    found = scan_pieces(namespace_path, now)
    owned = owned_tags(namespace_path)
    return [
        entry for entry in found if not (_is_orphan(entry, owned, now) and remove_file(entry.path))
    ]


def scan_chats(namespace_path: str, now: float) -> dict[str, int]:
    """Journals and trails of a namespace and their lengths."""
    found = {}
    for entry in _chat_entries(namespace_path):
        if not entry.name.endswith((names.OWN, names.TRAIL)):
            _remove_unfinished(entry, now)
            continue
        size = size_of(entry.path)
        if size is None or size > MOST_SMALL_BYTES:
            clear_place(entry.path)
        else:
            found[entry.path] = size
    return found


def chat_names(namespace_path: str) -> set[str]:
    """Names of all conversations that have a journal or a trail in a namespace."""
    stems = (os.path.splitext(entry.name) for entry in _chat_entries(namespace_path))
    return {stem for stem, suffix in stems if suffix in (names.OWN, names.TRAIL)}


def owned_tags(namespace_path: str, *, but_not: str = "") -> set[bytes]:
    """Tags in all journals of a namespace, without that of the path `but_not`."""
    tags: set[bytes] = set()
    for entry in _chat_entries(namespace_path):
        if entry.name.endswith(names.OWN) and entry.path != but_not:
            tags |= read_tags(entry.path)
    return tags


def clear_all(root: Path) -> int:
    """Remove everything of all conversations and models; no store need be open.

    Returns:
        Bytes freed, by now or soon.
    """
    clear_leftovers(os.fspath(root))
    freed = 0
    for entry in list(entries(os.fspath(root))):
        if not names.is_namespace_folder(entry.name):
            continue
        if is_folder(entry):
            freed += clear_folder(entry.path)
        else:
            remove_file(entry.path)
    return freed


def used_bytes(root: Path) -> int:
    """Length of all files of all models."""
    now = time.time()
    total = 0
    for folder in namespace_paths(os.fspath(root)):
        total += sum(found.size for found in scan_pieces(folder, now))
        total += sum(scan_chats(folder, now).values())
    return total


def _block_entries(namespace_path: str) -> Iterator[os.DirEntry[str]]:
    blocks = os.path.join(namespace_path, names.BLOCKS)
    if os.path.islink(blocks):
        return
    for entry in entries(blocks):
        if names.is_fan_folder(entry.name) and is_folder(entry):
            yield from entries(entry.path)
        elif names.temporary_process(entry.name) is not None:
            yield entry


def _chat_entries(namespace_path: str) -> Iterator[os.DirEntry[str]]:
    chats = os.path.join(namespace_path, names.CHATS)
    if not os.path.islink(chats):
        yield from entries(chats)


def _is_orphan(entry: Entry, owned: Set[bytes], now: float) -> bool:
    return entry.owner_tag not in owned and now - entry.used > ORPHAN_SECONDS


def _remove_unfinished(entry: os.DirEntry[str], now: float) -> None:
    process = names.temporary_process(entry.name)
    if process is None:
        return
    try:
        age = now - entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return
    if age > TEMPORARY_SECONDS or not psutil.pid_exists(process):
        remove_file(entry.path)
