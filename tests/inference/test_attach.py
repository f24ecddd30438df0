"""Prefixes over all tiers: which source is taken, what is copied, what moves up, what is lost."""

from collections.abc import Sequence

import pytest

from inference.kv_cache import attach
from inference.kv_cache.attach import PrefixHit
from inference.kv_cache.block import ROOT_KEY, BlockHash, HashBlock, hash_block
from inference.kv_cache.manager import KvCacheManager
from inference.kv_cache.prefix_search import find_prefix
from inference.kv_cache.ram_tier import RamTier
from inference.kv_cache.tiers import BlockLoad, DiskSource, HeldBlock, RamSource
from inference.metrics import BlockCounts
from tests.inference.memory_tiers import FakeDisk, FakeMover, compute

P = 4


class Memory:
    """A manager with all it needs."""

    def __init__(
        self,
        num_blocks: int = 8,
        *,
        num_slots: int = 0,
        has_disk: bool = False,
        hash_block: HashBlock = hash_block,
    ) -> None:
        self.disk = FakeDisk() if has_disk else None
        self.mover = FakeMover(P, self.disk)
        self.ram = RamTier(num_slots)
        self.kv = KvCacheManager(
            num_blocks,
            P,
            namespace=b"m",
            mover=self.mover,
            ram=self.ram,
            disk=self.disk,
            hash_block=hash_block,
        )

    def attach(self, token_ids: list[int], owner: str = "") -> PrefixHit:
        hit = self.kv.attach(token_ids, owner)
        assert hit is not None
        self.kv.check_integrity([hit.block_ids])
        return hit

    def run(self, token_ids: list[int], owner: str = "") -> None:
        """A whole turn: computed, sealed, saved, released."""
        table = compute(self.kv, self.mover, token_ids, owner)
        self.kv.seal(table, token_ids, len(token_ids), owner)
        if self.disk is not None:
            self.disk.save(self.kv.held(table, token_ids, len(token_ids)), self.mover)
        self.kv.release(table)
        self.kv.check_integrity([])

    def load(self, token_ids: list[int], hit: PrefixHit, *failing: int) -> tuple[list[int], int]:
        table = list(hit.block_ids)
        ticket = self.mover.load(hit.loads)
        self.mover.finish(ticket, failing=failing)
        num_computed = self.kv.finish_load(table, token_ids, hit, ticket.succeeded)
        self.kv.check_integrity([table])
        self.mover.check(table, token_ids, num_computed)
        return table, num_computed

    def push_out(self) -> None:
        """Evict all that is cached, by a chat as large as the device."""
        table: list[int] = []
        assert self.kv.grow(table, self.kv.num_blocks * P)
        self.kv.release(table)

    def texts(self) -> dict[int, tuple[int, ...]]:
        return {block_id: prefix.token_ids for block_id, prefix in self.kv._pool.indexed()}

    def slots(self) -> dict[int, tuple[int, ...]]:
        return {slot: prefix.token_ids for prefix, slot in self.ram.entries()}


def tokens(*counts: int) -> list[int]:
    """Runs of consecutive integers, each at a new hundred."""
    return [100 * run + i for run, count in enumerate(counts) for i in range(count)]


# --- the last block, partly filled ------------------------------------------------------------


def test_attach_next_turn_goes_on_inside_its_own_tail():
    memory = Memory()
    memory.run(tokens(6))
    hit = memory.attach(tokens(11))
    assert (hit.block_ids, hit.num_tokens, hit.end) == ((0, 1), 6, "different_text")
    assert memory.kv.is_writable(hit.block_ids, 6, 2)
    assert memory.texts() == {0: (0, 1, 2, 3)}
    assert memory.mover.copied == []
    memory.mover.check(hit.block_ids, tokens(11), 6)


def test_attach_tail_of_another_chat_is_copied():
    memory = Memory()
    memory.run(tokens(6), "one")
    hit = memory.attach(tokens(11), "other")
    assert (hit.block_ids, hit.num_tokens) == ((0, 2), 6)
    assert memory.mover.copied == [(1, 2, 2)]
    assert memory.texts() == {0: (0, 1, 2, 3), 1: (4, 5)}


