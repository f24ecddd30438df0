"""RAM slots: exact slots, who gives way, and that a slot which is read is left alone."""

import pytest

from inference.kv_cache.block import BlockHash, Prefix
from inference.kv_cache.ram_tier import RamTier


def prefix_of(*token_ids: int, parent: Prefix | None = None) -> Prefix:
    head = b"" if parent is None else parent.key
    return Prefix(BlockHash(head + bytes(token_ids)), parent, token_ids)


def held(ram: RamTier) -> dict[int, tuple[int, ...]]:
    ram.check_integrity()
    return {slot: prefix.token_ids for prefix, slot in ram.entries()}


def listen(ram: RamTier) -> list[tuple[bytes, bool]]:
    told: list[tuple[bytes, bool]] = []
    ram.on_gone = lambda key, is_evicted: told.append((key, is_evicted))
    return told


def test_ram_negative_number_of_slots_is_refused():
    with pytest.raises(ValueError, match="must not be negative, as -1 is"):
        RamTier(-1)


def test_ram_off_takes_nothing():
    ram = RamTier(0)
    assert ram.put(prefix_of(1)) is None
    assert (ram.num_slots, ram.num_used, ram.clear()) == (0, 0, 0)
    ram.set_limit(5)
    assert ram.put(prefix_of(1)) is None
    ram.check_integrity()


def test_ram_put_takes_slots_in_order_and_finds_by_content():
    ram = RamTier(3)
    one, other = prefix_of(1, 2), prefix_of(3)
    assert [ram.put(one), ram.put(other)] == [0, 1]
    assert ram.num_used == 2
    assert ram.find(one.key, None, (1, 2)) == 0
    assert ram.find(one.key, None, (1, 3)) is None
    assert ram.find(one.key, other, (1, 2)) is None
    assert ram.find(BlockHash(b"?"), None, (1, 2)) is None
    assert (one.key in ram, ram.place_of(one.key), ram.prefix_of(0)) == (True, 0, one)
    assert ram.keys() == {one.key, other.key}


def test_ram_put_a_key_that_is_known_changes_nothing():
    ram = RamTier(1)
    ram.put(prefix_of(1))
    assert ram.put(prefix_of(1)) is None
    assert held(ram) == {0: (1,)}


def test_ram_full_drops_the_one_used_longest_ago():
    ram = RamTier(2)
    told = listen(ram)
    ram.put(prefix_of(1))
    ram.put(prefix_of(2))
    ram.touch(0)
    assert ram.put(prefix_of(3)) == 1
    assert held(ram) == {0: (1,), 1: (3,)}
    assert told == [(prefix_of(2).key, True)]


def test_ram_pinned_slot_never_gives_way():
    ram = RamTier(2)
    ram.put(prefix_of(1))
    ram.put(prefix_of(2))
    ram.pin(0)
    assert ram.put(prefix_of(3)) == 1
    ram.pin(1)
    assert ram.put(prefix_of(4)) is None
    assert held(ram) == {0: (1,), 1: (3,)}
    ram.unpin(0)
    assert ram.put(prefix_of(4)) == 0


def test_ram_slot_dropped_while_it_is_read_is_free_after_the_last_pin():
    ram = RamTier(1)
    told = listen(ram)
    ram.put(prefix_of(1))
    ram.pin(0)
    ram.pin(0)
    ram.drop(0)
    assert told == [(prefix_of(1).key, False)]
    assert (held(ram), ram.num_used, ram.prefix_of(0)) == ({}, 1, None)
    assert ram.put(prefix_of(1)) is None
    ram.unpin(0)
    assert (ram.num_used, ram.is_pinned(0)) == (1, True)
    ram.unpin(0)
    assert (ram.num_used, ram.is_pinned(0)) == (0, False)
    assert ram.put(prefix_of(2)) == 0


