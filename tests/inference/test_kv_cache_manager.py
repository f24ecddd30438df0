"""Block tables and prefix reuse: exact ids, exact reasons, and never a wrong hit."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.kv_cache.attach import PrefixHit
from inference.kv_cache.block import BlockHash, HashBlock, hash_block
from inference.kv_cache.manager import KvCacheManager
from inference.kv_cache.prefix_search import ChainEnd
from inference.kv_cache.ram_tier import RamTier
from inference.metrics import BlockCounts
from tests.inference import memory_tiers as tiers
from tests.inference.memory_tiers import FakeDisk, FakeMover

P = 4


def make_manager(num_blocks: int = 8, *, hash_block: HashBlock = hash_block) -> KvCacheManager:
    """Without a mover, so that nothing is copied."""
    return KvCacheManager(num_blocks, P, namespace=b"model", hash_block=hash_block)


def make_mover_manager(
    num_blocks: int = 8, *, num_slots: int = 0, disk: FakeDisk | None = None
) -> tuple[KvCacheManager, FakeMover]:
    mover = FakeMover(P, disk)
    ram = RamTier(num_slots)
    kv = KvCacheManager(num_blocks, P, namespace=b"model", mover=mover, ram=ram, disk=disk)
    return kv, mover


def hit_of(block_ids: tuple[int, ...], num_tokens: int, end: ChainEnd) -> PrefixHit:
    return PrefixHit(block_ids, num_tokens, (), 0, 0, end)


def attach(kv: KvCacheManager, token_ids: list[int], owner: str = "") -> PrefixHit:
    hit = kv.attach(token_ids, owner)
    assert hit is not None
    return hit


def compute(kv: KvCacheManager, token_ids: list[int]) -> tuple[PrefixHit, list[int]]:
    """Run a sequence through the cache as a scheduler would, without releasing it."""
    hit = attach(kv, token_ids)
    table = list(hit.block_ids)
    assert kv.grow(table, len(token_ids))
    assert kv.is_writable(table, hit.num_tokens, len(token_ids) - hit.num_tokens)
    kv.publish(table, token_ids, len(token_ids))
    return hit, table


def test_manager_block_size_zero_is_refused():
    with pytest.raises(ValueError, match="block_size must be at least 1, not 0"):
        KvCacheManager(1, 0, namespace=b"")


def test_distrust_lets_nobody_find_a_table_while_others_go_on_with_their_part():
    kv, mover = make_mover_manager(num_slots=4)
    one = tiers.compute(kv, mover, [1, 2, 3, 4, 5, 6, 7, 8, 9], "one")
    other = tiers.compute(kv, mover, [1, 2, 3, 4, 50], "other")
    assert one[0] == other[0]
    kv.distrust(one)
    kv.release(one)
    kv.check_integrity([other])
    assert kv.counts() == BlockCounts(total=8, free=6, cached=0, used=2)
    assert attach(kv, [1, 2, 3, 4, 5], "one").num_tokens == 0
    mover.check(other, [1, 2, 3, 4, 50], 5)
    kv.release(other)
    assert kv.counts().free == 8


def test_clear_gives_the_memory_of_all_free_blocks_back():
    kv, mover = make_mover_manager()
    table = tiers.compute(kv, mover, [1, 2, 3, 4, 5])
    kv.distrust(table)
    kv.release(table)
    assert mover.discarded == []
    assert kv.clear_cached() == 0
    assert mover.discarded == [0, 1]


# --- attach -----------------------------------------------------------------------------------


def test_attach_empty_cache_finds_nothing():
    assert make_manager().attach(list(range(9))) == hit_of((), 0, "nothing_cached")


def test_attach_prompt_within_one_block_finds_nothing():
    kv = make_manager()
    compute(kv, [1, 2, 3, 4])
    assert attach(kv, [1, 2, 3, 4]) == hit_of((), 0, "nothing_cached")


@pytest.mark.parametrize(
    ("length", "num_blocks", "end"),
    [
        (2 * P - 1, 1, "different_text"),
        (2 * P, 1, "different_text"),
        (2 * P + 1, 2, "all_reused"),
        (3 * P - 1, 2, "different_text"),
        (3 * P, 2, "different_text"),
        (3 * P + 1, 3, "all_reused"),
    ],
)
def test_attach_same_prompt_again_without_a_mover_reuses_full_blocks(length, num_blocks, end):
    kv = make_manager()
    prompt = list(range(length))
    compute(kv, prompt)
    assert attach(kv, prompt) == hit_of(tuple(range(num_blocks)), num_blocks * P, end)


@pytest.mark.parametrize("length", [1, 2, 3, P - 1, P, P + 1, 2 * P - 1, 2 * P, 2 * P + 1, 3 * P])
def test_attach_same_prompt_again_leaves_exactly_one_token(length):
    kv, mover = make_mover_manager()
    prompt = list(range(length))
    table = tiers.compute(kv, mover, prompt)
    kv.seal(table, prompt, length)
    hit = attach(kv, prompt)
    assert hit.num_tokens == length - 1
    assert hit.end == ("all_reused" if length > 1 else "nothing_cached")
    mover.check(hit.block_ids, prompt, hit.num_tokens)
    kv.check_integrity([table, hit.block_ids])


def test_attach_running_prompt_shares_its_blocks():
    kv = make_manager()
    _, one = compute(kv, list(range(9)))
    hit, other = compute(kv, list(range(9)))
    assert (one, other) == ([0, 1, 2], [0, 1, 3])
    assert hit == hit_of((0, 1), 8, "all_reused")
    kv.check_integrity([one, other])


def test_attach_text_that_differs_later_stops_there():
    kv = make_manager()
    compute(kv, list(range(12)))
    assert attach(kv, [*range(7), 99, *range(8, 12)]) == hit_of((0,), 4, "different_text")


def test_attach_text_that_differs_first_finds_nothing():
    kv = make_manager()
    compute(kv, list(range(12)))
    assert attach(kv, [99, *range(1, 12)]) == hit_of((), 0, "nothing_cached")


def test_attach_longer_chat_reuses_all_that_was_there():
    kv = make_manager()
    _, table = compute(kv, list(range(10)))
    kv.release(table)
    assert attach(kv, list(range(20))) == hit_of((0, 1), 8, "different_text")


def test_attach_evicted_tail_says_evicted():
    kv = make_manager(4)
    _, table = compute(kv, list(range(16)))
    kv.release(table)
    _, other = compute(kv, [99, 98, 97, 96, 95])
    assert other == [2, 3]
    kv.release(other)
    assert attach(kv, list(range(16))) == hit_of((0, 1), 8, "evicted")


def test_attach_everything_evicted_says_evicted():
    kv = make_manager(2)
    _, table = compute(kv, list(range(8)))
    kv.release(table)
    _, other = compute(kv, list(range(50, 58)))
    kv.release(other)
    assert attach(kv, list(range(8))) == hit_of((), 0, "evicted")


def test_attach_other_namespace_finds_nothing():
    one = KvCacheManager(4, P, namespace=b"one")
    other = KvCacheManager(4, P, namespace=b"other")
    _, one_table = compute(one, list(range(8)))
    _, other_table = compute(other, list(range(8)))
    keys = [p.key for kv in (one, other) for _, p in kv._pool.indexed()]
    assert len(set(keys)) == 4
    one.check_integrity([one_table])
    other.check_integrity([other_table])


# --- grow -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_grow_gives_as_many_blocks_as_tokens_need(num_tokens, num_blocks):
    kv = make_manager()
    table: list[int] = []
    assert kv.grow(table, num_tokens)
    assert table == list(range(num_blocks))


def test_grow_within_the_last_block_changes_nothing():
    kv = make_manager()
    table: list[int] = []
    kv.grow(table, 5)
    assert kv.grow(table, 8)
    assert kv.grow(table, 2)
    assert table == [0, 1]


def test_grow_that_does_not_fit_changes_nothing():
    kv = make_manager(3)
    table: list[int] = []
    kv.grow(table, 8)
    assert not kv.grow(table, 17)
    assert table == [0, 1]
    assert kv.counts() == BlockCounts(total=3, free=1, cached=0, used=2)
    kv.check_integrity([table])


def test_grow_block_by_block_beside_another_chat_stays_in_one_run():
    kv = KvCacheManager(256, 16, namespace=b"")
    tables: list[list[int]] = [[], []]
    for num_tokens in range(1, 60 * 16):
        assert all(kv.grow(table, num_tokens) for table in tables)
    assert tables[0] == list(range(60))
    assert tables[1] == list(range(tables[1][0], tables[1][0] + 60))


def test_grow_in_turns_of_three_chats_keeps_each_in_one_run():
    kv = KvCacheManager(512, 4, namespace=b"")
    texts: list[list[int]] = [[], [], []]
    for turn in range(8):
        for chat, text in enumerate(texts):
            text += [1000 * chat + 100 * turn + i for i in range(30)]
            _, table = compute(kv, text)
            assert table == list(range(table[0], table[0] + len(table)))
            kv.release(table)
    kv.check_integrity([])


def test_grow_in_a_full_pool_uses_few_runs():
    kv = KvCacheManager(1024, 4, namespace=b"")
    for chat in range(20):
        _, table = compute(kv, [10_000 * chat + i for i in range(400)])
        kv.release(table)
    assert kv.evictions > 900
    table = []
    for num_tokens in range(1, 401):
        assert kv.grow(table, num_tokens)
    jumps = sum(b != a + 1 for a, b in itertools.pairwise(table))
    assert jumps <= 8  # 100 blocks, evicted 16 at a time, sometimes across the end of a chat


# --- publish ----------------------------------------------------------------------------------


def test_publish_counts_only_full_and_computed_blocks():
    kv = make_manager()
    table: list[int] = []
    prompt = list(range(12))
    kv.grow(table, 12)
    kv.publish(table, prompt, 7)
    assert attach(kv, prompt).block_ids == (0,)
    kv.publish(table, prompt, 8)
    assert attach(kv, prompt).block_ids == (0, 1)
    kv.publish(table, prompt, 8)
    kv.check_integrity([table, [0], [0, 1]])


def test_publish_nothing_computed_publishes_nothing():
    kv = make_manager()
    table: list[int] = []
    kv.grow(table, 8)
    kv.publish(table, list(range(8)), 0)
    assert kv.is_writable(table, 0, 8)


def test_publish_more_than_is_known_is_a_bug_of_ours():
    kv = make_manager()
    table: list[int] = []
    kv.grow(table, 4)
    with pytest.raises(AssertionError, match="4 of 3 are computed"):
        kv.publish(table, [1, 2, 3], 4)


def test_publish_makes_full_blocks_immutable_and_leaves_the_last_one():
    kv = make_manager()
    _, table = compute(kv, list(range(6)))
    assert not kv.is_writable(table, 3, 1)
    assert not kv.is_writable(table, 3, 2)
    assert kv.is_writable(table, 4, 4)


def test_publish_two_equal_prompts_side_by_side_keeps_both_tables():
    kv = make_manager()
    prompt = list(range(10))
    one: list[int] = []
    other: list[int] = []
    assert kv.grow(one, 10)
    assert kv.grow(other, 10)
    kv.publish(one, prompt, 10)
    kv.publish(other, prompt, 10)
    assert (one, other) == ([0, 1, 2], [3, 4, 5])
    kv.check_integrity([one, other])
    kv.release(one)
    kv.release(other)
    assert kv.counts() == BlockCounts(total=8, free=6, cached=2, used=0)
    assert attach(kv, prompt).block_ids == (3, 4)  # they took the place of their twins


def test_publish_after_a_duplicate_continues_the_chain_for_others():
    kv = make_manager(10)
    short, long = list(range(5)), list(range(13))
    one: list[int] = []
    other: list[int] = []
    kv.grow(one, 5)
    kv.grow(other, 13)
    kv.publish(one, short, 5)
    kv.publish(other, long, 13)  # its first block is a duplicate, the others are new
    assert attach(kv, long).block_ids == (one[0], other[1], other[2])


# --- release ----------------------------------------------------------------------------------


def test_release_empties_the_table_and_keeps_full_blocks_cached():
    kv = make_manager()
    _, table = compute(kv, list(range(10)))
    kv.release(table)
    assert table == []
    assert kv.counts() == BlockCounts(total=8, free=6, cached=2, used=0)
    kv.check_integrity([])


def test_release_gives_tails_up_before_heads():
    kv = make_manager(3)
    _, table = compute(kv, list(range(12)))
    kv.release(table)
    other: list[int] = []
    assert kv.grow(other, 4)
    assert other == [2]
    assert kv.grow(other, 8)
    assert other == [2, 1]


def test_release_shared_block_stays_used_until_the_last_one_lets_go():
    kv = make_manager()
    _, one = compute(kv, list(range(9)))
    _, other = compute(kv, list(range(9)))
    kv.release(one)
    assert kv.counts() == BlockCounts(total=8, free=5, cached=0, used=3)
    kv.release(other)
    assert kv.counts() == BlockCounts(total=8, free=6, cached=2, used=0)


def test_clear_cached_forgets_what_nobody_uses():
    kv = make_manager()
    _, one = compute(kv, list(range(9)))
    _, other = compute(kv, [*range(4), 50, 51, 52, 53])
    kv.release(one)
    kv.clear_cached()
    assert kv.counts() == BlockCounts(total=8, free=6, cached=0, used=2)
    assert kv.num_available == 6
    assert attach(kv, list(range(9))) == hit_of((0,), 4, "different_text")
    kv.check_integrity([other, [0]])


# --- collisions -------------------------------------------------------------------------------


def constant_hash(namespace, parent_key, token_ids):
    return BlockHash(b"always the same")


def last_token_hash(namespace, parent_key, token_ids):
    return BlockHash(bytes([token_ids[-1] % 3]))


def tokens_only_hash(namespace, parent_key, token_ids):
    return hash_block(namespace, BlockHash(b""), token_ids)


COLLIDING = [constant_hash, last_token_hash, tokens_only_hash]


def test_attach_colliding_hash_and_repeated_text_is_no_hit():
    kv = make_manager(hash_block=constant_hash)
    _, table = compute(kv, [1, 2, 3, 4] * 3)
    assert attach(kv, [1, 2, 3, 4] * 3) == hit_of((0,), 4, "different_text")
    kv.check_integrity([table, [0]])


def test_attach_colliding_hash_and_other_parent_is_no_hit():
    kv = make_manager(hash_block=tokens_only_hash)
    compute(kv, [1, 1, 1, 1, 5, 5, 5, 5])
    compute(kv, [2, 2, 2, 2, 5, 5, 5, 5])
    assert attach(kv, [2, 2, 2, 2, 5, 5, 5, 5, 0]) == hit_of((2,), 4, "different_text")


@given(
    st.sampled_from([hash_block, *COLLIDING]),
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=1, max_size=8),
)
def test_attach_any_hash_and_prompts_only_ever_gives_the_same_text(hash_function, prompts):
    # Every physical block remembers which tokens, from the very first on, were computed into it.
    kv = KvCacheManager(16, 2, namespace=b"", hash_block=hash_function)
    held: dict[int, list[int]] = {}
    for prompt in prompts:
        hit = attach(kv, prompt)
        table = list(hit.block_ids)
        for i, block_id in enumerate(table):
            assert held[block_id] == prompt[: 2 * i + 2]
        assert hit.num_tokens == 2 * len(table) < len(prompt)
        assert kv.grow(table, len(prompt))
        for i in range(len(hit.block_ids), len(table)):
            held[table[i]] = prompt[: 2 * i + 2]
        kv.publish(table, prompt, len(prompt))
        kv.check_integrity([table])
        kv.release(table)
        kv.check_integrity([])


# --- integrity --------------------------------------------------------------------------------


def test_check_integrity_text_that_does_not_match_its_key_is_reported():
    kv = make_manager()
    _, table = compute(kv, list(range(4)))
    prefix = kv._pool.prefix_of(0)
    assert prefix is not None
    prefix.token_ids = (9, 9, 9, 9)
    with pytest.raises(RuntimeError, match="Block 0 has a key that is not that of its text"):
        kv.check_integrity([table])


@pytest.mark.parametrize(("tokens", "num_rows"), [((), 0), ((1, 2, 3, 4, 5), 5)])
def test_check_integrity_indexed_block_with_impossible_rows_is_reported(tokens, num_rows):
    kv = make_manager()
    table: list[int] = []
    kv.grow(table, 1)
    kv._pool.publish(0, hash_block(b"model", BlockHash(b""), tokens), None, tokens)
    with pytest.raises(RuntimeError, match=f"Block 0 is indexed with {num_rows} rows"):
        kv.check_integrity([table])


def test_check_integrity_chain_over_a_block_that_is_not_full_is_reported():
    kv = make_manager()
    table: list[int] = []
    kv.grow(table, 5)
    first = kv._pool.publish(0, hash_block(b"model", BlockHash(b""), [1]), None, (1,))
    kv._pool.publish(1, hash_block(b"model", first.key, [2]), first, (2,))
    with pytest.raises(RuntimeError, match="Block 1 goes on after a block that is not full"):
        kv.check_integrity([table])


def test_check_integrity_owned_text_that_lies_nowhere_is_reported():
    kv = make_manager()
    kv._residents.owners.note("chat", BlockHash(b"nowhere"))
    with pytest.raises(RuntimeError, match="A chat owns text that lies nowhere"):
        kv.check_integrity([])


# --- cost -------------------------------------------------------------------------------------


def test_long_prompt_costs_one_hash_per_block_and_one_token_more_costs_none():
    calls = []

    def counting_hash(namespace, parent_key, token_ids):
        calls.append(len(token_ids))
        return hash_block(namespace, parent_key, token_ids)

    kv = KvCacheManager(300, 16, namespace=b"", hash_block=counting_hash)
    prompt = list(range(4000))
    table: list[int] = []
    kv.grow(table, 4000)
    kv.publish(table, prompt, 4000)
    assert calls == [16] * 250
    kv.publish(table, [*prompt, 1], 4001)
    assert len(calls) == 250
    assert attach(kv, prompt).num_tokens == 3984
    assert len(calls) == 250 + 249 + 16  # and one for each row at the end: was it evicted?
