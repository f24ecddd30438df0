"""Which KV blocks are free, cached or used, and which text each holds.

Pure Python; owned by the KV cache manager, on the engine thread. Nothing here touches a tensor.

                 allocate                      release, not indexed
        free ───────────────►  used  ───────────────────────────────► free
         ▲                     │  ▲
         │ evict               │  │ reference (a prefix hit)
         │        release,     ▼  │
         └──────── indexed ─► cached      oldest release first in line for eviction

free:   ref_count 0, holds nothing of worth.     cached: ref_count 0, in the index.
used:   ref_count > 0, in the index or not.      A used block that has a text, or that is shared
(ref_count > 1), is immutable; that rule is all there is to copy-on-write.

Of blocks with the same text one is in the index; the others are its twins (`twins`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from inference.kv_cache.block import Block, BlockHash, Prefix
from inference.kv_cache.free_runs import FreeRuns
from inference.kv_cache.prefix_index import Match, PrefixIndex
from inference.kv_cache.twins import Twins
from inference.metrics import BlockCounts

MAX_EVICTION_BATCH = 16


class BlockPool:
    """All blocks of one KV memory, their reference counts, and the index of prefixes.

    Attributes:
        num_blocks: How many there are; ids are 0 ... num_blocks - 1.
        evictions: How many cached blocks had to give way so far.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        on_evict: Callable[[int, Prefix], None] = lambda block_id, prefix: None,
        on_gone: Callable[[BlockHash], None] = lambda key: None,
    ) -> None:
        """Make a pool of free blocks.

        Args:
            num_blocks: At least 1.
            on_evict: Called with a cached block that is about to give way, while its rows are there.
            on_gone: Called with each key that no block is found by any more.
        """
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}.")
        self.num_blocks = num_blocks
        self.evictions = 0
        self._on_evict = on_evict
        self._on_gone = on_gone
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free = FreeRuns(num_blocks)
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest release first
        self._index = PrefixIndex()
        self._twins = Twins()
        # Blocks are evicted a few at a time, so that a table that grows one by one in a full pool
        # gets neighbours in ascending order, and not a chain's tail backwards.
        self._eviction_batch = max(1, min(MAX_EVICTION_BATCH, num_blocks // 64))

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated: free and cached."""
        return len(self._free) + len(self._cached)

    def __contains__(self, key: BlockHash) -> bool:
        """Whether a block can be found by this key."""
        return key in self._index

    def counts(self) -> BlockCounts:
        """Blocks by state."""
        free, cached = len(self._free), len(self._cached)
        used = self.num_blocks - free - cached
        return BlockCounts(total=self.num_blocks, free=free, cached=cached, used=used)

    def free_blocks(self) -> list[int]:
        """Blocks that hold nothing of worth."""
        return [block_id for start, end in self._free.runs() for block_id in range(start, end)]

    def keys(self) -> set[BlockHash]:
        """Keys by which a block can be found."""
        return self._index.keys()

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

    def reference(self, block_id: int) -> None:
        """Add a reference to a used or cached block."""
        block = self._blocks[block_id]
        if block.ref_count == 0:
            del self._cached[block_id]
        block.ref_count += 1

    def release(self, block_id: int) -> None:
        """Drop one reference; without any left the block is cached if its text can be found."""
        block = self._blocks[block_id]
        assert block.ref_count > 0, f"block {block_id} is released more often than it was taken"
        block.ref_count -= 1
        if block.ref_count > 0:
            return
        if block.prefix is not None and self.is_found(block_id):
            twin_id = self._twins.take(block.prefix.key)
            if twin_id is None:
                self._cached[block_id] = None
                return
            self._index.add(block.prefix, twin_id)
        self._free_block(block)

    def prefix_of(self, block_id: int) -> Prefix | None:
        """What a block holds; None while it may be written."""
        return self._blocks[block_id].prefix

    def is_found(self, block_id: int) -> bool:
        """Whether it is by this block that what it holds is found."""
        prefix = self._blocks[block_id].prefix
        return prefix is not None and self._index.place_of(prefix.key) == block_id

    def find(self, key: BlockHash, parent: Prefix | None, token_ids: tuple[int, ...]) -> int | None:
        """The block that holds `token_ids` after `parent`, proven by content; None if none does."""
        return self._index.find(key, parent, token_ids)

    def matches(self, parent: Prefix | None, token_ids: tuple[int, ...]) -> Iterator[Match]:
        """All blocks that go on after `parent` with at least the first of `token_ids`."""
        return self._index.matches(parent, token_ids)

    def publish(
        self,
        block_id: int,
        key: BlockHash,
        parent: Prefix | None,
        token_ids: tuple[int, ...],
        *,
        known: Prefix | None = None,
    ) -> Prefix:
        """Say what a used block holds, from now on unchanged, and index it.

        `known` is the same text as another tier has it. Chains that share their objects are
        compared at once.

        If another block with the same text is cached, it is freed and this one takes its place; if
        another is used, this one is its twin. A block whose key belongs to another text stays out
        of the index.
        """
        block = self._blocks[block_id]
        assert block.ref_count > 0, f"block {block_id} is published but not used"
        assert block.prefix is None, f"block {block_id} is published twice"
        twin_id = self.find(key, parent, token_ids)
        if twin_id is None:
            block.prefix = known or Prefix(key, parent, token_ids)
            if key not in self._index:
                self._index.add(block.prefix, block_id)
            return block.prefix
        twin = self._blocks[twin_id]
        assert twin.prefix is not None, "what is indexed has a text"
        block.prefix = twin.prefix
        if twin.ref_count > 0:
            self._twins.add(key, block_id)
        else:
            self._index.add(block.prefix, block_id)
            del self._cached[twin_id]
            self._free_block(twin)
        return block.prefix

    def take_over(self, block_id: int) -> None:
        """Make a block writable again that has a text and that only the caller refers to."""
        block = self._blocks[block_id]
        assert block.prefix is not None, f"block {block_id} has no text"
        assert block.ref_count == 1, f"block {block_id} is shared"
        assert block.prefix.key not in self._twins, f"block {block_id} has a twin"
        key, block.prefix = block.prefix.key, None
        self._remove(key)

    def is_writable(self, block_id: int) -> bool:
        """Whether new values may be written: exactly one table holds it, and nobody can find it."""
        block = self._blocks[block_id]
        return block.ref_count == 1 and block.prefix is None

    def is_cached(self, block_id: int) -> bool:
        """Whether a block is kept only because its text might be wanted."""
        return block_id in self._cached

    def indexed(self) -> list[tuple[int, Prefix]]:
        """All blocks that can be found, and what they hold."""
        return [(block_id, prefix) for prefix, block_id in self._index.entries()]

    def forget(self, key: BlockHash) -> int | None:
        """Let a text be found no more.

        Returns:
            The block that is free now; None if there was none, or if it is in use, to be free when
            it is released.
        """
        block_id = self._index.place_of(key)
        if block_id is None:
            return None
        self._twins.forget(key)
        self._remove(key)
        if block_id not in self._cached:
            return None
        del self._cached[block_id]
        self._free_block(self._blocks[block_id])
        return block_id

    def clear_cached(self) -> list[int]:
        """Forget all cached blocks; used ones are not touched.

        Returns:
            The blocks that are free now.
        """
        freed = []
        while self._cached:
            freed.append(self._forget_oldest())
        return freed

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Prove that all bookkeeping agrees with itself and with the block tables in use.

        Raises:
            RuntimeError: It does not; the message says where.
        """
        references = Counter(block_id for table in tables for block_id in table)
        free = set(self.free_blocks())
        if len(free) != len(self._free):
            raise RuntimeError(f"{len(free)} blocks are free and {len(self._free)} are counted.")
        for block in self._blocks:
            self._check_block(block, references[block.block_id], is_free=block.block_id in free)
        for block_id in references:
            if not 0 <= block_id < self.num_blocks:
                raise RuntimeError(f"A table holds block {block_id}, which does not exist.")
        self._index.check_integrity("The device")
        for prefix, block_id in self._index.entries():
            if self._blocks[block_id].prefix is not prefix:
                raise RuntimeError(f"The index says of block {block_id} what it does not hold.")
        self._twins.check_integrity(
            self._index.__contains__, lambda block_id: self._blocks[block_id].ref_count > 0
        )

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
        if is_cached and (
            block.prefix is None or self._index.place_of(block.prefix.key) != block.block_id
        ):
            raise RuntimeError(f"{name} is cached and cannot be found.")

    def _evict(self, count: int) -> None:
        for _ in range(min(count, len(self._cached))):
            block_id = next(iter(self._cached))
            prefix = self._blocks[block_id].prefix
            assert prefix is not None, "what is cached has a text"
            self._on_evict(block_id, prefix)
            self._forget_oldest()
            self.evictions += 1

    def _forget_oldest(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        block = self._blocks[block_id]
        assert block.prefix is not None, "what is cached has a text"
        self._remove(block.prefix.key)
        self._free_block(block)
        return block_id

    def _remove(self, key: BlockHash) -> None:
        self._index.remove(key)
        self._on_gone(key)

    def _free_block(self, block: Block) -> None:
        if block.prefix is not None:
            self._twins.discard(block.prefix.key, block.block_id)
            block.prefix = None
        self._free.add(block.block_id)