def test_attach_tail_that_is_still_saved_is_copied_and_then_covered():
    memory = Memory()
    memory.run(tokens(6))
    memory.kv.pin([0, 1])
    assert memory.kv.num_pinned == 2
    memory.run(tokens(7))
    assert memory.mover.copied == [(1, 2, 2)]
    memory.kv.unpin([0, 1])
    memory.run(tokens(9))
    assert memory.texts() == {0: (0, 1, 2, 3), 2: (4, 5, 6, 7), 3: (8,)}
    memory.kv.check_integrity([])


def test_attach_tail_in_use_is_copied():
    memory = Memory()
    table = compute(memory.kv, memory.mover, tokens(6))
    memory.kv.seal(table, tokens(6), 6)
    hit = memory.kv.attach(tokens(8))
    assert hit is not None
    assert (hit.block_ids, memory.mover.copied) == ((0, 2), [(1, 2, 2)])
    memory.kv.check_integrity([table, hit.block_ids])


def test_attach_copies_what_a_sequence_that_goes_on_has_in_its_last_block():
    memory = Memory()
    table = compute(memory.kv, memory.mover, tokens(7), "one")
    tail = memory.kv.open_tail(table, tokens(7), 7)
    assert tail is not None
    assert (tail.token_ids, tail.block_id) == ((4, 5, 6), 1)
    hit = memory.kv.attach([*tokens(6), 50, 51], "other", [tail])
    assert hit is not None
    assert (hit.block_ids, hit.num_tokens, memory.mover.copied) == ((0, 2), 6, [(1, 2, 2)])
    memory.mover.compute(hit.block_ids, [*tokens(6), 50, 51], 6)
    assert memory.kv.is_writable(table, 7, 1)
    memory.mover.compute(table, tokens(8), 7)
    memory.kv.check_integrity([table, hit.block_ids])


def test_attach_copies_nothing_of_a_sequence_whose_last_block_follows_another_text():
    memory = Memory()
    memory.run(tokens(4))
    text = [100, 101, 102, 103, 4, 5, 6]
    table = compute(memory.kv, memory.mover, text, "one")
    tail = memory.kv.open_tail(table, text, 7)
    assert tail is not None
    hit = memory.kv.attach(tokens(8), "other", [tail])
    assert hit is not None
    assert (hit.num_tokens, memory.mover.copied) == (4, [])


def test_attach_colliding_hash_and_tail_after_another_block_is_no_hit():
    def collide(namespace: bytes, parent_key: BlockHash, token_ids: Sequence[int]) -> BlockHash:
        return BlockHash(bytes([token_ids[-1], len(token_ids)]))

    memory = Memory(4, num_slots=2, hash_block=collide)
    memory.run([2, 2, 2, 3])
    memory.push_out()
    memory.run([1, 1, 1, 3, 5, 6])  # on the device, by the key that names another block in RAM
    hit = memory.attach([2, 2, 2, 3, 5, 6, 7], "other")
    assert (hit.num_tokens, hit.num_ram_tokens, memory.mover.copied) == (4, 4, [])


def test_attach_copies_the_whole_of_an_equal_prompt_but_its_last_token():
    memory = Memory()
    table = compute(memory.kv, memory.mover, tokens(3))
    tail = memory.kv.open_tail(table, tokens(3), 3)
    assert tail is not None
    hit = memory.kv.attach(tokens(3), "other", [tail])
    assert hit is not None
    assert (hit.num_tokens, hit.end, memory.mover.copied) == (2, "all_reused", [(0, 1, 2)])


def test_attach_takes_no_rows_that_come_after_another_text():
    memory = Memory()
    first, second = [*tokens(4), 50, 51], [9, 9, 9, 9, 50, 51, 52]
    table = compute(memory.kv, memory.mover, first)
    tail = memory.kv.open_tail(table, first, 6)
    assert tail is not None
    hit = memory.kv.attach(second, "other", [tail])
    assert hit is not None
    assert (hit.num_tokens, hit.block_ids, memory.mover.copied) == (0, (), [])


