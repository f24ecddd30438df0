"""Who owns which pieces, and where each conversation was last. Any thread; no state of its own.

A conversation's journal is a run of records, an owner tag and its CRC-32 each, appended before the
pieces are written. So a piece without an owner is one whose journal is gone, and may go too.

Who goes on in the middle of another's piece does not own it, and is to keep the first rows of it when
the other is forgotten. So such a one notes the text of these rows (a *rows tag*), and as owned the
piece that they will be then.
"""

import errno
import hashlib
import zlib
from collections.abc import Collection, Iterable, Sequence, Set

from inference.kv_cache.block import BlockHash
from inference.kv_cache.disk.files import append, read_small, write_file
from inference.kv_cache.disk.format import pack_ids

TAG_BYTES = 16
RECORD_BYTES = TAG_BYTES + 4
_IN_THE_WAY = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP)


def rows_tag(base_key: BlockHash, token_ids: Sequence[int]) -> bytes:
    """Stands for the first rows of a block in journals, whatever piece they are in."""
    text = b"rows" + bytes([len(base_key)]) + base_key + pack_ids(token_ids)
    return hashlib.blake2b(text, digest_size=TAG_BYTES).digest()


def read_tags(path: str) -> set[bytes]:
    """Owner tags in a journal; records that are torn or damaged are left out."""
    data = read_small(path)
    tags = set()
    for at in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
        tag = data[at : at + TAG_BYTES]
        if data[at + TAG_BYTES : at + RECORD_BYTES] == _checksum(tag):
            tags.add(tag)
    return tags


def append_tags(path: str, tags: Collection[bytes], present: Set[bytes], now: float) -> None:
    """Add owner tags to a journal, which is made if need be.

    What cannot be opened, or is no file, gives way to a new one with these tags and those `present`.

    Raises:
        OSError: It cannot be written.
    """
    try:
        append(path, _pack(tags), RECORD_BYTES)
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        rewrite_tags(path, present | set(tags), now)


def rewrite_tags(path: str, tags: Collection[bytes], now: float) -> None:
    """Write a journal anew with these tags only.

    Raises:
        OSError: It cannot be written.
    """
    write_file(path, [_pack(tags)], now)


def _pack(tags: Iterable[bytes]) -> bytes:
    return b"".join(tag + _checksum(tag) for tag in tags)


def _checksum(tag: bytes) -> bytes:
    return zlib.crc32(tag).to_bytes(4, "little")
