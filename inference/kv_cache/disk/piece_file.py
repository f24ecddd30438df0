"""Naming a piece, reading it, and proving that it is what it should be. Any thread; no state."""

import errno
import os
import stat
from collections.abc import Sequence
from typing import IO

from inference.kv_cache.block import BlockHash, HashBlock, hash_block
from inference.kv_cache.disk import names
from inference.kv_cache.disk.files import fill, open_for_reading
from inference.kv_cache.disk.format import (
    SUM_BYTES,
    Header,
    Miss,
    RowLayout,
    header_bytes,
    pack_header,
    pack_sum,
    parse_header,
    row_bytes,
)
from inference.kv_cache.tiers import Piece

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)


class PieceReader:
    """Reads pieces of one namespace.

    Args:
        namespace: As the keys have it.
        layout: How rows lie in a payload.
        hash_block: Names a text.
    """

    def __init__(
        self, namespace: bytes, layout: RowLayout, hash_block: HashBlock = hash_block
    ) -> None:
        self._namespace = namespace
        self._layout = layout
        self._row_bytes = row_bytes(layout)
        self._hash_block = hash_block

    def key(self, base_key: BlockHash, token_ids: Sequence[int]) -> BlockHash:
        """Name the rows of these ids after a base."""
        return self._hash_block(self._namespace, base_key, token_ids)

    def text(self, base_key: BlockHash, token_ids: tuple[int, ...]) -> names.BlockText:
        """Name the first rows of a block, once for all that is asked about them."""
        key = self._hash_block(self._namespace, base_key, token_ids)
        return names.BlockText(base_key, token_ids, key, names.base_tag(base_key))

    def header(self, block: names.BlockText, start: int) -> bytes:
        """What comes before the rows [start, end) of a block in their file."""
        return pack_header(self._namespace, self._layout, block.base_key, block.token_ids, start)

    def file_bytes(self, piece: Piece) -> int:
        """How long the file of a piece is."""
        return (
            header_bytes(piece.end, len(self._namespace), self._layout)
            + (piece.end - piece.start) * self._row_bytes
            + SUM_BYTES
        )

    def read_header(self, path: str, piece: Piece, base_tag: str) -> Header | Miss:
        """Read and verify a header, and that it belongs to the name of its file."""
        try:
            with open_for_reading(path) as file:
                return self._header(file, piece, base_tag)
        except OSError as error:
            return _why_unreadable(error)

    def read(self, path: str, piece: Piece, base_tag: str) -> tuple[Header, bytearray] | Miss:
        """Read and verify a whole piece."""
        try:
            with open_for_reading(path) as file:
                header = self._header(file, piece, base_tag)
                if isinstance(header, str):
                    return header
                payload = bytearray(header.payload_bytes + SUM_BYTES)
                if not fill(file, payload):
                    return "truncated"
        except OSError as error:
            return _why_unreadable(error)
        found = bytes(payload[-SUM_BYTES:])
        del payload[-SUM_BYTES:]
        return (header, payload) if pack_sum(payload) == found else "damaged"

    def _header(self, file: IO[bytes], piece: Piece, base_tag: str) -> Header | Miss:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return "not_a_piece"
        # A file of another version or none of ours is told apart before its length is judged.
        size = header_bytes(piece.end, len(self._namespace), self._layout)
        data = bytearray(min(size, status.st_size))
        if not fill(file, data):
            return "truncated"
        header = parse_header(bytes(data), self._namespace)
        if isinstance(header, str):
            return header
        if not self._is_named(header, piece, base_tag):
            return "wrong_name"
        payload_bytes = (header.end - header.start) * self._row_bytes
        if header.payload_bytes != payload_bytes or status.st_size != self.file_bytes(piece):
            return "truncated"
        return header

    def _is_named(self, header: Header, piece: Piece, base_tag: str) -> bool:
        return (
            (header.start, header.end) == (piece.start, piece.end)
            and names.base_tag(header.base_key) == base_tag
            and self.key(header.base_key, header.token_ids) == piece.key
        )


def _why_unreadable(error: OSError) -> Miss:
    if isinstance(error, FileNotFoundError):
        return "missing"
    if error.errno in _SHORTAGES:
        return "no_handle"
    is_other_thing = isinstance(error, IsADirectoryError) or error.errno == errno.ELOOP
    return "not_a_piece" if is_other_thing else "unreadable"