def test_attach_prompt_for_which_there_is_no_room_copies_nothing(monkeypatch):
    searches = []

    def search(*args, **options):
        searches.append(options["may_copy"])
        return find_prefix(*args, **options)

    monkeypatch.setattr(attach, "find_prefix", search)
    memory = Memory(3)
    table = compute(memory.kv, memory.mover, tokens(6))
    tail = memory.kv.open_tail(table, tokens(6), 6)
    assert tail is not None
    searches.clear()
    assert memory.kv.attach(tokens(12), "other", [tail]) is None
    assert memory.mover.copied == []
    assert searches == [True]  # without the copy it would not fit either
    hit = memory.kv.attach(tokens(7), "other", [tail])
    assert hit is not None
    assert (hit.block_ids, hit.num_tokens) == ((0, 2), 6)


def test_open_tail_is_there_only_while_a_block_is_partly_filled_and_what_is_before_it_known():
    memory = Memory()
    table = compute(memory.kv, memory.mover, tokens(8))
    assert memory.kv.open_tail(table, tokens(8), 8) is None
    assert memory.kv.open_tail(table, tokens(8), 0) is None
    memory.kv.distrust(table)
    assert memory.kv.open_tail(table, tokens(8), 6) is None


def test_attach_edited_tail_keeps_the_rows_before_the_edit():
    memory = Memory()
    memory.run(tokens(8))
    edited = [*tokens(7), 99, 98]
    hit = memory.attach(edited)
    assert (hit.block_ids, hit.num_tokens, hit.end) == ((0, 2), 7, "different_text")
    assert memory.mover.copied == [(1, 2, 3)]
    assert memory.texts() == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}


def test_attach_takes_the_candidate_with_the_most_rows():
    memory = Memory(16)
    for end in ([4, 50], [4, 5, 51], [4, 5, 6, 52], [4, 5, 53]):
        memory.run([*tokens(4), *end])
    hit = memory.attach([*tokens(4), 4, 5, 6, 7, 8])
    best = next(block_id for block_id, text in memory.texts().items() if text == (4, 5, 6, 52))
    assert hit.num_tokens == 7
    assert memory.mover.copied[-1] == (best, hit.block_ids[1], 3)


def test_attach_of_equal_rows_prefers_the_block_that_needs_no_copy():
    memory = Memory()
    memory.run([*tokens(4), 4, 5, 50], "other")
    memory.run([*tokens(4), 4, 5], "one")
    memory.mover.copied.clear()
    hit = memory.attach(tokens(9), "one")
    assert (hit.num_tokens, memory.mover.copied) == (6, [])


def test_attach_regenerated_reply_leaves_the_old_one_as_it_is():
    memory = Memory()
    memory.run([*tokens(3), 50, 51, 52])
    memory.run([*tokens(3), 60, 61, 62])
    assert memory.mover.copied == [(0, 2, 3)]
    hit = memory.attach([*tokens(3), 50, 51, 52, 70])
    assert (hit.num_tokens, hit.block_ids[0]) == (6, 0)
    memory.mover.check(hit.block_ids, [*tokens(3), 50, 51, 52], 6)


def test_attach_prompt_that_fills_the_device_does_not_wait_for_its_own_source():
    memory = Memory(2)
    memory.run(tokens(8))
    hit = memory.attach([*tokens(7), 99])
    assert (hit.block_ids, hit.num_tokens, hit.loads) == ((0,), 4, ())
    assert memory.mover.copied == []
    table = list(hit.block_ids)
    assert memory.kv.grow(table, 8)


def test_attach_too_few_blocks_changes_nothing():
    memory = Memory(4, num_slots=4)
    memory.run(tokens(6))
    memory.run(tokens(6, 2))
    memory.push_out()
    memory.run(tokens(4))
    table: list[int] = []
    assert memory.kv.grow(table, 9)
    before = (memory.kv.counts(), memory.texts(), memory.slots())
    assert memory.kv.attach(tokens(9)) is None
    assert (memory.kv.counts(), memory.texts(), memory.slots()) == before
    memory.kv.check_integrity([table])
    assert memory.ram._pins == {}


