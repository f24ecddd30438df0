"""One KV block and the name of what lies in it. Pure Python; owned by the engine thread."""

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import NewType

BlockHash = NewType("BlockHash", bytes)

ROOT_KEY = BlockHash(b"")
"""The parent key of a chain's first block."""

HashBlock = Callable[[bytes, BlockHash, Sequence[int]], BlockHash]
"""(namespace, parent key, token ids) -> key."""


def hash_block(namespace: bytes, parent_key: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """Name the rows of a block by their text and everything before it.

    Args:
        namespace: What else the values depend on: weights, positions, layout. Any length.
        parent_key: Key of the block before; `ROOT_KEY` for the first.
        token_ids: The block's first tokens, all of them if it is full; each fits into int32.

    Returns:
        32 bytes of BLAKE2b over the namespace with its length, the parent key, and the tokens as
        little-endian int32, so that the key is the same on each machine.
    """
    tokens = struct.pack(f"<{len(token_ids)}i", *token_ids)
    head = struct.pack("<I", len(namespace)) + namespace
    return BlockHash(hashlib.blake2b(head + parent_key + tokens, digest_size=32).digest())


class Prefix:
    """What a block holds: its tokens, after those of a parent. Never changed once made.

    A key alone names this; the chain is kept so that a hit is proven by its tokens, all the way to
    the first block, and not by trust in the hash. A parent is always a full block; the last of a
    chain may hold fewer tokens, and is nobody's parent then.

    Attributes:
        key: The hash of the whole chain.
        parent: What comes before; None for a first block.
        token_ids: This block's own tokens, 1 to P.
    """

    __slots__ = ("key", "parent", "token_ids")

    def __init__(self, key: BlockHash, parent: "Prefix | None", token_ids: tuple[int, ...]) -> None:
        self.key = key
        self.parent = parent
        self.token_ids = token_ids

    @property
    def parent_key(self) -> BlockHash:
        """Key of what comes before; `ROOT_KEY` for a first block."""
        return ROOT_KEY if self.parent is None else self.parent.key

    def continues(self, parent: "Prefix | None", token_ids: tuple[int, ...]) -> bool:
        """Whether this is exactly `token_ids` after `parent`, by content."""
        return self.token_ids == token_ids and is_same_chain(self.parent, parent)


def is_same_chain(one: Prefix | None, other: Prefix | None) -> bool:
    """Whether two chains hold the same tokens, from the first block on."""
    # Chains that came from the same blocks share their objects, so this normally ends at once. It
    # walks on only where a parent was evicted and computed again.
    while one is not other:
        if one is None or other is None or one.token_ids != other.token_ids:
            return False
        one, other = one.parent, other.parent
    return True


class Block:
    """A fixed run of KV slots.

    Attributes:
        block_id: Its place in the KV tensors; slots block_id * P ... block_id * P + P - 1.
        ref_count: How many block tables hold it, and how many transfers.
        prefix: What it holds, once that is fixed; None while it may be written.
    """

    __slots__ = ("block_id", "prefix", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.prefix: Prefix | None = None
