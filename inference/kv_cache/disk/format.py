"""What is in a file of the disk tier. Pure Python; no files are touched here.

    piece     header | payload | sum
    header    magic, version, start, end, lengths of namespace, base key and layout, base key, length
              of the payload | namespace | layout, pairs of int32 | ids of the rows [0, end) as int32 |
              BLAKE2b-16 of all before
    payload   for each pair (count, size) of the layout: count runs, in each `size` bytes of every row
    sum       CRC-32 of the payload, behind it, so that the header is known before the payload is looked at

All numbers are little-endian. Whoever shortens a piece need not know the model: the layout says which
bytes are of which row. The payload is checked by CRC-32, since it is long and zlib's is four
times as fast as BLAKE2b; the header, which decides what the payload is, by BLAKE2b.
"""

import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inference.kv_cache.block import BlockHash

VERSION = 3
"""Changes with anything above; files of another version are misses."""

Miss = Literal[
    "missing",  # the file is gone
    "unreadable",  # the system does not let it be read
    "no_handle",  # nor anything else now: too many files are open, or memory is short
    "not_a_piece",  # something else lies in its place
    "other_version",  # written by a Quire with another format
    "other_model",  # of another namespace
    "truncated",  # shorter or longer than its header says
    "damaged",  # a checksum is wrong
    "wrong_name",  # whole, but in the place of another
    "other_text",  # whole, but of other ids with the same key
    "no_space",  # not written: the disk is full
    "not_writable",  # not written: the folder or the file cannot be written
    "over_budget",  # not written: no room beside what is needed more
]
"""Why rows were not read or not written."""

AT_FAULT: frozenset[str] = frozenset(
    (
        "unreadable", "not_a_piece", "other_version", "other_model", "truncated", "damaged",
        "wrong_name",
    )
)  # fmt: skip
"""Misses after which a file is removed, so that it is written anew."""

_PIECE_MAGIC = b"QuireKV\n"
_MAX_BASE_BYTES = 64
_START = struct.Struct("<8sH")
_FIXED = struct.Struct(f"<8sHHHHHH{_MAX_BASE_BYTES}sQ")
_DIGEST_BYTES = 16
SUM_BYTES = 4

RowLayout = tuple[tuple[int, int], ...]
"""How rows lie in a payload: pairs (count, size), see above."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a piece says about itself.

    Attributes:
        start, end: Its rows of the block.
        namespace: As the keys have it.
        layout: How the rows lie in the payload.
        base_key: Key of the block before.
        token_ids: Of the rows [0, end).
        payload_bytes: Length of the payload.
    """

    start: int
    end: int
    namespace: bytes
    layout: RowLayout
    base_key: BlockHash
    token_ids: tuple[int, ...]
    payload_bytes: int


def header_bytes(end: int, namespace_bytes: int, layout: RowLayout) -> int:
    """Length of the header of a piece whose last row is end - 1."""
    return _header_bytes(end, namespace_bytes, len(layout))


def row_bytes(layout: RowLayout) -> int:
    """Bytes of one row."""
    return sum(count * size for count, size in layout)


def first_rows(payload: memoryview, layout: RowLayout, num_rows: int, kept: int) -> bytes:
    """Of a payload of so many rows the payload of the first `kept` of them."""
    parts, at = [], 0
    for count, size in layout:
        for _ in range(count):
            parts.append(payload[at : at + kept * size])
            at += num_rows * size
    return b"".join(parts)


def pack_header(
    namespace: bytes,
    layout: RowLayout,
    base_key: BlockHash,
    token_ids: Sequence[int],
    start: int,
) -> bytes:
    """Write the header of the rows [start, len(token_ids)).

    Args:
        namespace: As the keys have it.
        layout: How the rows lie in the payload.
        base_key: At most 64 bytes.
        token_ids: Of the rows from 0 on; each fits into int32.
        start: First row in the payload.
    """
    assert len(base_key) <= _MAX_BASE_BYTES, f"a base key has {len(base_key)} bytes"
    end = len(token_ids)
    fixed = _FIXED.pack(
        _PIECE_MAGIC,
        VERSION,
        start,
        end,
        len(namespace),
        len(base_key),
        len(layout),
        base_key,
        (end - start) * row_bytes(layout),
    )
    pairs = [number for pair in layout for number in pair]
    text = fixed + namespace + pack_ids(pairs) + pack_ids(token_ids)
    return text + _digest(text)


def parse_header(data: bytes, namespace: bytes | None = None) -> Header | Miss:
    """Read a header and verify it.

    Args:
        data: The first bytes of a file, as many as the header has, or more.
        namespace: What it must be; None takes any.

    Returns:
        The header, or why it is not one.
    """
    if len(data) < _START.size:
        return "truncated"
    magic, version = _START.unpack_from(data)
    if magic != _PIECE_MAGIC:
        return "not_a_piece"
    if version != VERSION:
        return "other_version"
    if len(data) < _FIXED.size:
        return "truncated"
    fixed = _FIXED.unpack_from(data)
    start, end, namespace_length, base_length, num_pairs, base, payload_bytes = fixed[2:]
    layout_at = _FIXED.size + namespace_length
    its_namespace = data[_FIXED.size : layout_at]
    # Before the length, which is another with another namespace.
    if namespace is not None and its_namespace != namespace:
        is_cut = (namespace_length, data[_FIXED.size :]) == (len(namespace), its_namespace)
        return "truncated" if is_cut else "other_model"
    size = _header_bytes(end, namespace_length, num_pairs)
    if len(data) < size:
        return "truncated"
    if _digest(data[: size - _DIGEST_BYTES]) != data[size - _DIGEST_BYTES : size]:
        return "damaged"
    numbers = struct.unpack_from(f"<{2 * num_pairs + end}i", data, layout_at)
    layout = tuple(zip(numbers[: 2 * num_pairs : 2], numbers[1 : 2 * num_pairs : 2], strict=True))
    base_key = BlockHash(base[:base_length])
    ids = numbers[2 * num_pairs :]
    return Header(start, end, its_namespace, layout, base_key, ids, payload_bytes)


def pack_sum(payload: memoryview | bytes | bytearray) -> bytes:
    """What comes behind a payload."""
    return zlib.crc32(payload).to_bytes(SUM_BYTES, "little")


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Ids as little-endian int32."""
    return struct.pack(f"<{len(token_ids)}i", *token_ids)


def _header_bytes(end: int, namespace_bytes: int, num_pairs: int) -> int:
    return _FIXED.size + namespace_bytes + 8 * num_pairs + 4 * end + _DIGEST_BYTES


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
