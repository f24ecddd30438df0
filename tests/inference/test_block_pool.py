"""The block pool: exact ids and order of what is handed out, and what is found again."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.kv_cache.block import ROOT_KEY, BlockHash, Prefix, hash_block
from inference.kv_cache.block_pool import BlockPool
from inference.kv_cache.free_runs import FreeRuns
from inference.metrics import BlockCounts


def key_of(parent: Prefix | None, tokens: tuple[int, ...]) -> BlockHash:
    return hash_block(b"model", ROOT_KEY if parent is None else parent.key, tokens)


def publish_chain(pool: BlockPool, block_ids: list[int], texts: list[tuple[int, ...]]) -> None:
    parent: Prefix | None = None
    for block_id, tokens in zip(block_ids, texts, strict=True):
        parent = pool.publish(block_id, key_of(parent, tokens), parent, tokens)


def take(pool: BlockPool, count: int, *, after: int | None = None) -> list[int]:
    block_ids = pool.allocate(count, after=after)
    assert block_ids is not None
    return block_ids


def release_all(pool: BlockPool, block_ids: list[int]) -> None:
    for block_id in reversed(block_ids):
        pool.release(block_id)


# --- keys -------------------------------------------------------------------------------------


def test_hash_block_known_input_is_the_same_on_every_machine():
    expected = hashlib.blake2b(
        b"\x03\0\0\0abc" + b"parent" + b"\x01\0\0\0" + b"\xff\xff\xff\x7f", digest_size=32
    ).digest()
    assert hash_block(b"abc", BlockHash(b"parent"), [1, 2**31 - 1]) == expected


@pytest.mark.parametrize(
    "other",
    [
        (b"b", BlockHash(b"p"), [1, 2]),
        (b"a", BlockHash(b"q"), [1, 2]),
        (b"a", BlockHash(b"p"), [2, 1]),
        (b"ap", ROOT_KEY, [1, 2]),  # the same bytes, cut elsewhere
    ],
)
def test_hash_block_any_part_differs_key_differs(other):
    assert hash_block(b"a", BlockHash(b"p"), [1, 2]) != hash_block(*other)


# --- runs of free ids -------------------------------------------------------------------------


def test_free_runs_add_between_two_runs_joins_them():
    runs = FreeRuns(6)
    assert runs.take_new(6) == [0, 1, 2, 3, 4, 5]
    for block_id in (1, 3, 5, 2):
        runs.add(block_id)
    assert runs.runs() == [(1, 4), (5, 6)]
    assert len(runs) == 4


def test_free_runs_take_after_stops_at_the_first_gap():
    runs = FreeRuns(6)
    runs.take_new(6)
    for block_id in (1, 2, 4):
        runs.add(block_id)
    assert runs.take_after(0, 5) == [1, 2]
    assert runs.take_after(2, 5) == []
    assert runs.runs() == [(4, 5)]


def test_free_runs_take_new_prefers_a_long_run_over_an_earlier_one():
    runs = FreeRuns(10)
    runs.take_new(10)
    for block_id in (0, 4, 5, 6, 7, 9):
        runs.add(block_id)
    assert runs.take_new(2) == [4, 5]
    assert runs.runs() == [(0, 1), (6, 8), (9, 10)]


def test_free_runs_take_new_behind_others_leaves_them_half_of_the_slack():
    runs = FreeRuns(100)
    assert runs.take_new(10) == list(range(10))  # nothing is before the first run
    assert runs.take_new(10) == list(range(50, 60))  # slack 80: 40 are left to the first table
    assert runs.runs() == [(10, 50), (60, 100)]


@given(st.lists(st.integers(0, 19), max_size=60))
def test_free_runs_any_sequence_equals_a_plain_set(ids):
    runs, model = FreeRuns(20), set(range(20))
    for block_id in ids:
        if block_id in model:
            taken = runs.take_after(block_id - 1, 1) if block_id - 1 not in model else []
            taken += runs.take_new(1) if not taken else []
            assert len(taken) == 1
            assert taken[0] in model
            model -= set(taken)
        else:
            runs.add(block_id)
            model.add(block_id)
        listed = [i for start, end in runs.runs() for i in range(start, end)]
        assert listed == sorted(model)
        assert len(runs) == len(model)
        ends = {end for _, end in runs.runs()}
        assert ends.isdisjoint(start for start, _ in runs.runs())  # neighbours are joined


# --- states -----------------------------------------------------------------------------------


def test_pool_without_blocks_is_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        BlockPool(0)


def test_pool_allocate_gives_consecutive_ids_and_counts_them():
    pool = BlockPool(5)
    assert take(pool, 3) == [0, 1, 2]
    assert pool.counts() == BlockCounts(total=5, free=2, cached=0, used=3)
    pool.check_integrity([[0, 1, 2]])


def test_pool_allocate_more_than_available_changes_nothing():
    pool = BlockPool(3)
    take(pool, 2)
    assert pool.allocate(2) is None
    assert pool.counts() == BlockCounts(total=3, free=1, cached=0, used=2)
    pool.check_integrity([[0, 1]])


def test_pool_allocate_none_gives_none():
    pool = BlockPool(2)
    take(pool, 2)
    assert pool.allocate(0, after=1) == []


def test_pool_allocate_after_a_block_extends_it():
    pool = BlockPool(8)
    first = take(pool, 4)
    release_all(pool, first[2:])
    assert take(pool, 4, after=1) == [2, 3, 4, 5]


def test_pool_allocate_after_a_taken_successor_goes_on_elsewhere():
    pool = BlockPool(6)
    take(pool, 1)
    take(pool, 1)
    assert take(pool, 2, after=0) == [2, 3]


def test_pool_release_unpublished_block_is_free_at_once():
    pool = BlockPool(2)
    take(pool, 2)
    pool.release(1)
    assert pool.counts() == BlockCounts(total=2, free=1, cached=0, used=1)
    assert take(pool, 1) == [1]


def test_pool_release_twice_is_a_bug_of_ours():
    pool = BlockPool(1)
    take(pool, 1)
    pool.release(0)
    with pytest.raises(AssertionError, match="block 0 is released more often"):
        pool.release(0)


def test_pool_release_published_block_is_cached_and_found():
    pool = BlockPool(2)
    take(pool, 1)
    publish_chain(pool, [0], [(1, 2)])
    pool.release(0)
    assert pool.counts() == BlockCounts(total=2, free=1, cached=1, used=0)
    assert pool.find(key_of(None, (1, 2)), None, (1, 2)) == 0
    pool.reference(0)
    assert pool.counts() == BlockCounts(total=2, free=1, cached=0, used=1)
    pool.check_integrity([[0]])


def test_pool_free_blocks_are_taken_before_cached_ones():
    pool = BlockPool(3)
    take(pool, 2)
    publish_chain(pool, [0], [(1,)])
    release_all(pool, [0, 1])
    assert take(pool, 2) == [1, 2]
    assert pool.evictions == 0
    assert take(pool, 1) == [0]
    assert pool.evictions == 1


def test_pool_eviction_takes_tails_first_and_old_releases_before_new_ones():
    pool = BlockPool(4)
    take(pool, 4)
    publish_chain(pool, [0, 1], [(1,), (2,)])
    publish_chain(pool, [2, 3], [(3,), (4,)])
    release_all(pool, [2, 3])
    release_all(pool, [0, 1])
    assert [take(pool, 1) for _ in range(4)] == [[3], [2], [1], [0]]


def test_pool_hit_makes_a_block_young_again():
    pool = BlockPool(2)
    take(pool, 2)
    publish_chain(pool, [0], [(1,)])
    publish_chain(pool, [1], [(2,)])
    pool.release(0)
    pool.release(1)
    assert pool.find(key_of(None, (1,)), None, (1,)) == 0
    pool.reference(0)
    pool.release(0)
    assert [take(pool, 1), take(pool, 1)] == [[1], [0]]


def test_pool_eviction_of_a_chain_gives_ascending_ids():
    pool = BlockPool(4)
    take(pool, 4)
    publish_chain(pool, [0, 1, 2, 3], [(1,), (2,), (3,), (4,)])
    release_all(pool, [0, 1, 2, 3])
    assert take(pool, 3) == [1, 2, 3]


def test_pool_large_evicts_a_few_at_once_so_that_growth_finds_neighbours():
    pool = BlockPool(256)  # batch: 256 / 64 = 4
    ids = take(pool, 256)
    publish_chain(pool, ids, [(i,) for i in ids])
    release_all(pool, ids)
    table = take(pool, 1)
    for _ in range(5):
        table += take(pool, 1, after=table[-1])
    assert table == [252, 253, 254, 255, 248, 249]
    assert pool.evictions == 8


def test_pool_eviction_tells_what_lay_there_and_then_that_it_is_gone():
    told: list[tuple[object, ...]] = []
    pool = BlockPool(
        2,
        on_evict=lambda block_id, prefix: told.append((block_id, prefix.token_ids)),
        on_gone=lambda key: told.append((key,)),
    )
    take(pool, 2)
    publish_chain(pool, [0, 1], [(1,), (2,)])
    prefix = pool.prefix_of(1)
    assert prefix is not None
    release_all(pool, [0, 1])
    assert told == []
    take(pool, 1)
    assert told == [(1, (2,)), (prefix.key,)]
    assert prefix.key not in pool
    assert pool.keys() == {key_of(None, (1,))}


def test_pool_clear_cached_frees_cached_and_keeps_used():
    pool = BlockPool(3)
    take(pool, 3)
    publish_chain(pool, [0, 1, 2], [(1,), (2,), (3,)])
    pool.release(2)
    pool.release(1)
    assert pool.clear_cached() == [2, 1]
    assert pool.counts() == BlockCounts(total=3, free=2, cached=0, used=1)
    assert pool.evictions == 0
    pool.check_integrity([[0]])


# --- publishing -------------------------------------------------------------------------------


def test_pool_publish_duplicate_stays_out_of_the_index_and_is_freed():
    pool = BlockPool(2)
    take(pool, 2)
    publish_chain(pool, [0], [(1,)])
    publish_chain(pool, [1], [(1,)])
    assert [block_id for block_id, _ in pool.indexed()] == [0]
    assert pool.prefix_of(1) is pool.prefix_of(0)
    pool.release(1)
    assert pool.counts() == BlockCounts(total=2, free=1, cached=0, used=1)


def test_pool_twin_takes_the_place_of_the_one_that_is_released_first():
    pool = BlockPool(3)
    take(pool, 3)
    for block_id in (0, 1, 2):
        publish_chain(pool, [block_id], [(1,)])
    pool.release(0)
    assert pool.find(key_of(None, (1,)), None, (1,)) == 2
    pool.check_integrity([[1, 2]])
    pool.release(1)
    pool.check_integrity([[2]])
    pool.release(2)
    assert pool.counts() == BlockCounts(total=3, free=2, cached=1, used=0)
    assert pool.find(key_of(None, (1,)), None, (1,)) == 2
    pool.check_integrity([])


def test_pool_twin_that_is_released_first_is_free():
    pool = BlockPool(3)
    take(pool, 3)
    for block_id in (0, 1, 2):
        publish_chain(pool, [block_id], [(1,)])
    pool.release(1)
    pool.check_integrity([[0, 2]])
    pool.release(2)
    assert pool.counts() == BlockCounts(total=3, free=2, cached=0, used=1)
    assert pool.find(key_of(None, (1,)), None, (1,)) == 0
    pool.check_integrity([[0]])


def test_pool_published_again_takes_the_place_of_a_cached_one():
    gone: list[BlockHash] = []
    pool = BlockPool(2, on_gone=gone.append)
    take(pool, 2)
    publish_chain(pool, [0], [(1,)])
    pool.release(0)
    publish_chain(pool, [1], [(1,)])
    assert pool.counts() == BlockCounts(total=2, free=1, cached=0, used=1)
    assert pool.find(key_of(None, (1,)), None, (1,)) == 1
    assert gone == []
    pool.check_integrity([[1]])


def test_pool_publish_twice_is_a_bug_of_ours():
    pool = BlockPool(1)
    take(pool, 1)
    publish_chain(pool, [0], [(1,)])
    with pytest.raises(AssertionError, match="block 0 is published twice"):
        publish_chain(pool, [0], [(2,)])


def test_pool_publish_unused_block_is_a_bug_of_ours():
    with pytest.raises(AssertionError, match="block 0 is published but not used"):
        publish_chain(BlockPool(1), [0], [(1,)])


def test_pool_block_is_writable_only_while_unpublished_and_unshared():
    pool = BlockPool(3)
    take(pool, 2)
    assert pool.is_writable(0)
    assert not pool.is_writable(2)  # free
    pool.reference(1)
    assert not pool.is_writable(1)
    publish_chain(pool, [0], [(1,)])
    assert not pool.is_writable(0)
    pool.reference(0)
    assert not pool.is_writable(0)


def test_pool_find_same_tokens_after_another_parent_is_a_miss_even_with_equal_keys():
    pool = BlockPool(2)
    take(pool, 2)
    constant = BlockHash(b"same")
    first = pool.publish(0, constant, None, (1,))
    assert pool.find(constant, None, (1,)) is not None
    assert pool.find(constant, first, (1,)) is None
    assert pool.find(constant, None, (2,)) is None
    pool.publish(1, constant, first, (1,))
    assert [block_id for block_id, _ in pool.indexed()] == [0]
    pool.release(1)
    assert pool.counts() == BlockCounts(total=2, free=1, cached=0, used=1)


def test_pool_find_child_of_a_recomputed_parent_compares_the_whole_chain():
    pool = BlockPool(4)
    take(pool, 2)
    publish_chain(pool, [0, 1], [(1,), (2,)])
    pool.release(0)
    pool.clear_cached()  # the parent is gone, the child still in use
    again = pool.publish(take(pool, 1)[0], key_of(None, (1,)), None, (1,))
    assert pool.find(key_of(again, (2,)), again, (2,)) == 1
    stranger = Prefix(again.key, None, (9,))
    assert pool.find(key_of(again, (2,)), stranger, (2,)) is None
    assert pool.find(key_of(again, (2,)), None, (2,)) is None


# --- integrity --------------------------------------------------------------------------------


def make_sound_pool() -> BlockPool:
    """Block 0 used and indexed, 1 cached, 2 and 3 free."""
    pool = BlockPool(4)
    take(pool, 2)
    publish_chain(pool, [0, 1], [(1,), (2,)])
    pool.release(1)
    pool.check_integrity([[0]])
    return pool


def test_check_integrity_table_with_an_unknown_reference_is_reported():
    with pytest.raises(RuntimeError, match="Block 0 counts 1 references and tables hold 2"):
        make_sound_pool().check_integrity([[0], [0]])


def test_check_integrity_leaked_block_is_reported():
    with pytest.raises(RuntimeError, match="Block 0 counts 1 references and tables hold 0"):
        make_sound_pool().check_integrity([])


def test_check_integrity_table_with_an_impossible_block_is_reported():
    with pytest.raises(RuntimeError, match="block 4, which does not exist"):
        make_sound_pool().check_integrity([[0, 4]])


def break_state(pool: BlockPool) -> None:
    pool._free.add(0)


def break_free_count(pool: BlockPool) -> None:
    pool._free._count += 1


def break_free_prefix(pool: BlockPool) -> None:
    pool._blocks[2].prefix = pool.prefix_of(0)


def break_cached_prefix(pool: BlockPool) -> None:
    pool._blocks[1].prefix = None


def break_cached_index(pool: BlockPool) -> None:
    prefix = pool.prefix_of(1)
    assert prefix is not None
    pool._index.remove(prefix.key)


def break_index_key(pool: BlockPool) -> None:
    pool._index.add(Prefix(BlockHash(b"other"), None, (3,)), 3)


def break_index_empty(pool: BlockPool) -> None:
    pool._blocks[0].prefix = None


def break_index_twice(pool: BlockPool) -> None:
    pool._index.add(Prefix(BlockHash(b"other"), None, (3,)), 0)


def break_index_children(pool: BlockPool) -> None:
    pool._index._children.clear()


def break_twins_of_none(pool: BlockPool) -> None:
    pool._twins.add(BlockHash(b"other"), 0)


def break_unused_twin(pool: BlockPool) -> None:
    prefix = pool.prefix_of(0)
    assert prefix is not None
    pool._twins.add(prefix.key, 2)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_state, "Block 0 must be in one state"),
        (break_free_count, "2 blocks are free and 3 are counted"),
        (break_free_prefix, "Block 2 is free and still holds a prefix"),
        (break_cached_prefix, "Block 1 is cached and cannot be found"),
        (break_cached_index, "Block 1 is cached and cannot be found"),
        (break_index_key, "The index says of block 3 what it does not hold"),
        (break_index_empty, "The index says of block 0 what it does not hold"),
        (break_index_twice, "The device holds two texts in one place"),
        (break_index_children, "The device knows 2 children and lists 0"),
        (break_twins_of_none, r"Blocks \[0\] are twins of none, or unused"),
        (break_unused_twin, r"Blocks \[2\] are twins of none, or unused"),
    ],
)
def test_check_integrity_damage_is_reported(damage, message):
    pool = make_sound_pool()
    damage(pool)
    with pytest.raises(RuntimeError, match=message):
        pool.check_integrity([[0]])
