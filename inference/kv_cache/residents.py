"""Which text lies in device blocks and RAM slots, and which chats use it.

Pure Python; owned by the KV cache manager, on the engine thread. It keeps the block pool, the RAM
tier and the owners in step: what is evicted from the device goes to RAM, what lies in neither has
no owner, and what has become part of a longer text is not kept twice.
"""

from collections.abc import Iterable, Sequence

from inference.kv_cache.block import ROOT_KEY, BlockHash, HashBlock, Prefix
from inference.kv_cache.block_pool import BlockPool
from inference.kv_cache.owners import Owners
from inference.kv_cache.ram_tier import RamTier
from inference.kv_cache.recent_keys import RecentKeys
from inference.kv_cache.tiers import BlockMover

MIN_EVICTED_KEYS = 1024


class Residents:
    """The upper two tiers of the KV memory.

    Attributes:
        block_size: Slots per block, P.
        pool: The device's blocks.
        ram: The RAM's slots.
        owners: Which chats use what lies in either.
        mover: Copies rows; None if nothing is to be copied.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        namespace: bytes,
        hash_block: HashBlock,
        ram: RamTier,
        mover: BlockMover | None,
    ) -> None:
        """Make empty tiers.

        Args:
            num_blocks: Device blocks, at least 1.
            block_size: At least 1.
            namespace: What values depend on besides text: weights, positions, layout.
            hash_block: Names a block.
            ram: The slots, empty.
            mover: Copies rows between blocks and slots; needed if there are slots.
        """
        if ram.num_slots and mover is None:
            raise ValueError("RAM slots need a mover.")
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, on_evict=self._put_aside, on_gone=self._left_device)
        self.ram = ram
        self.owners = Owners()
        self.mover = mover
        self._namespace = namespace
        self._hash_block = hash_block
        self._evicted = RecentKeys(max(MIN_EVICTED_KEYS, 4 * (num_blocks + ram.num_slots)))
        ram.on_gone = self._left_ram

    def key(self, parent: Prefix | None, token_ids: tuple[int, ...]) -> BlockHash:
        """Name tokens after a parent."""
        return self.key_after(ROOT_KEY if parent is None else parent.key, token_ids)

    def key_after(self, base_key: BlockHash, token_ids: tuple[int, ...]) -> BlockHash:
        """Name tokens after a block that is known by its key."""
        return self._hash_block(self._namespace, base_key, token_ids)

    def was_evicted(self, key: BlockHash) -> bool:
        """Whether this text gave way to another lately, and lies in neither tier since."""
        return key in self._evicted

    def publish(
        self, block_id: int, parent: Prefix | None, token_ids: tuple[int, ...], owner: str
    ) -> Prefix:
        """Let others find what a block holds.

        Args:
            block_id: A used block.
            parent: What comes before; None for a first block.
            token_ids: Of its computed rows, 1 to P.
            owner: The chat that uses it.
        """
        key = self.key(parent, token_ids)
        slot = self.ram.find(key, parent, token_ids)
        known = None if slot is None else self.ram.prefix_of(slot)
        prefix = self.pool.publish(block_id, key, parent, token_ids, known=known)
        self.owners.note(owner, key)
        self._evicted.discard(key)
        if slot is not None and not self.ram.is_pinned(slot):
            self.ram.drop(slot)
        self._drop_covered(prefix, owner)
        return prefix

    def note_use(self, owner: str, key: BlockHash) -> None:
        """Say that a chat uses a text, if it lies here."""
        if key in self.pool or key in self.ram:
            self.owners.note(owner, key)

    def is_covered(self, parent: Prefix | None, token_ids: tuple[int, ...], owner: str) -> bool:
        """Whether a block that this chat uses holds the tokens, and more."""
        return any(
            match.num_rows == len(token_ids) < len(match.prefix.token_ids)
            and owner in self.owners.of(match.prefix.key)
            for match in self.pool.matches(parent, token_ids)
        )

    def is_only_of(self, key: BlockHash, owner: str) -> bool:
        """Whether no other chat uses a text."""
        return self.owners.of(key) <= {owner}

    def forget(self, owner: str) -> int:
        """Drop what only this chat used.

        Returns:
            How many blocks and slots hold nothing now.
        """
        num_dropped = self._drop(self.owners.forget(owner))
        self._give_free_blocks_back()
        return num_dropped

    def distrust(self, block_ids: Sequence[int]) -> None:
        """Let nobody find what used blocks hold, whoever uses it: it may be wrong.

        What was copied from them before belongs to others and stays.
        """
        prefixes = [self.pool.prefix_of(block_id) for block_id in block_ids]
        self._drop([prefix.key for prefix in reversed(prefixes) if prefix is not None])

    def clear(self) -> int:
        """Drop all that no sequence uses.

        Returns:
            How many blocks and slots hold nothing now.
        """
        num_slots = self.ram.clear()
        num_blocks = len(self.pool.clear_cached())
        self._evicted.clear()
        self._give_free_blocks_back()
        return num_blocks + num_slots

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Prove that the bookkeeping is sound.

        Args:
            tables: The block tables of all sequences.

        Raises:
            RuntimeError: It is not; the message says where.
        """
        self.pool.check_integrity(tables)
        self.ram.check_integrity()
        self.owners.check_integrity()
        for block_id, prefix in self.pool.indexed():
            self._check_text(f"Block {block_id}", prefix)
        for prefix, slot in self.ram.entries():
            self._check_text(f"Slot {slot}", prefix)
        if self.owners.keys() != self.pool.keys() | self.ram.keys():
            raise RuntimeError("A chat owns text that lies nowhere, or text lies here unowned.")

    def _drop(self, keys: Sequence[BlockHash]) -> int:
        """Let texts be found no more; how many blocks and slots hold nothing now."""
        num_blocks = num_slots = 0
        for key in keys:
            slot = self.ram.place_of(key)
            if slot is not None:
                self.ram.drop(slot)
                num_slots += 1
            num_blocks += self.pool.forget(key) is not None
        return num_blocks + num_slots

    def _check_text(self, name: str, prefix: Prefix) -> None:
        if prefix.key != self.key(prefix.parent, prefix.token_ids):
            raise RuntimeError(f"{name} has a key that is not that of its text.")
        if not 1 <= len(prefix.token_ids) <= self.block_size:
            raise RuntimeError(f"{name} is indexed with {len(prefix.token_ids)} rows.")
        if prefix.parent is not None and len(prefix.parent.token_ids) != self.block_size:
            raise RuntimeError(f"{name} goes on after a block that is not full.")

    def _drop_covered(self, prefix: Prefix, owner: str) -> None:
        # A shorter text of the same chat, say the tail of its turn before, which was still being
        # saved when this turn began and so had to be copied.
        for match in list(self.pool.matches(prefix.parent, prefix.token_ids)):
            is_covered = self._is_covered_by(match.prefix, match.num_rows, prefix, owner)
            if is_covered and self.pool.is_cached(match.place):
                self.pool.forget(match.prefix.key)
        for match in list(self.ram.matches(prefix.parent, prefix.token_ids)):
            if self._is_covered_by(match.prefix, match.num_rows, prefix, owner):
                self.ram.drop(match.place)

    def _is_covered_by(self, short: Prefix, num_rows: int, long: Prefix, owner: str) -> bool:
        is_shorter = num_rows == len(short.token_ids) < len(long.token_ids)
        return is_shorter and self.is_only_of(short.key, owner)

    def _put_aside(self, block_id: int, prefix: Prefix) -> None:
        slot = self.ram.place_of(prefix.key)
        if slot is not None:
            self.ram.touch(slot)
            return
        slot = self.ram.put(prefix)
        if slot is None or self.mover is None:
            self._evicted.note(prefix.key)
        else:
            self.mover.spill(block_id, slot)

    def _left_device(self, key: BlockHash) -> None:
        if key not in self.ram:
            self.owners.drop(key)

    def _left_ram(self, key: BlockHash, is_evicted: bool) -> None:
        if key in self.pool:
            return
        self.owners.drop(key)
        if is_evicted:
            self._evicted.note(key)

    def _give_free_blocks_back(self) -> None:
        # Not only what was freed just now: parts that a longer text covered, wrong guesses and replies
        # that failed left theirs in free blocks before.
        if self.mover is not None:
            self.mover.discard(self.pool.free_blocks())
