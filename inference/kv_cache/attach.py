"""Gives a new sequence the blocks of its known beginning, and sees loads through to their end.

Pure Python; owned by the KV cache manager, on the engine thread. What a sequence is about to use is
referenced or pinned before anything is allocated, so that making room for it never costs a part of
it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inference.kv_cache.block import BlockHash, Prefix
from inference.kv_cache.prefix_search import ChainEnd, Found, OpenTail, Part, find_prefix
from inference.kv_cache.residents import Residents
from inference.kv_cache.tiers import BlockLoad, DiskIndex, RamSource


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What of a prompt need not be computed.

    Attributes:
        block_ids: Blocks in order, each referenced once for the caller: shared ones, those to be
            loaded, and at the end perhaps one that is partly filled and may be written on.
        num_tokens: Tokens in them, once all loads have succeeded.
        loads: Blocks to fill before anything is computed, in order.
        num_ram_tokens, num_disk_tokens: How many tokens come from there.
        end: Why it is not more.
    """

    block_ids: tuple[int, ...]
    num_tokens: int
    loads: tuple[BlockLoad, ...]
    num_ram_tokens: int
    num_disk_tokens: int
    end: ChainEnd


def count_rows(loads: Sequence[BlockLoad]) -> tuple[int, int]:
    """How many rows loads bring from RAM and from disk."""
    sources = [source for load in loads for source in load.sources]
    total = sum(source.end - source.start for source in sources)
    ram = sum(s.end - s.start for s in sources if isinstance(s, RamSource))
    return ram, total - ram


