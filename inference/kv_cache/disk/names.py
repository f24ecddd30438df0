"""How the files of the disk tier are named. Pure Python; no files are touched here.

    root/<namespace>/blocks/<2 hex>/<key>-<start>-<end>-<base tag>.kv       a piece
    root/<namespace>/chats/<conversation>.own                               what it owns
    root/<namespace>/chats/<conversation>.trail                             its last token ids
    <process id>-<number>.tmp                                               not finished, anywhere; a folder
                                                                            in the root: being removed

A scan of names is enough to know what is there. No name tells a text or the id of a conversation.
"""

import hashlib
import os
import re
from dataclasses import dataclass

from inference.kv_cache.block import BlockHash
from inference.kv_cache.disk.format import VERSION
from inference.kv_cache.tiers import Piece

BLOCKS = "blocks"
CHATS = "chats"
OWN = ".own"
TRAIL = ".trail"

_BLOCKS_IN = os.sep + BLOCKS + os.sep

_NAMESPACE = re.compile(r"[0-9a-f]{32}")
_FAN = re.compile(r"[0-9a-f]{2}")
_PIECE = re.compile(r"((?:[0-9a-f]{2}){1,64})-(\d{1,5})-(\d{1,5})-([0-9a-f]{16})\.kv")
_TEMPORARY = re.compile(r"(\d{1,10})-\d+\.tmp")


@dataclass(frozen=True, slots=True)
class BlockText:
    """What the first rows of a block hold, and how the disk tier calls that.

    Attributes:
        base_key: Key of the block before.
        token_ids: Of the rows from 0 on.
        key: Of a piece that ends with the last of them.
        base_tag: Tag of the base key.
    """

    base_key: BlockHash
    token_ids: tuple[int, ...]
    key: BlockHash
    base_tag: str


def namespace_folder(namespace: bytes) -> str:
    """Name of the folder of a namespace and of this version of the format."""
    head = VERSION.to_bytes(2, "little")
    return hashlib.blake2b(head + namespace, digest_size=16).hexdigest()


def is_namespace_folder(name: str) -> bool:
    """Whether a folder in the root has a name that we give."""
    return _NAMESPACE.fullmatch(name) is not None


def is_fan_folder(name: str) -> bool:
    """Whether a folder in `blocks` has a name that we give."""
    return _FAN.fullmatch(name) is not None


def base_tag(base_key: BlockHash) -> str:
    """Finds the pieces of one place in one text; 16 hex digits."""
    return hashlib.blake2b(base_key, digest_size=8).hexdigest()


def owner_tag(key: BlockHash) -> bytes:
    """Stands for the pieces with one key, whatever their first row, in a journal; 16 bytes."""
    return hashlib.blake2b(key, digest_size=16).digest()


def piece_path(namespace_path: str, piece: Piece, tag: str) -> str:
    """Where a piece lies; `tag` is that of its base."""
    key = piece.key.hex()
    # os.path.join takes several times as long, and this is asked for each block of each turn.
    fan = namespace_path + _BLOCKS_IN + key[:2]
    return f"{fan}{os.sep}{key}-{piece.start}-{piece.end}-{tag}.kv"


def fan_folder(key: BlockHash) -> str:
    """Name of the folder in `blocks` where the pieces with a key lie."""
    return key[:1].hex()


def parse_piece_name(name: str) -> tuple[Piece, str] | None:
    """The piece and the tag of its base; None if it is not the name of a piece."""
    match = _PIECE.fullmatch(name)
    if match is None:
        return None
    key, start, end, tag = match.groups()
    piece = Piece(BlockHash(bytes.fromhex(key)), int(start), int(end))
    return (piece, tag) if piece.start < piece.end else None


def conversation_path(namespace_path: str, conversation_id: str, suffix: str) -> str:
    """Where a conversation's journal or trail lies."""
    return os.path.join(namespace_path, CHATS, conversation_name(conversation_id) + suffix)


def conversation_name(conversation_id: str) -> str:
    """What stands for a conversation in names; it does not tell the id."""
    return hashlib.blake2b(conversation_id.encode(), digest_size=16).hexdigest()


def temporary_process(name: str) -> int | None:
    """Who wrote a file that is not finished, or removes a folder; None if it is not the name of one."""
    match = _TEMPORARY.fullmatch(name)
    return None if match is None else int(match[1])
