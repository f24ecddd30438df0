"""Which KV blocks are free, cached or used, and which text each full one holds.

Pure Python; owned by the KV cache manager, on the engine thread. Nothing here touches a tensor.

                 allocate                      release, not indexed
        free ───────────────►  used  ───────────────────────────────► free
         ▲                     │  ▲
         │ evict               │  │ reference (a prefix hit)
         │        release,     ▼  │
         └──────── indexed ─► cached      oldest release first in line for eviction

free:   ref_count 0, holds nothing of worth.     cached: ref_count 0, in the index.
used:   ref_count > 0, in the index or not.      A used block that is indexed or shared (ref_count
> 1) is immutable; that rule is all there is to copy-on-write.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from inference.kv_cache.block import Block, BlockHash, Prefix
from inference.kv_cache.free_runs import FreeRuns
from inference.metrics import BlockCounts

MAX_EVICTION_BATCH = 16


class BlockPool:
    """All blocks of one KV memory, their reference counts, and the index of prefixes.

    Attributes:
        num_blocks: How many there are; ids are 0 ... num_blocks - 1.
        evictions: How many cached blocks had to give way so far.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}.")
        self.num_blocks = num_blocks
        self.evictions = 0
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free = FreeRuns(num_blocks)
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest release first
        self._index: dict[BlockHash, Block] = {}
        self._evicted: OrderedDict[BlockHash, None] = OrderedDict()  # oldest first, bounded
        self._max_evicted = max(1024, 4 * num_blocks)
        # Blocks are evicted a few at a time, so that a table that grows one by one in a full pool
        # gets neighbours in ascending order, and not a chain's tail backwards.
        self._eviction_batch = max(1, min(MAX_EVICTION_BATCH, num_blocks // 64))

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated: free and cached."""
        return len(self._free) + len(self._cached)

    def counts(self) -> BlockCounts:
        """Blocks by state."""
        free, cached = len(self._free), len(self._cached)
        used = self.num_blocks - free - cached
        return BlockCounts(total=self.num_blocks, free=free, cached=cached, used=used)

    def allocate(self, count: int, *, after: int | None = None) -> list[int] | None:
        """Take blocks, each with one reference; cached ones give way when too few are free.

        Args:
            count: How many.
            after: The last block of the table that grows; its direct successors are preferred.

        Returns:
            Their ids, as few runs as possible; None, and nothing changed, if there are too few.
        """
        if count > self.num_available:
            return None
        if count > len(self._free):
            self._evict(max(count - len(self._free), self._eviction_batch))
        taken = [] if after is None or not count else self._free.take_after(after, count)
        while len(taken) < count:
            taken += self._free.take_new(count - len(taken))
        for block_id in taken:
            self._blocks[block_id].ref_count = 1
        return taken

    def reference(self, block: Block) -> None:
        """Add a reference to a used or cached block."""
        if block.ref_count == 0:
            del self._cached[block.block_id]
        block.ref_count += 1

    def release(self, block_id: int) -> None:
        """Drop one reference; without any left the block is cached if its text can be found."""
        block = self._blocks[block_id]
        assert block.ref_count > 0, f"block {block_id} is released more often than it was taken"
        block.ref_count -= 1
        if block.ref_count > 0:
            return
        # A duplicate steps in where the block that it equals was evicted meanwhile.
        if block.prefix is not None and self._index.setdefault(block.prefix.key, block) is block:
            self._remember(block)
            return
        block.prefix = None
        self._free.add(block_id)

    def prefix_of(self, block_id: int) -> Prefix | None:
        """What a block holds; None while it is not full and computed."""
        return self._blocks[block_id].prefix

    def find(
        self, key: BlockHash, parent: Prefix | None, token_ids: tuple[int, ...]
    ) -> Block | None:
        """The block that holds `token_ids` after `parent`, proven by content; None if none does."""
        block = self._index.get(key)
        if block is None or block.prefix is None or not block.prefix.continues(parent, token_ids):
            return None
        return block

    def publish(
        self, block_id: int, key: BlockHash, parent: Prefix | None, token_ids: tuple[int, ...]
    ) -> Prefix:
        """Say what a used block holds, from now on unchanged, and index it if it is the first.

        A block with the same text as an indexed one stays out of the index, as does one whose key
        belongs to another text.
        """
        block = self._blocks[block_id]
        assert block.ref_count > 0, f"block {block_id} is published but not used"
        assert block.prefix is None, f"block {block_id} is published twice"
        twin = self.find(key, parent, token_ids)
        block.prefix = Prefix(key, parent, token_ids) if twin is None else twin.prefix
        assert block.prefix is not None
        if self._index.setdefault(key, block) is block:
            self._evicted.pop(key, None)
        return block.prefix

    def is_writable(self, block_id: int) -> bool:
        """Whether new values may be written: exactly one table holds it, and nobody can find it."""
        block = self._blocks[block_id]
        return block.ref_count == 1 and block.prefix is None

    def was_evicted(self, key: BlockHash) -> bool:
        """Whether a block with this key gave way to another lately."""
        return key in self._evicted

    def indexed(self) -> list[tuple[int, Prefix]]:
        """All blocks that can be found, and what they hold."""
        return [(b.block_id, b.prefix) for b in self._index.values() if b.prefix is not None]

    def clear_cached(self) -> None:
        """Forget all cached blocks; used ones are not touched."""
        while self._cached:
            self._forget_oldest()

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Prove that all bookkeeping agrees with itself and with the block tables in use.

        Raises:
            RuntimeError: It does not; the message says where.
        """
        references = Counter(block_id for table in tables for block_id in table)
        free = {i for start, end in self._free.runs() for i in range(start, end)}
        if len(free) != len(self._free):
            raise RuntimeError(f"{len(free)} blocks are free and {len(self._free)} are counted.")
        for block in self._blocks:
            self._check_block(block, references[block.block_id], is_free=block.block_id in free)
        for block_id in references:
            if not 0 <= block_id < self.num_blocks:
                raise RuntimeError(f"A table holds block {block_id}, which does not exist.")
        for key, block in self._index.items():
            if block.prefix is None or block.prefix.key != key:
                raise RuntimeError(f"The index names block {block.block_id} by a key not its own.")

    def _check_block(self, block: Block, num_references: int, *, is_free: bool) -> None:
        name = f"Block {block.block_id}"
        if block.ref_count != num_references:
            raise RuntimeError(
                f"{name} counts {block.ref_count} references and tables hold {num_references}."
            )
        is_cached = block.block_id in self._cached
        if is_free + is_cached + (block.ref_count > 0) != 1:
            raise RuntimeError(
                f"{name} must be in one state: {is_free=}, {is_cached=}, {block.ref_count=}."
            )
        if is_free and block.prefix is not None:
            raise RuntimeError(f"{name} is free and still holds a prefix.")
        if is_cached and (block.prefix is None or self._index.get(block.prefix.key) is not block):
            raise RuntimeError(f"{name} is cached and cannot be found.")

    def _remember(self, block: Block) -> None:
        assert block.prefix is not None
        self._evicted.pop(block.prefix.key, None)
        self._cached[block.block_id] = None

    def _evict(self, count: int) -> None:
        for _ in range(min(count, len(self._cached))):
            key = self._forget_oldest()
            self.evictions += 1
            self._evicted[key] = None
            if len(self._evicted) > self._max_evicted:
                self._evicted.popitem(last=False)

    def _forget_oldest(self) -> BlockHash:
        block_id, _ = self._cached.popitem(last=False)
        block = self._blocks[block_id]
        assert block.prefix is not None
        key = block.prefix.key
        del self._index[key]
        block.prefix = None
        self._free.add(block_id)
        return key