class Attachment:
    """Attaches sequences to what is kept, and ends their loads."""

    def __init__(self, residents: Residents, disk: DiskIndex | None) -> None:
        self._residents = residents
        self._disk = disk
        self._in_flight: set[BlockHash] = set()

    def attach(
        self, token_ids: Sequence[int], owner: str, open_tails: Sequence[OpenTail] = ()
    ) -> PrefixHit | None:
        """Reference the known beginning of a prompt; see `KvCacheManager.attach`."""
        has_mover = self._residents.mover is not None
        found = self._find(token_ids, owner, may_copy=has_mover, open_tails=open_tails)
        hit = self._take(found, len(token_ids), owner)
        if hit is None and found is not None and self._takes_a_block_to_copy(found.parts):
            # A copy needs its source and a new block at once: that may be one block too many.
            hit = self._take(self._find(token_ids, owner, may_copy=False), len(token_ids), owner)
        return hit

    def finish_load(
        self,
        block_table: list[int],
        hit: PrefixHit,
        succeeded: Sequence[bool],
        owner: str,
    ) -> int:
        """Take loaded blocks into use; see `KvCacheManager.finish_load`."""
        loads = hit.loads
        good = next((i for i, is_there in enumerate(succeeded) if not is_there), len(loads))
        num_tokens = hit.num_tokens
        if good < len(loads):
            num_kept = block_table.index(loads[good].block_id)
            num_tokens = num_kept * self._residents.block_size
            while len(block_table) > num_kept:
                self._residents.pool.release(block_table.pop())
        self._publish(block_table, loads[:good], owner)
        for index, load in enumerate(loads):
            self._end_load(load, is_kept=index < good, is_lost=not succeeded[index])
        return num_tokens

    def abandon_load(self, block_table: list[int], hit: PrefixHit) -> None:
        """Give blocks back that were loaded for a sequence that is gone."""
        for load in hit.loads:
            self._end_load(load, is_kept=False, is_lost=False)
        while block_table:
            self._residents.pool.release(block_table.pop())

    def _find(
        self,
        token_ids: Sequence[int],
        owner: str,
        *,
        may_copy: bool,
        open_tails: Sequence[OpenTail] = (),
    ) -> Found | None:
        return find_prefix(
            self._residents,
            self._disk,
            token_ids,
            owner=owner,
            in_flight=self._in_flight,
            may_copy=may_copy,
            open_tails=open_tails,
        )

    def _takes_a_block_to_copy(self, parts: Sequence[Part]) -> bool:
        """Whether a source is among those that could be had; one in use is not."""
        is_copy = bool(parts) and parts[-1].kind == "copied"
        return is_copy and self._residents.pool.is_cached(parts[-1].block_id)

    def _take(self, found: Found | None, num_tokens: int, owner: str) -> PrefixHit | None:
        """Reference what was found; None, and nothing changed, if the prompt does not fit."""
        if found is None:
            return None
        self._hold(found.parts)
        new_ids = self._make_room(found.parts, num_tokens)
        if new_ids is None:
            self._let_go(found.parts)
            return None
        return self._use(found, new_ids, owner)

    def _hold(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if part.block_id >= 0:
                self._residents.pool.reference(part.block_id)
            for slot in _slots(part):
                self._residents.ram.pin(slot)

    def _let_go(self, parts: Sequence[Part]) -> None:
        for part in reversed(parts):
            for slot in _slots(part):
                self._residents.ram.unpin(slot)
            if part.block_id >= 0:
                self._residents.pool.release(part.block_id)

    def _make_room(self, parts: Sequence[Part], num_tokens: int) -> list[int] | None:
        """Allocate what is filled at once; None if the whole prompt does not fit."""
        pool = self._residents.pool
        own = [part.block_id for part in parts if part.kind in ("shared", "taken_over")]
        total = -(-num_tokens // self._residents.block_size)
        if total - len(own) > pool.num_available:
            return None
        num_new = sum(part.kind in ("copied", "loaded") for part in parts)
        return pool.allocate(num_new, after=own[-1] if own else None)

    def _use(self, found: Found, new_ids: list[int], owner: str) -> PrefixHit:
        unused = iter(new_ids)
        block_ids = [self._use_part(part, unused, owner) for part in found.parts]
        loads = tuple(
            BlockLoad(block_id, part.base_key, part.token_ids, part.sources)
            for part, block_id in zip(found.parts, block_ids, strict=True)
            if part.kind == "loaded"
        )
        self._in_flight.update(
            part.key for part in found.parts if part.kind == "loaded" and part.key is not None
        )
        num_ram, num_disk = count_rows(loads)
        return PrefixHit(tuple(block_ids), found.num_tokens, loads, num_ram, num_disk, found.end)

    def _use_part(self, part: Part, new_ids: Iterator[int], owner: str) -> int:
        """The block that a part is in from now on."""
        residents = self._residents
        if part.kind == "taken_over":
            residents.pool.take_over(part.block_id)
            return part.block_id
        if part.kind == "copied":
            target = next(new_ids)
            assert residents.mover is not None, "copies are only planned with a mover"
            residents.mover.copy_rows(part.block_id, target, len(part.token_ids))
            residents.pool.release(part.block_id)
            return target
        if part.key is not None:
            residents.note_use(owner, part.key)
        return part.block_id if part.kind == "shared" else next(new_ids)

    def _publish(self, block_table: list[int], loads: Sequence[BlockLoad], owner: str) -> None:
        places = {block_id: index for index, block_id in enumerate(block_table)}
        for load in loads:
            if len(load.token_ids) == self._residents.block_size:
                index = places[load.block_id]
                before = self._residents.pool.prefix_of(block_table[index - 1]) if index else None
                self._residents.publish(load.block_id, before, load.token_ids, owner)

    def _end_load(self, load: BlockLoad, *, is_kept: bool, is_lost: bool) -> None:
        if len(load.token_ids) == self._residents.block_size:
            self._in_flight.discard(self._residents.key_after(load.base_key, load.token_ids))
        ram = self._residents.ram
        for source in load.sources:
            if isinstance(source, RamSource):
                ram.unpin(source.slot)
                held = ram.prefix_of(source.slot)
                # A slot with more rows than were wanted is still of worth to another prompt.
                has_moved = is_kept and held is not None and _is_all_of(held, load)
                if held is not None and (has_moved or is_lost):
                    ram.drop(source.slot)


def _slots(part: Part) -> list[int]:
    return [source.slot for source in part.sources if isinstance(source, RamSource)]


def _is_all_of(held: Prefix, load: BlockLoad) -> bool:
    return len(held.token_ids) <= len(load.token_ids)