def test_ram_pin_of_a_free_slot_and_unpin_without_pin_are_bugs_of_ours():
    ram = RamTier(1)
    with pytest.raises(AssertionError, match="slot 0 holds nothing to pin"):
        ram.pin(0)
    with pytest.raises(AssertionError, match="slot 0 is not pinned"):
        ram.unpin(0)


def test_ram_clear_forgets_everything():
    ram = RamTier(3)
    told = listen(ram)
    for token in (1, 2):
        ram.put(prefix_of(token))
    ram.pin(1)
    assert ram.clear() == 2
    assert (held(ram), ram.num_used) == ({}, 1)
    assert [is_evicted for _, is_evicted in told] == [False, False]


def test_ram_smaller_limit_drops_the_oldest_and_a_larger_one_allows_more():
    ram = RamTier(4)
    for token in range(4):
        ram.put(prefix_of(token))
    ram.set_limit(2)
    assert held(ram) == {2: (2,), 3: (3,)}
    assert ram.put(prefix_of(9)) == 2
    assert held(ram) == {3: (3,), 2: (9,)}
    ram.set_limit(100)
    assert ram.limit == 4
    ram.put(prefix_of(10))
    assert ram.num_used == 3
    ram.set_limit(-1)
    assert (ram.limit, ram.num_used) == (0, 0)


def test_ram_smaller_limit_waits_for_pinned_slots():
    ram = RamTier(2)
    ram.put(prefix_of(1))
    ram.put(prefix_of(2))
    ram.pin(0)
    ram.pin(1)
    ram.set_limit(1)
    assert held(ram) == {0: (1,), 1: (2,)}
    assert ram.put(prefix_of(3)) is None
    ram.unpin(1)
    assert held(ram) == {0: (1,)}
    ram.unpin(0)
    assert held(ram) == {0: (1,)}


def test_ram_slot_freed_last_is_used_first():
    ram = RamTier(8)
    for token in range(3):
        ram.put(prefix_of(token))
    ram.drop(1)
    assert ram.put(prefix_of(9)) == 1


def test_ram_matches_compare_the_chain_and_count_rows():
    ram = RamTier(8)
    parent = prefix_of(1, 2)
    for child in (prefix_of(3, 4, parent=parent), prefix_of(3, parent=parent), prefix_of(3, 9)):
        ram.put(child)
    found = {match.place: match.num_rows for match in ram.matches(prefix_of(1, 2), (3, 4))}
    assert found == {0: 2, 1: 1}
    assert list(ram.matches(parent, (4,))) == []
    assert list(ram.matches(Prefix(parent.key, None, (7, 7)), (3,))) == []
    assert list(ram.matches(prefix_of(8), (3,))) == []


def lose_slot(ram: RamTier) -> None:
    ram._free.pop()


def lose_text(ram: RamTier) -> None:
    ram._index.remove(prefix_of(1).key)


def drop_without_pin(ram: RamTier) -> None:
    ram.drop(0)
    ram._free.remove(0)
    ram._dropped.add(0)


def count_no_pins(ram: RamTier) -> None:
    ram._pins[0] = 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_slot, "A RAM slot is lost, or in two states"),
        (lose_text, "The RAM index and the slots differ"),
        (drop_without_pin, "waits for a pin that is not there"),
        (count_no_pins, "waits for a pin that is not there"),
    ],
)
def test_ram_check_integrity_damage_is_reported(damage, message):
    ram = RamTier(2)
    ram.put(prefix_of(1))
    ram.check_integrity()
    damage(ram)
    with pytest.raises(RuntimeError, match=message):
        ram.check_integrity()


def test_ram_names_its_free_slots_and_counts_those_still_read():
    ram = RamTier(3)
    ram.put(prefix_of(1))
    ram.put(prefix_of(2))
    assert sorted(ram.free_slots()) == [2]
    ram.pin(0)
    ram.clear()
    assert (sorted(ram.free_slots()), ram.num_dropped) == ([1, 2], 1)
    ram.unpin(0)
    assert (sorted(ram.free_slots()), ram.num_dropped) == ([0, 1, 2], 0)
    ram.check_integrity()