def test_seal_part_of_what_the_chat_has_already_keeps_it_once():
    memory = Memory()
    memory.run(tokens(7))
    table = compute(memory.kv, memory.mover, [*tokens(4), 4])
    memory.kv.seal(table, [*tokens(4), 4], 5)
    memory.kv.release(table)
    assert memory.texts() == {0: (0, 1, 2, 3), 1: (4, 5, 6)}
    assert memory.kv.counts() == BlockCounts(total=8, free=6, cached=2, used=0)


def test_seal_part_of_what_another_chat_has_keeps_both():
    memory = Memory()
    memory.run(tokens(7), "one")
    memory.run(tokens(5), "other")
    assert sorted(memory.texts().values()) == [(0, 1, 2, 3), (4,), (4, 5, 6)]
    memory.kv.forget("one")
    assert memory.attach(tokens(9), "other").num_tokens == 5


def test_seal_twice_is_as_good_as_once():
    memory = Memory()
    table = compute(memory.kv, memory.mover, tokens(6))
    memory.kv.seal(table, tokens(6), 6)
    memory.kv.seal(table, tokens(6), 6)
    memory.kv.check_integrity([table])
    assert not memory.kv.is_writable(table, 4, 1)


# --- RAM --------------------------------------------------------------------------------------


def test_evict_puts_blocks_aside_tails_first():
    memory = Memory(3, num_slots=3)
    memory.run(tokens(10))
    memory.push_out()
    assert memory.mover.spilled == [(2, 0), (1, 1), (0, 2)]
    assert memory.slots() == {0: (8, 9), 1: (4, 5, 6, 7), 2: (0, 1, 2, 3)}
    assert memory.kv.evictions == 3
    memory.kv.check_integrity([])


def test_attach_chain_in_ram_moves_up_with_its_tail():
    memory = Memory(3, num_slots=3)
    memory.run(tokens(10))
    memory.push_out()
    hit = memory.attach(tokens(12))
    sources = [load.sources for load in hit.loads]
    assert sources == [(RamSource(2, 0, 4),), (RamSource(1, 0, 4),), (RamSource(0, 0, 2),)]
    assert hit.loads[0].base_key == ROOT_KEY
    assert (hit.num_tokens, hit.num_ram_tokens, hit.num_disk_tokens) == (10, 10, 0)
    table, num_computed = memory.load(tokens(12), hit)
    assert num_computed == 10
    assert memory.slots() == {}
    assert memory.ram.num_used == 0
    assert sorted(memory.texts().values()) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert memory.kv.is_writable(table, 10, 2)


def test_attach_part_of_a_slot_leaves_the_rest_of_it_in_ram():
    memory = Memory(2, num_slots=2)
    memory.run(tokens(8))
    memory.push_out()
    hit = memory.attach([*tokens(6), 99])
    assert (hit.num_tokens, hit.num_ram_tokens) == (6, 6)
    memory.load([*tokens(6), 99], hit)
    assert memory.slots() == {0: (4, 5, 6, 7)}


def test_attach_block_on_its_way_to_another_waits():
    memory = Memory(6, num_slots=6)
    memory.run(tokens(9))
    memory.push_out()
    hit = memory.attach(tokens(10))
    assert memory.kv.attach(tokens(10)) is None
    other = memory.kv.attach(tokens(2))  # goes on inside the first block: its slot can be read
    assert other is not None
    assert other.loads[0].sources == (RamSource(2, 0, 1),)
    memory.kv.check_integrity([hit.block_ids, other.block_ids])
    table = list(hit.block_ids)
    ticket = memory.mover.load(hit.loads)
    memory.mover.finish(ticket)
    assert memory.kv.finish_load(table, tokens(10), hit, ticket.succeeded) == 9
    again = memory.kv.attach(tokens(10))
    assert again is not None
    assert (again.block_ids[:2], again.loads) == (hit.block_ids[:2], ())


def test_attach_block_on_its_way_is_free_for_others_after_it_was_abandoned():
    memory = Memory(4, num_slots=4)
    memory.run(tokens(9))
    memory.push_out()
    hit = memory.attach(tokens(10))
    ticket = memory.mover.load(hit.loads)
    memory.mover.finish(ticket)
    table = list(hit.block_ids)
    memory.kv.abandon_load(table, hit)
    memory.kv.check_integrity([])
    assert (table, memory.kv.counts().used, len(memory.slots())) == ([], 0, 3)
    assert memory.attach(tokens(10)).num_ram_tokens == 9


