"""A trail: the ids of a conversation's last sequence, and what made them. Pure Python; no files here.

    trail     magic, version, number of ids, CRC-32 of the rest | maker | ids as int32

The maker lets another one say why it cannot use what this one has kept. All numbers are little-endian.
"""

import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Literal

from inference.kv_cache.disk.format import VERSION, pack_ids

_MAGIC = b"QuireTs\n"
_FIXED = struct.Struct("<8sHII")
_DIGEST_BYTES = 16

Difference = Literal["other_model", "other_weights", "other_computing", "other_precision"]
"""Why a maker cannot use what another has kept. Other weights: of a file that looked the same."""


@dataclass(frozen=True, slots=True)
class Maker:
    """What keys and values depend on besides text, in parts. Unknown parts are equal.

    Attributes:
        fingerprint: Names the model by a look at its file, as token ids are, 16 bytes.
        weights: Names its weights by all their bytes, 16 bytes.
        computing: Names all that decides what is computed with them, 16 bytes.
        precision: Names how keys and values are stored, 16 bytes.
    """

    fingerprint: bytes = bytes(_DIGEST_BYTES)
    weights: bytes = bytes(_DIGEST_BYTES)
    computing: bytes = bytes(_DIGEST_BYTES)
    precision: bytes = bytes(_DIGEST_BYTES)

    @classmethod
    def of(
        cls, *, fingerprint: bytes, weights: bytes, computing: bytes, precision: bytes
    ) -> "Maker":
        """Make the names from what they stand for."""
        return cls(*map(_named, (fingerprint, weights, computing, precision)))

    def difference(self, other: "Maker") -> Difference:
        """What of another maker is not as here; the weights first, as the rest is nothing without them."""
        if self.weights != other.weights:
            return "other_weights" if self.fingerprint == other.fingerprint else "other_model"
        return "other_computing" if self.computing != other.computing else "other_precision"


@dataclass(frozen=True, slots=True)
class Trail:
    """What `pack_trail` noted."""

    maker: Maker
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrailElsewhere:
    """A trail of the same conversation that another maker left.

    Attributes:
        difference: Why what was kept of it cannot be used.
        token_ids: Its ids.
    """

    difference: Difference
    token_ids: Sequence[int]


def pack_trail(token_ids: Sequence[int], maker: Maker) -> bytes:
    """Write a trail."""
    rest = b"".join(astuple(maker)) + pack_ids(token_ids)
    return _FIXED.pack(_MAGIC, VERSION, len(token_ids), zlib.crc32(rest)) + rest


def parse_trail(data: bytes) -> Trail | None:
    """Read a trail; None if it is not whole."""
    if len(data) < _FIXED.size:
        return None
    magic, version, count, checksum = _FIXED.unpack_from(data)
    rest = data[_FIXED.size :]
    ids_at = _DIGEST_BYTES * len(fields(Maker))
    if (magic, version, ids_at + 4 * count) != (_MAGIC, VERSION, len(rest)):
        return None
    if zlib.crc32(rest) != checksum:
        return None
    names = (rest[at : at + _DIGEST_BYTES] for at in range(0, ids_at, _DIGEST_BYTES))
    return Trail(Maker(*names), struct.unpack_from(f"<{count}i", rest, ids_at))


def _named(what: bytes) -> bytes:
    return hashlib.blake2b(what, digest_size=_DIGEST_BYTES).digest()
