"""Block tables: what of a prompt is there already, and where the rest goes.

Pure Python; owned by the scheduler, on the engine thread. A block table is a plain list of block
ids that belongs to one sequence; slot of token i is table[i // P] * P + i % P.

    attach ─► (load ─► finish_load) ─► grow, compute, publish, ... ─► seal ─► release
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from inference.kv_cache.attach import Attachment, PrefixHit
from inference.kv_cache.block import ROOT_KEY, BlockHash, HashBlock, hash_block
from inference.kv_cache.prefix_search import OpenTail
from inference.kv_cache.ram_tier import RamTier
from inference.kv_cache.residents import Residents
from inference.kv_cache.tiers import BlockMover, DiskIndex, HeldBlock
from inference.metrics import BlockCounts


class KvCacheManager:
    """Gives sequences their blocks and finds shared prefixes on all tiers.

    A block is found again once its values are computed: full ones at once, the last and partly
    filled one of a sequence from `seal` on. Each is named by its text, all text before it, and the
    namespace.

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
        mover: BlockMover | None = None,
        ram: RamTier | None = None,
        disk: DiskIndex | None = None,
        hash_block: HashBlock = hash_block,
    ) -> None:
        """Make an empty cache.

        Args:
            num_blocks: At least 1.
            block_size: At least 1.
            namespace: What values depend on besides text: weights, positions, layout.
            mover: Copies rows; without it nothing is copied, on the device or to RAM.
            ram: Slots for what is evicted; None is off. Owned by the manager from now on.
            disk: Says what lies on disk; None is off.
            hash_block: Names a block; for tests.
        """
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}.")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._residents = Residents(
            num_blocks,
            block_size,
            namespace=namespace,
            hash_block=hash_block,
            ram=RamTier(0) if ram is None else ram,
            mover=mover,
        )
        self._pool = self._residents.pool
        self._attachment = Attachment(self._residents, disk)
        self._pins: Counter[int] = Counter()  # references of transfers, like those of a table

    @property
    def evictions(self) -> int:
        """How many cached blocks gave way so far."""
        return self._pool.evictions

    @property
    def num_available(self) -> int:
        """Blocks that can be had now: free and cached."""
        return self._pool.num_available

    @property
    def num_pinned(self) -> int:
        """Blocks that are kept for a transfer."""
        return len(self._pins)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def open_tail(
        self, block_table: Sequence[int], token_ids: Sequence[int], num_computed: int
    ) -> OpenTail | None:
        """What is computed in the last block of a sequence that goes on.

        None if that is full or empty, or if what comes before it is not found by these blocks: nobody may, or
        others hold the same. The arguments are those of `publish`.
        """
        num_full = num_computed // self.block_size
        tokens = tuple(token_ids[num_full * self.block_size : num_computed])
        parent = self._pool.prefix_of(block_table[num_full - 1]) if num_full else None
        is_known = not num_full or self._pool.is_found(block_table[num_full - 1])
        if not tokens or not is_known:
            return None
        return OpenTail(parent, tokens, block_table[num_full])

    def attach(
        self, token_ids: Sequence[int], owner: str = "", open_tails: Sequence[OpenTail] = ()
    ) -> PrefixHit | None:
        """Find the longest known prefix on all tiers and reference its blocks.

        At least one token is left to compute, since only computing gives the logits after it.

        Args:
            token_ids: The whole prompt, at least one token.
            owner: The chat that it belongs to.
            open_tails: Of sequences that are computed now; equal rows are copied from there.

        Returns:
            None, and nothing changed, if the sequence has to wait: a block that it wants is being
            loaded for another, or there are too few blocks for the whole prompt. After a hit with
            loads, `finish_load` or `abandon_load` must follow.
        """
        return self._attachment.attach(token_ids, owner, open_tails)

    def finish_load(
        self,
        block_table: list[int],
        token_ids: Sequence[int],
        hit: PrefixHit,
        succeeded: Sequence[bool],
        owner: str = "",
    ) -> int:
        """Take blocks into use whose loads have ended.

        Full ones can be found from now on, and their RAM slots are free: a hit moves up. A partly
        filled one at the end may be written on. From the first load that failed, all blocks are
        released.

        Args:
            block_table: The hit's blocks, perhaps with others after them; changed in place.
            token_ids: The sequence's tokens.
            hit: What `attach` gave.
            succeeded: Per load, whether its rows are there.
            owner: The chat that it belongs to.

        Returns:
            How many tokens are computed now.
        """
        assert len(succeeded) == len(hit.loads), "each load has ended"
        assert hit.num_tokens < len(token_ids), "a hit leaves a token to compute"
        return self._attachment.finish_load(block_table, hit, succeeded, owner)

    def abandon_load(self, block_table: list[int], hit: PrefixHit) -> None:
        """Release a table whose loads have ended, after its sequence went away; empties it."""
        self._attachment.abandon_load(block_table, hit)

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

    def shrink(self, block_table: list[int], num_tokens: int) -> None:
        """Give back what a table has beyond the slots of so many tokens; nothing of that is named.

        Args:
            block_table: Changed in place.
            num_tokens: Of the whole sequence.
        """
        while len(block_table) > self.blocks_for(num_tokens):
            self._pool.release(block_table.pop())

    def publish(
        self,
        block_table: Sequence[int],
        token_ids: Sequence[int],
        num_computed: int,
        owner: str = "",
    ) -> None:
        """Let others find the blocks that have become full.

        Args:
            block_table: Of the sequence.
            token_ids: Its tokens, at least `num_computed`.
            num_computed: Tokens whose values are in the blocks, from the first on.
            owner: The chat that it belongs to.
        """
        assert num_computed <= len(token_ids), f"{num_computed} of {len(token_ids)} are computed"
        num_full = num_computed // self.block_size
        first = num_full
        while first > 0 and self._pool.prefix_of(block_table[first - 1]) is None:
            first -= 1
        parent = self._pool.prefix_of(block_table[first - 1]) if first > 0 else None
        for index in range(first, num_full):
            tokens = self._tokens_of(token_ids, index)
            parent = self._residents.publish(block_table[index], parent, tokens, owner)

    def seal(
        self,
        block_table: Sequence[int],
        token_ids: Sequence[int],
        num_computed: int,
        owner: str = "",
    ) -> None:
        """Let others find all that is computed, the partly filled last block too.

        The sequence may not go on after this. The arguments are those of `publish`.
        """
        self.publish(block_table, token_ids, num_computed, owner)
        num_full = num_computed // self.block_size
        tokens = tuple(token_ids[num_full * self.block_size : num_computed])
        if not tokens or self._pool.prefix_of(block_table[num_full]) is not None:
            return
        parent = self._pool.prefix_of(block_table[num_full - 1]) if num_full else None
        if not self._residents.is_covered(parent, tokens, owner):
            self._residents.publish(block_table[num_full], parent, tokens, owner)

    def release(self, block_table: list[int]) -> None:
        """Give all blocks of a table back and empty it.

        The last block goes first, so that of a chain the tail is evicted before what it needs.
        """
        while block_table:
            self._pool.release(block_table.pop())

    def held(
        self, block_table: Sequence[int], token_ids: Sequence[int], num_computed: int
    ) -> list[HeldBlock]:
        """All blocks with computed rows and what they hold, in order; for saving.

        The arguments are those of `publish`.
        """
        held = []
        computed = token_ids[:num_computed]
        base_key: BlockHash = ROOT_KEY
        for index in range(self.blocks_for(num_computed)):
            tokens = self._tokens_of(computed, index)
            held.append(HeldBlock(block_table[index], base_key, tokens))
            prefix = self._pool.prefix_of(block_table[index])
            base_key = prefix.key if prefix else self._residents.key_after(base_key, tokens)
        return held

    def pin(self, block_ids: Sequence[int]) -> None:
        """Keep used or cached blocks as they are while they are transferred."""
        for block_id in block_ids:
            self._pool.reference(block_id)
            self._pins[block_id] += 1

    def unpin(self, block_ids: Sequence[int]) -> None:
        """Take pins back, the last block first; each block was pinned as often."""
        for block_id in reversed(block_ids):
            assert self._pins[block_id] > 0, f"block {block_id} is not pinned"
            self._pins[block_id] -= 1
            if not self._pins[block_id]:
                del self._pins[block_id]
            self._pool.release(block_id)

    def forget(self, owner: str) -> int:
        """Drop from the device and from RAM what only this chat used.

        Blocks that are in use are found no more, and free when they are released.

        Returns:
            How many blocks and slots hold nothing now.
        """
        return self._residents.forget(owner)

    def distrust(self, block_table: Sequence[int]) -> None:
        """Let nobody find what a table's blocks hold: what was computed may be wrong.

        Other sequences that use some of them go on.
        """
        self._residents.distrust(block_table)

    def is_writable(self, block_table: Sequence[int], start: int, num_tokens: int) -> bool:
        """Whether values of tokens start ... start + num_tokens - 1 may be written."""
        first, last = start // self.block_size, self.blocks_for(start + num_tokens)
        return all(self._pool.is_writable(block_id) for block_id in block_table[first:last])

    def counts(self) -> BlockCounts:
        """Blocks by state."""
        return self._pool.counts()

    def clear_cached(self) -> int:
        """Forget all that no sequence uses, on the device and in RAM.

        Returns:
            How many blocks and slots hold nothing now.
        """
        return self._residents.clear()

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Prove that the bookkeeping is sound; for tests and for times of idleness.

        Args:
            tables: The block tables of all sequences.

        Raises:
            RuntimeError: It is not; the message says where.
        """
        self._residents.check_integrity([*tables, [*self._pins.elements()]])

    def _tokens_of(self, token_ids: Sequence[int], index: int) -> tuple[int, ...]:
        return tuple(token_ids[index * self.block_size : (index + 1) * self.block_size])