def test_attach_makes_room_without_dropping_what_it_uses():
    memory = Memory(3, num_slots=3)
    memory.run(tokens(9), "one")
    memory.push_out()  # "one" is in RAM, which is full
    memory.run(tokens(0, 9), "other")
    hit = memory.attach(tokens(10), "one")  # evicts "other", and RAM has no place for it
    assert hit.num_ram_tokens == 9
    assert len(memory.slots()) == 3
    table, num_computed = memory.load(tokens(10), hit)
    assert num_computed == 9
    assert memory.kv.attach(tokens(0, 10), "other") is None  # all blocks are in use
    memory.kv.check_integrity([table])


def test_load_that_fails_is_a_clean_miss_from_there_on():
    memory = Memory(4, num_slots=4)
    memory.run(tokens(14))
    memory.push_out()
    hit = memory.attach(tokens(16))
    table = list(hit.block_ids)
    assert memory.kv.grow(table, 16)
    ticket = memory.mover.load(hit.loads)
    memory.mover.finish(ticket, failing=(1,))
    assert memory.kv.finish_load(table, tokens(16), hit, ticket.succeeded) == 4
    assert table == [hit.block_ids[0]]
    memory.kv.check_integrity([table])
    # The slot that failed is gone, the one after it was not moved up and stays.
    assert sorted(memory.slots().values()) == [(8, 9, 10, 11), (12, 13)]
    assert memory.kv.counts() == BlockCounts(total=4, free=3, cached=0, used=1)


def test_load_of_a_slot_that_was_forgotten_meanwhile_still_ends_well():
    memory = Memory(3, num_slots=3)
    memory.run(tokens(8), "one")
    memory.push_out()
    hit = memory.attach([*tokens(7), 99], "other")
    assert memory.kv.forget("one") == 1  # of the tail, which "other" only copies from
    assert memory.ram.num_used == 2
    table, num_computed = memory.load([*tokens(7), 99], hit)
    assert (num_computed, memory.ram.num_used) == (7, 0)
    memory.kv.check_integrity([table])


def test_published_text_that_lies_in_ram_leaves_it():
    memory = Memory(4, num_slots=4)
    memory.run(tokens(6))
    memory.push_out()
    table: list[int] = []
    assert memory.kv.grow(table, 8)  # as one that was admitted before the eviction
    memory.mover.compute(table, tokens(8), 0)
    memory.kv.publish(table, tokens(8), 8)
    assert memory.slots() == {}  # the first block, and the tail that the second one covers
    memory.kv.check_integrity([table])


def test_published_text_whose_slot_is_read_leaves_it_later():
    memory = Memory(4, num_slots=4)
    memory.run(tokens(5))
    memory.push_out()
    hit = memory.attach(tokens(6))
    other: list[int] = []
    assert memory.kv.grow(other, 4)
    memory.mover.compute(other, tokens(4), 0)
    memory.kv.publish(other, tokens(4), 4)
    assert memory.slots() == {0: (4,), 1: (0, 1, 2, 3)}
    table = list(hit.block_ids)
    ticket = memory.mover.load(hit.loads)
    memory.mover.finish(ticket)
    assert memory.kv.finish_load(table, tokens(6), hit, ticket.succeeded) == 5
    assert memory.slots() == {}
    memory.kv.check_integrity([table, other])


def test_evict_of_text_that_ram_holds_copies_nothing():
    memory = Memory(2, num_slots=2)
    memory.run(tokens(4))
    memory.push_out()
    hit = memory.attach(tokens(5))  # pins the slot
    other: list[int] = []
    assert memory.kv.grow(other, 4)
    memory.mover.compute(other, tokens(4), 0)
    memory.kv.publish(other, tokens(4), 4)
    memory.kv.release(other)
    memory.mover.spilled.clear()
    assert memory.kv.grow(other, 4)
    assert memory.mover.spilled == []
    assert memory.slots() == {0: (0, 1, 2, 3)}
    memory.kv.check_integrity([other, hit.block_ids])


