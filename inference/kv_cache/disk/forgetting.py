"""Removes what only one conversation used, of all models; no store need be open. Any thread."""

import os
import time
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from inference.kv_cache.disk import names
from inference.kv_cache.disk.clearing import clear_leftovers
from inference.kv_cache.disk.files import (
    make_folders,
    open_for_reading,
    remove_file,
    size_of,
    write_file,
)
from inference.kv_cache.disk.format import (
    Header,
    first_rows,
    pack_header,
    pack_sum,
    parse_header,
)
from inference.kv_cache.disk.index import Entry
from inference.kv_cache.disk.journal import read_tags, rows_tag
from inference.kv_cache.disk.piece_file import PieceReader
from inference.kv_cache.disk.root import (
    ORPHAN_SECONDS,
    chat_names,
    namespace_paths,
    owned_tags,
    scan_pieces,
)
from inference.kv_cache.tiers import Piece

MOST_HEADER_BYTES = 4096
"""Longer than any header without its ids."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What went with a conversation.

    Attributes:
        paths: Files that are gone.
        num_bytes: How many they had.
        kept: Pieces made of the first rows of those gone, since another goes on after them.
    """

    paths: tuple[str, ...]
    num_bytes: int
    kept: tuple[Entry, ...]


def forget_conversation(root: Path, conversation_id: str) -> int:
    """Remove what only this conversation used, of all models; no store need be open.

    Returns:
        Bytes freed.
    """
    return forget_files(os.fspath(root), conversation_id, time.time()).num_bytes


def forget_files(root: str, conversation_id: str, now: float) -> Forgotten:
    """Remove a conversation's journals and trails, and the pieces that nobody else owns.

    The journal goes before the pieces: if this is interrupted, they have no owner and go later.
    """
    paths: list[str] = []
    kept: list[Entry] = []
    freed = 0
    for folder in namespace_paths(root):
        chat = names.conversation_path(folder, conversation_id, "")
        gone = _forget_chat(folder, chat, now)
        paths += gone.paths
        kept += gone.kept
        freed += gone.num_bytes
    return Forgotten(tuple(paths), freed, tuple(kept))


def forget_all_but(root: Path, conversation_ids: Iterable[str]) -> int:
    """Remove what only conversations used that are not among these, of all models.

    For the start of a program: what was deleted and not yet forgotten when the last one ended.

    Returns:
        Bytes freed.
    """
    clear_leftovers(os.fspath(root))
    now, freed = time.time(), 0
    known = {names.conversation_name(each) for each in conversation_ids}
    for folder in namespace_paths(os.fspath(root)):
        for name in sorted(chat_names(folder) - known):
            freed += _forget_chat(folder, os.path.join(folder, names.CHATS, name), now).num_bytes
    return freed


def _forget_chat(folder: str, chat: str, now: float) -> Forgotten:
    """Remove a conversation's files from one namespace; `chat` is their path without a suffix."""
    paths: list[str] = []
    kept: list[Entry] = []
    freed = 0
    journal, trail = chat + names.OWN, chat + names.TRAIL
    is_known = size_of(journal) is not None
    tags = read_tags(journal)
    others = owned_tags(folder, but_not=journal) if is_known else set()
    pieces = scan_pieces(folder, now, but_not=others) if is_known else []
    for path in (trail, journal):
        freed += _remove(path, paths)
    for found in _without_owner(pieces, tags, now):
        shorter = _keep_first_rows(folder, found, others) if others else None
        freed += _remove(found.path, paths)
        if shorter is not None:
            kept.append(shorter)
            freed -= shorter.size
    return Forgotten(tuple(paths), freed, tuple(kept))


def _without_owner(pieces: list[Entry], tags: Set[bytes], now: float) -> Iterator[Entry]:
    """Of pieces that no other conversation owns, this one's and those that nobody does for long."""
    for found in pieces:
        if found.owner_tag in tags or now - found.used > ORPHAN_SECONDS:
            yield found


def _remove(path: str, paths: list[str]) -> int:
    """Remove a file and note its path; how many bytes that frees."""
    size = size_of(path)
    if size is None or not remove_file(path):
        return 0
    paths.append(path)
    return size


def _keep_first_rows(folder: str, found: Entry, others: Set[bytes]) -> Entry | None:
    """Write the first rows of a piece as one of their own if another goes on after them."""
    header = _read_header(found)
    if header is None:
        return None
    base, ids, start = header.base_key, header.token_ids, header.start
    ends = range(header.end - 1, start, -1)
    end = next((end for end in ends if rows_tag(base, ids[:end]) in others), None)
    if end is None:
        return None
    reader = PieceReader(header.namespace, header.layout)
    whole = reader.read(found.path, found.piece, found.base_tag)
    if isinstance(whole, str):
        return None
    payload = first_rows(memoryview(whole[1]), header.layout, header.end - start, end - start)
    piece = Piece(reader.key(base, ids[:end]), start, end)
    path = names.piece_path(folder, piece, found.base_tag)
    parts = (
        pack_header(header.namespace, header.layout, base, ids[:end], start),
        payload,
        pack_sum(payload),
    )
    try:
        make_folders(folder, names.BLOCKS, os.path.basename(os.path.dirname(path)))
        write_file(path, parts, found.used)
    except OSError:
        return None
    return Entry(path, piece, found.base_tag, reader.file_bytes(piece), found.used)


def _read_header(found: Entry) -> Header | None:
    try:
        with open_for_reading(found.path) as file:
            header = parse_header(file.read(MOST_HEADER_BYTES + 4 * found.piece.end))
    except OSError:
        return None
    return None if isinstance(header, str) else header
