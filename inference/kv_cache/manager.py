"""Block tables: what of a prompt is there already, and where the rest goes.

Pure Python; owned by the scheduler, on the engine thread. A block table is a plain list of block
ids that belongs to one sequence; slot of token i is table[i // P] * P + i % P.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from inference.kv_cache.block import ROOT_KEY, BlockHash, HashBlock, Prefix, hash_block
from inference.kv_cache.block_pool import BlockPool
from inference.metrics import BlockCounts

ChainEnd = Literal[
    "nothing_cached",  # the very first block is not known, or the prompt fills none
    "different_text",  # the prompt differs from everything cached after the reused part
    "evicted",  # the blocks were there once and gave way to others
    "all_reused",  # every full block; at least the last token must always be computed
]


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What of a prompt need not be computed.

    Attributes:
        block_ids: Blocks in order, each referenced once for the caller.
        num_tokens: Tokens in them.
        reuse_stop: Why it is not more.
    """

    block_ids: tuple[int, ...]
    num_tokens: int
    reuse_stop: ChainEnd


class KvCacheManager:
    """Gives sequences their blocks and finds shared prefixes.

    Only full blocks whose values are computed are found again. Each is named by its text, all text
    before it, and the namespace.

    Attributes:
        num_blocks: How many blocks there are.
        block_size: Slots per block, P.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        namespace: bytes,
        hash_block: HashBlock = hash_block,
    ) -> None:
        """Make an empty cache.

        Args:
            num_blocks: At least 1.
            block_size: At least 1.
            namespace: What values depend on besides text: weights, positions, layout.
            hash_block: Names a block; for tests.
        """
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}.")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._namespace = namespace
        self._hash_block = hash_block
        self._pool = BlockPool(num_blocks)

    @property
    def evictions(self) -> int:
        """How many cached blocks gave way so far."""
        return self._pool.evictions

    @property
    def num_available(self) -> int:
        """Blocks that can be had now: free and cached."""
        return self._pool.num_available

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def attach(self, token_ids: Sequence[int]) -> PrefixHit:
        """Find the longest known prefix and reference its blocks.

        At least one token is left to compute, since only computing gives the logits after it.

        Args:
            token_ids: The whole prompt, at least one token.
        """
        block_ids: list[int] = []
        parent: Prefix | None = None
        stop: ChainEnd = "all_reused"
        num_blocks = (len(token_ids) - 1) // self.block_size
        if num_blocks == 0:
            stop = "nothing_cached"
        for index in range(num_blocks):
            tokens = self._tokens_of(token_ids, index)
            key = self._key(parent, tokens)
            block = self._pool.find(key, parent, tokens)
            if block is None:
                stop = self._why_missing(key, is_first=index == 0)
                break
            self._pool.reference(block)
            block_ids.append(block.block_id)
            parent = block.prefix
        return PrefixHit(tuple(block_ids), len(block_ids) * self.block_size, stop)

    def grow(self, block_table: list[int], num_tokens: int) -> bool:
        """Lengthen a table until it has slots for `num_tokens` tokens in total.

        Args:
            block_table: Changed in place; left alone if there are too few blocks.
            num_tokens: Of the whole sequence, not only of what is new.

        Returns:
            Whether it fits.
        """
        missing = self.blocks_for(num_tokens) - len(block_table)
        if missing <= 0:
            return True
        taken = self._pool.allocate(missing, after=block_table[-1] if block_table else None)
        if taken is None:
            return False
        block_table += taken
        return True

    def publish(
        self, block_table: Sequence[int], token_ids: Sequence[int], num_computed: int
    ) -> None:
        """Let others find the blocks that have become full.

        Args:
            block_table: Of the sequence.
            token_ids: Its tokens, at least `num_computed`.
            num_computed: Tokens whose values are in the blocks, from the first on.
        """
        assert num_computed <= len(token_ids), f"{num_computed} of {len(token_ids)} are computed"
        num_full = num_computed // self.block_size
        first = num_full
        while first > 0 and self._pool.prefix_of(block_table[first - 1]) is None:
            first -= 1
        parent = self._pool.prefix_of(block_table[first - 1]) if first > 0 else None
        for index in range(first, num_full):
            tokens = self._tokens_of(token_ids, index)
            key = self._key(parent, tokens)
            parent = self._pool.publish(block_table[index], key, parent, tokens)

    def release(self, block_table: list[int]) -> None:
        """Give all blocks of a table back and empty it.

        The last block goes first, so that of a chain the tail is evicted before what it needs.
        """
        while block_table:
            self._pool.release(block_table.pop())

    def is_writable(self, block_table: Sequence[int], start: int, num_tokens: int) -> bool:
        """Whether values of tokens start ... start + num_tokens - 1 may be written."""
        first, last = start // self.block_size, self.blocks_for(start + num_tokens)
        return all(self._pool.is_writable(block_id) for block_id in block_table[first:last])

    def counts(self) -> BlockCounts:
        """Blocks by state."""
        return self._pool.counts()

    def clear_cached(self) -> None:
        """Forget every cached block; sequences that run keep theirs."""
        self._pool.clear_cached()

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Prove that the bookkeeping is sound; for tests and for times of idleness.

        Args:
            tables: The block tables of all sequences.

        Raises:
            RuntimeError: It is not; the message says where.
        """
        self._pool.check_integrity(tables)
        for block_id, prefix in self._pool.indexed():
            if prefix.key != self._key(prefix.parent, prefix.token_ids):
                raise RuntimeError(f"Block {block_id} has a key that is not that of its text.")
            if len(prefix.token_ids) != self.block_size:
                raise RuntimeError(f"Block {block_id} is indexed and not full.")

    def _tokens_of(self, token_ids: Sequence[int], index: int) -> tuple[int, ...]:
        return tuple(token_ids[index * self.block_size : (index + 1) * self.block_size])

    def _key(self, parent: Prefix | None, token_ids: tuple[int, ...]) -> BlockHash:
        parent_key = ROOT_KEY if parent is None else parent.key
        return self._hash_block(self._namespace, parent_key, token_ids)

    def _why_missing(self, key: BlockHash, *, is_first: bool) -> ChainEnd:
        if self._pool.was_evicted(key):
            return "evicted"
        return "nothing_cached" if is_first else "different_text"