def test_ram_slots_without_a_mover_are_refused():
    with pytest.raises(ValueError, match="RAM slots need a mover"):
        KvCacheManager(1, P, namespace=b"", ram=RamTier(1))


# --- why it ends ------------------------------------------------------------------------------


@pytest.mark.parametrize("num_slots", [0, 1])
def test_attach_tail_that_gave_way_says_evicted(num_slots):
    memory = Memory(3, num_slots=num_slots)
    memory.run(tokens(11))
    table: list[int] = []
    assert memory.kv.grow(table, 4 * (num_slots + 1))
    memory.kv.release(table)
    hit = memory.attach(tokens(12))
    if num_slots:  # the block before the tail is in RAM and dropped the tail from there
        assert (hit.num_tokens, hit.num_ram_tokens, hit.end) == (8, 4, "evicted")
    else:
        assert (hit.num_tokens, hit.end) == (8, "evicted")


def test_clear_forgets_what_was_evicted_too():
    memory = Memory(2, num_slots=1)
    memory.run(tokens(8))
    memory.push_out()
    memory.run(tokens(0, 4))
    assert memory.kv.clear_cached() == 2
    assert memory.mover.discarded == [0, 1]
    assert memory.kv.clear_cached() == 0
    assert memory.attach(tokens(8)).end == "nothing_cached"
    assert memory.ram.num_used == 0


# --- disk -------------------------------------------------------------------------------------


def test_attach_after_a_restart_takes_all_from_disk():
    memory = Memory(has_disk=True)
    memory.run(tokens(6))
    memory.run(tokens(11))
    memory.kv.clear_cached()
    hit = memory.attach(tokens(12))
    assert (hit.num_tokens, hit.num_ram_tokens, hit.num_disk_tokens) == (11, 0, 11)
    assert hit.end == "all_reused"
    spans = [[(s.start, s.end) for s in load.sources] for load in hit.loads]
    assert spans == [[(0, 4)], [(0, 2), (2, 4)], [(0, 3)]]  # as the two turns wrote them
    _, num_computed = memory.load(tokens(12), hit)
    assert num_computed == 11
    assert memory.texts() == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}


def test_attach_mixes_tiers_and_ties_go_to_the_faster_one():
    memory = Memory(4, num_slots=1, has_disk=True)
    memory.run(tokens(10))
    table: list[int] = []
    assert memory.kv.grow(table, 8)  # the tail goes to RAM
    memory.kv.release(table)
    assert memory.slots() == {0: (8, 9)}
    hit = memory.attach(tokens(11))
    assert hit.block_ids[:2] == (0, 1)
    assert [load.sources for load in hit.loads] == [(RamSource(0, 0, 2),)]
    table, _ = memory.load(tokens(11), hit)
    memory.kv.release(table)
    memory.push_out()  # RAM keeps the first block only
    assert memory.slots() == {0: (0, 1, 2, 3)}
    hit = memory.attach(tokens(11))
    kinds = [type(load.sources[0]) for load in hit.loads]
    assert kinds == [RamSource, DiskSource, DiskSource]
    assert (hit.num_ram_tokens, hit.num_disk_tokens) == (4, 6)


def test_attach_disk_with_more_rows_beats_a_shorter_tail_above():
    memory = Memory(has_disk=True)
    memory.run(tokens(7))
    memory.kv.clear_cached()
    table: list[int] = []
    assert memory.kv.grow(table, 6)
    memory.mover.compute(table, tokens(6), 0)
    memory.kv.seal(table, tokens(6), 6)
    memory.kv.release(table)
    hit = memory.attach(tokens(8))
    assert hit.block_ids[0] == 0
    assert [(s.start, s.end) for s in hit.loads[0].sources] == [(0, 3)]
    assert (hit.num_tokens, hit.num_disk_tokens) == (7, 3)


def test_attach_does_not_ask_the_disk_for_what_is_above():
    memory = Memory(has_disk=True)
    memory.run(tokens(9))
    assert memory.disk is not None
    memory.disk.asked = 0
    assert memory.attach(tokens(9)).num_tokens == 8
    assert memory.disk.asked == 0


