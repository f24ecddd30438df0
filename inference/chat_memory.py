"""What outlives a reply: blocks on three tiers, whose they are, and what each chat said last.

Engine thread only. The scheduler and the block manager know blocks; this knows turns:

    a turn ends     its blocks are sealed, the partial tail too, and pinned; a thread writes to the disk
                    what is new; then they are unpinned, and stay cached
    a turn begins   the chat's *trail*, the ids of its last sequence, tells why less was reused
    a chat is deleted, or all is cleared     blocks, slots, files and trails go, at once
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

from inference.kv_budgets import default_disk_bytes, default_ram_bytes
from inference.kv_cache.disk.trail import TrailElsewhere
from inference.kv_cache.host_memory import HostArena
from inference.kv_cache.manager import KvCacheManager
from inference.kv_cache.ram_tier import RamTier
from inference.kv_cache.tensors import KvTensors
from inference.metrics import TierStats
from inference.sequence import Sequence
from inference.transfers import Transfers

CLOSE_TIMEOUT_S = 3.0
_MAX_TRAILS = 256  # chats; a trail takes 4 bytes a token, and older ones are on disk


class ChatMemory:
    """Keeps, forgets and counts. Owns the transfers between the tiers."""

    def __init__(
        self,
        kv: KvCacheManager,
        tensors: KvTensors,
        ram: RamTier,
        arena: HostArena,
        transfers: Transfers,
        *,
        device: str,
    ) -> None:
        self._kv = kv
        self._tensors = tensors
        self._ram = ram
        self._arena = arena
        self._transfers = transfers
        self._device = device
        self._trails: OrderedDict[str, array[int]] = OrderedDict()
        self._has_slots_to_come = False

    # ------------------------------------------------------------------ turns

    def keep(self, sequence: Sequence, *, on_disk: bool) -> None:
        """Keep what a sequence computed; call it when its turn ends, before its blocks are released.

        Args:
            sequence: Still has its block table.
            on_disk: Whether it may be written to the disk too.
        """
        computed = sequence.token_ids[: sequence.num_computed]
        if not computed:
            return
        owner = sequence.conversation_id
        self._kv.seal(sequence.block_table, computed, len(computed), owner)
        trail = array("i", computed)
        self._note_trail(owner, trail)
        disk = self._transfers.disk
        if on_disk and disk is not None and disk.is_on:
            held = self._kv.held(sequence.block_table, computed, len(computed))
            self._kv.pin([block.block_id for block in held])
            self._transfers.save(owner, held, trail)

    def trail_of(self, conversation_id: str) -> SequenceOf[int] | None:
        """Ids of the chat's last sequence, as far as they were computed; None if unknown."""
        trail = self._trails.get(conversation_id)
        disk = self._transfers.disk
        if trail is None and disk is not None:
            return disk.load_trail(conversation_id)
        return trail

    def trails_elsewhere(self, conversation_id: str) -> Iterator[TrailElsewhere]:
        """The chat's last sequences with other models and precisions, as far as they are on disk."""
        disk = self._transfers.disk
        return iter(()) if disk is None else disk.load_trails_elsewhere(conversation_id)

    @property
    def room_tokens(self) -> int | None:
        """The most tokens of one chat that the disk holds; None if nothing is kept there."""
        disk = self._transfers.disk
        return None if disk is None else disk.room_tokens

    def set_computing(self, is_computing: bool) -> None:
        """Say whether tokens are computed now: then turns are saved slowly."""
        self._transfers.set_computing(is_computing)

    def tend(self) -> bool:
        """Unpin what has been saved; whether more is to come."""
        self._kv.unpin(self._transfers.take_saved())
        if self._has_slots_to_come:
            self._give_slots_back()
        return self._transfers.is_saving

    def wait_for_transfer(self, timeout_s: float) -> None:
        """Wait until a transfer under way is done, or for so long."""
        self._transfers.wait_for_any(timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all turns are on disk, or for so long; whether they are."""
        is_all = self._transfers.flush(timeout_s)
        self.tend()
        return is_all

    # ------------------------------------------------------------------ forgetting

    def break_off(self, conversation_id: str | None) -> None:
        """Write nothing more to the disk of this chat's turns that ended, or of any chat's."""
        self._transfers.break_off(conversation_id)

    def forget(self, conversation_id: str) -> int:
        """Remove what only this chat used, from all tiers. Bytes freed."""
        on_disk = self._transfers.forget(conversation_id)
        self.tend()  # blocks that were still pinned for the disk can go now
        return on_disk + self.forget_residents(conversation_id)

    def forget_residents(self, conversation_id: str) -> int:
        """Remove what only this chat used from device and RAM, and its trail. Bytes freed."""
        self._trails.pop(conversation_id, None)
        num_freed = self._kv.forget(conversation_id)
        self._give_slots_back()
        return num_freed * self._tensors.block_bytes

    def clear(self) -> int:
        """Remove all that is cached; blocks of running requests stay. Bytes freed."""
        self._trails.clear()
        on_disk = self._transfers.clear()
        self.tend()
        num_freed = self._kv.clear_cached()
        self._give_slots_back()
        return on_disk + num_freed * self._tensors.block_bytes

    # ------------------------------------------------------------------ sizes

    def set_budgets(self, ram_bytes: int | None, disk_bytes: int | None) -> None:
        """Change the budgets of RAM and disk; None chooses."""
        block_bytes = self._tensors.block_bytes
        if ram_bytes is None:
            ram_bytes = default_ram_bytes(self._device, self._ram.num_used * block_bytes)
        self._ram.set_limit(ram_bytes // block_bytes)
        self._give_slots_back()
        disk = self._transfers.disk
        if disk is not None:
            if disk_bytes is None:
                disk_bytes = default_disk_bytes(disk.root, disk.stats().used_bytes)
            self._transfers.set_disk_budget(disk_bytes)

    def share_disk(self, other: "ChatMemory") -> None:
        """Keep one account of the disk with the memory of another model, if both use the same folder."""
        mine, its = self._transfers.disk, other._transfers.disk
        if mine is not None and its is not None and mine.root == its.root:
            mine.join(its)

    def tiers(self) -> tuple[TierStats, TierStats, TierStats]:
        """Device, RAM and disk."""
        block_bytes = self._tensors.block_bytes
        counts = self._kv.counts()
        device = TierStats((counts.total - counts.free) * block_bytes, counts.total * block_bytes)
        ram = TierStats(self._ram.num_used * block_bytes, self._ram.limit * block_bytes)
        disk = self._transfers.disk
        if disk is None:
            return device, ram, TierStats()
        stats = disk.stats()
        return device, ram, TierStats(stats.used_bytes, stats.budget_bytes)

    def disk_state(self) -> tuple[int, tuple[tuple[str, int], ...], str]:
        """Bytes written, misses by reason, and what is wrong with the disk tier."""
        disk = self._transfers.disk
        if disk is None:
            return 0, (), ""
        stats = disk.stats()
        return stats.written_bytes, tuple(sorted(stats.misses.items())), stats.problem

    def close(self) -> None:
        """Bring everything to the disk, in bounded time, and end the threads."""
        self._transfers.close(CLOSE_TIMEOUT_S)
        self._arena.close()

    def _give_slots_back(self) -> None:
        """Give the memory of free RAM slots to the system; of those that are still read, later."""
        self._arena.discard(self._ram.free_slots())
        self._has_slots_to_come = self._ram.num_dropped > 0

    def _note_trail(self, conversation_id: str, trail: "array[int]") -> None:
        self._trails[conversation_id] = trail
        self._trails.move_to_end(conversation_id)
        if len(self._trails) > _MAX_TRAILS:
            self._trails.popitem(last=False)