def test_load_of_a_damaged_file_is_a_clean_miss():
    memory = Memory(has_disk=True)
    memory.run(tokens(12))
    memory.kv.clear_cached()
    assert memory.disk is not None
    memory.disk.damaged = {list(memory.disk.pieces)[1]}
    hit = memory.attach(tokens(13))
    assert hit.num_tokens == 12
    table, num_computed = memory.load(tokens(13), hit)
    assert (table, num_computed) == ([0], 4)
    memory.kv.release(table)
    assert memory.attach(tokens(13)).num_tokens == 4  # the file is gone; the third one is no use


# --- saving and owners ------------------------------------------------------------------------


def test_held_names_the_whole_chain_with_the_tail():
    memory = Memory()
    text = tokens(10)
    table = compute(memory.kv, memory.mover, text)
    held = memory.kv.held(table, text, 9)
    first, second = (memory.kv._pool.prefix_of(block_id) for block_id in table[:2])
    assert first is not None
    assert second is not None
    assert held == [
        HeldBlock(0, ROOT_KEY, (0, 1, 2, 3)),
        HeldBlock(1, first.key, (4, 5, 6, 7)),
        HeldBlock(2, second.key, (8,)),
    ]
    assert memory.kv.held(table, text, 0) == []


def test_held_of_blocks_without_a_name_yet_gives_the_same_keys():
    memory = Memory()
    table: list[int] = []
    assert memory.kv.grow(table, 9)
    before = memory.kv.held(table, tokens(9), 9)
    memory.kv.publish(table, tokens(9), 9)
    assert memory.kv.held(table, tokens(9), 9) == before


def test_pin_keeps_a_block_when_its_sequence_ends():
    memory = Memory(2)
    table = compute(memory.kv, memory.mover, tokens(6))
    memory.kv.pin(table)
    memory.kv.pin([0])
    memory.kv.check_integrity([table])
    memory.kv.release(table)
    assert memory.kv.counts() == BlockCounts(total=2, free=0, cached=0, used=2)
    memory.kv.unpin([0, 1])
    assert memory.kv.counts() == BlockCounts(total=2, free=1, cached=0, used=1)
    memory.kv.unpin([0])
    assert memory.kv.counts() == BlockCounts(total=2, free=1, cached=1, used=0)
    with pytest.raises(AssertionError, match="block 0 is not pinned"):
        memory.kv.unpin([0])


def test_tail_that_another_chat_uses_too_stays_beside_a_longer_one():
    memory = Memory()
    memory.run(tokens(6), "one")
    memory.run(tokens(6), "other")
    memory.run(tokens(8), "one")
    assert sorted(memory.texts().values()) == [(0, 1, 2, 3), (4, 5), (4, 5, 6, 7)]
    memory.run(tokens(8), "other")
    memory.kv.check_integrity([])


def test_text_that_leaves_the_device_and_has_a_slot_is_the_last_to_leave_the_ram():
    memory = Memory(1, num_slots=2)
    first, second, third = ([100 * n + i for i in range(P)] for n in range(3))
    memory.run(first)
    memory.run(second)
    memory.push_out()
    assert list(memory.slots().values()) == [tuple(first), tuple(second)]
    memory.ram.pin(0)  # it is being read, so it stays when the text is computed again
    table: list[int] = []
    assert memory.kv.grow(table, P)
    memory.kv.publish(table, first, P)
    memory.kv.release(table)
    memory.ram.unpin(0)
    memory.run(third)
    memory.push_out()
    assert sorted(memory.slots().values()) == sorted([tuple(first), tuple(third)])
    memory.kv.check_integrity([])


def test_unpin_gives_tails_up_before_heads():
    memory = Memory(3)
    table = compute(memory.kv, memory.mover, tokens(12))
    memory.kv.pin([0, 1, 2])
    memory.kv.release(table)
    memory.kv.unpin([0, 1, 2])
    assert memory.kv.grow([], 4)
    assert sorted(memory.texts()) == [0, 1]


def test_abandoned_load_gives_tails_up_before_heads():
    memory = Memory(4, has_disk=True)
    memory.run(tokens(16))
    table: list[int] = []
    assert memory.kv.grow(table, 8)
    memory.kv.release(table)
    hit = memory.attach(tokens(16))
    table = list(hit.block_ids)
    assert (table[:2], len(hit.loads)) == ([0, 1], 2)
    memory.mover.finish(memory.mover.load(hit.loads))
    memory.kv.abandon_load(table, hit)
    assert memory.kv.grow(table, 12)
    assert sorted(memory.texts()) == [0]
    memory.kv.check_integrity([table])


def test_prompt_that_has_to_wait_leaves_tails_to_go_before_heads():
    memory = Memory(4)
    memory.run(tokens(12))
    table: list[int] = []
    assert memory.kv.grow(table, 4)
    assert memory.kv.attach(tokens(20)) is None
    assert memory.kv.grow(table, 8)
    assert sorted(memory.texts()) == [0, 1]
    memory.kv.check_integrity([table])


def test_forget_drops_what_only_this_chat_used_on_both_tiers():
    memory = Memory(8, num_slots=8)
    system = tokens(8)
    memory.run([*system, 50, 51, 52, 53, 54], "one")
    memory.run([*system, 60, 61], "other")
    memory.push_out()
    memory.run([*system, 60, 61], "other")  # its part moves up again
    assert memory.kv.forget("one") == 2
    assert memory.slots() == {}
    assert sorted(memory.texts().values()) == [(0, 1, 2, 3), (4, 5, 6, 7), (60, 61)]
    assert memory.mover.discarded == [3, 4]  # what was evicted to RAM had left its rows there
    assert memory.kv.forget("other") == 3
    assert memory.mover.discarded == [3, 4, 0, 1, 2]
    assert memory.mover.rows == {}
    assert memory.kv.counts() == BlockCounts(total=8, free=8, cached=0, used=0)
    assert len(memory.kv._residents.owners) == 0
    memory.kv.check_integrity([])


def test_forget_leaves_nothing_in_a_block_whose_text_a_longer_one_covers():
    memory = Memory()
    memory.run(tokens(6), "one")
    tail = memory.kv.held([0, 1], tokens(6), 6)[1].block_id
    memory.kv.pin([tail])  # it is being saved, so the next turn has to copy it
    memory.run(tokens(7), "one")
    memory.kv.unpin([tail])
    memory.run(tokens(8), "one")
    assert memory.kv.counts() == BlockCounts(total=8, free=6, cached=2, used=0)
    assert memory.kv.forget("one") == 2
    assert memory.mover.rows == {}


def test_forget_leaves_blocks_in_use_and_lets_nobody_find_them():
    memory = Memory()
    table = compute(memory.kv, memory.mover, tokens(6), "one")
    assert memory.kv.forget("one") == 0
    hit = memory.kv.attach(tokens(6), "other")
    assert hit is not None
    assert (hit.block_ids, hit.end) == ((), "nothing_cached")
    memory.mover.check(table, tokens(6), 6)
    memory.kv.publish(table, tokens(6), 6, "one")
    memory.kv.release(table)
    assert memory.kv.counts().cached == 0
    memory.kv.check_integrity([])


def test_forget_reuse_by_another_chat_makes_it_an_owner():
    memory = Memory(4, num_slots=4)
    memory.run(tokens(4), "one")
    hit = memory.attach(tokens(5), "other")
    assert memory.kv.forget("one") == 0
    memory.kv.release(list(hit.block_ids))
    assert memory.attach(tokens(5), "third").num_tokens == 4


def test_forget_unknown_chat_does_nothing():
    assert Memory().kv.forget("nobody") == 0


def test_finish_load_with_another_number_of_results_is_a_bug_of_ours():
    memory = Memory()
    with pytest.raises(AssertionError, match="each load has ended"):
        memory.kv.finish_load([], [1], PrefixHit((), 0, (), 0, 0, "nothing_cached"), [True])
    load = BlockLoad(0, ROOT_KEY, (1,), (RamSource(0, 0, 1),))
    with pytest.raises(AssertionError, match="leaves a token to compute"):
        memory.kv.finish_load([0], [1], PrefixHit((0,), 1, (load,), 1, 0, "all_reused"), [True])
