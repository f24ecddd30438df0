"""Budgets: of all models together, least recently used first, and of a chain its tail."""

import pytest

from inference.kv_cache.block import ROOT_KEY, BlockHash
from inference.kv_cache.disk.files import remove_file
from inference.kv_cache.disk.index import Entry, PieceIndex
from inference.kv_cache.disk.store import (
    LITTLE_ROOM,
    NO_ROOM,
    DiskStore,
    clear_all,
    used_bytes,
)
from inference.kv_cache.tiers import Piece
from tests.inference.disk_stores import (
    LAYOUT,
    NAMESPACE,
    ROW,
    Clock,
    P,
    all_files,
    frame_bytes,
    load,
    make_store,
    num_saved,
    piece_files,
    rows,
    save,
    save_chain,
    write,
)

PIECE = frame_bytes(P) + P * ROW
CHAT = 4 * P  # tokens
SMALL = 4 * 20 + 18 + 4 * 16 + 4 * CHAT  # journal and trail of a chat


def chat(number: int) -> range:
    return range(number * 1000, number * 1000 + CHAT)


@pytest.mark.parametrize("reopened", [False, True])
def test_tails_of_what_was_used_least_recently_go_first(tmp_path, reopened):
    clock = Clock(1_000_000.0)
    budget = 3 * (SMALL + 4 * PIECE)
    store = make_store(tmp_path, budget=budget, clock=clock)
    for number in (1, 2, 3):
        save_chain(store, f"chat {number}", chat(number))
        clock.now += 100
    assert store.stats().used_bytes == budget
    save_chain(store, "chat 1", chat(1))  # used again
    clock.now += 100
    if reopened:
        store = make_store(tmp_path, budget=budget, clock=clock)
    save(store, "chat 4", range(4000, 4000 + P))
    assert [num_saved(store, chat(number)) for number in (1, 2, 3)] == [CHAT, 2 * P, CHAT]
    # The reads made them all as new; of what was read last, the first blocks are the newest.
    assert store.stats().used_bytes <= budget
    assert used_bytes(tmp_path) == store.stats().used_bytes


def test_a_read_counts_as_a_use_from_the_first_block_on(tmp_path):
    clock = Clock(1_000_000.0)
    budget = 2 * (SMALL + 4 * PIECE) + 20
    store = make_store(tmp_path, budget=budget, clock=clock)
    for number in (1, 2):
        save_chain(store, f"chat {number}", chat(number))
        clock.now += 100
    assert num_saved(store, chat(1)) == CHAT
    clock.now += 1
    store.claim("chat 3", [(ROOT_KEY, tuple(range(9000, 9000 + P)))])
    ids = range(9000, 9000 + P)
    assert write(store, ROOT_KEY, ids, 0, rows(ids))  # takes the tail of chat 2
    files = {path.name for path in piece_files(tmp_path)}
    assert num_saved(make_store(tmp_path, budget=budget, clock=clock), chat(1)) == CHAT
    assert num_saved(make_store(tmp_path, budget=budget, clock=clock), chat(2)) == 3 * P
    assert len(files) == 8


def test_a_chain_longer_than_the_budget_keeps_its_first_blocks(tmp_path):
    store = make_store(tmp_path, budget=2 * PIECE + SMALL)
    # The third block gives way to the trail.
    assert save_chain(store, "chat", chat(1)) == [True, True, True, False]
    assert store.stats().misses == {"over_budget": 1}
    assert num_saved(store, chat(1)) == 2 * P
    assert store.stats().used_bytes == store.stats().budget_bytes
    assert store.stats().problem == LITTLE_ROOM
    store.set_budget(4 * PIECE + SMALL)
    assert store.stats().problem == ""
    assert save_chain(store, "chat", chat(1)) == [True] * 4
    assert store.stats().problem == ""


def test_a_budget_for_less_than_a_block_says_that_nothing_is_kept(tmp_path):
    store = make_store(tmp_path, budget=PIECE - 1)
    assert (store.has_no_room, store.stats().problem) == (True, NO_ROOM)
    assert save_chain(store, "chat", chat(1)) == [False] * 4
    assert piece_files(tmp_path) == []
    assert store.stats().problem == NO_ROOM
    store.set_budget(PIECE)
    assert (store.has_no_room, store.stats().problem) == (False, "")
    assert store.room_tokens == PIECE // ROW
    store.set_budget(0)  # off, as somebody chose
    assert (store.has_no_room, store.stats().problem) == (False, "")
    assert store.room_tokens is None


def test_a_write_larger_than_the_budget_removes_nothing(tmp_path):
    store = make_store(tmp_path, budget=PIECE + 100)
    save(store, "chat", range(5))
    store.set_budget(300)
    ids = range(1000, 1000 + P)
    store.claim("other", [(ROOT_KEY, tuple(ids))])
    assert not write(store, ROOT_KEY, ids, 0, rows(ids))
    assert store.stats().misses == {"over_budget": 1}
    assert load(store, range(5)) == rows(range(5))


def test_the_budget_is_of_all_models(tmp_path):
    clock = Clock(1_000_000.0)
    save_chain(make_store(tmp_path, namespace=b"other", clock=clock), "chat", chat(1))
    clock.now += 10
    store = make_store(tmp_path, budget=SMALL * 2 + 4 * PIECE, clock=clock)
    assert store.stats().num_pieces == 4
    save_chain(store, "chat", chat(1))
    assert num_saved(store, chat(1)) == CHAT
    assert num_saved(make_store(tmp_path, namespace=b"other"), chat(1)) == 0


def test_a_smaller_budget_removes_at_once_also_when_opened(tmp_path):
    store = make_store(tmp_path)
    save_chain(store, "chat", chat(1))
    store.set_budget(SMALL + 3 * PIECE)
    assert num_saved(store, chat(1)) == 3 * P
    store = make_store(tmp_path, budget=SMALL + PIECE)
    assert num_saved(store, chat(1)) == P
    store.set_budget(1)  # journals and trails are not worth a piece
    assert store.stats().num_pieces == 0
    assert piece_files(tmp_path) == []


def test_a_budget_of_nothing_removes_all_and_turns_the_tier_off(tmp_path):
    store = make_store(tmp_path)
    save_chain(store, "chat", chat(1))
    store.set_budget(0)
    assert all_files(tmp_path) == []
    assert save_chain(store, "chat", chat(1)) == [False] * 4
    assert (store.stats().used_bytes, store.stats().budget_bytes) == (0, 0)
    store.set_budget(10**6)
    assert save_chain(store, "chat", chat(1)) == [True] * 4
    assert num_saved(store, chat(1)) == CHAT


def test_a_trail_for_which_there_is_no_room_is_not_written(tmp_path):
    store = make_store(tmp_path, budget=500)
    store.save_trail("one", range(100))
    store.save_trail("two", range(100))
    assert store.load_trail("one") == tuple(range(100))
    assert store.load_trail("two") is None
    assert store.stats().used_bytes == 482


def test_a_budget_set_before_opening_counts_then(tmp_path):
    save_chain(make_store(tmp_path), "chat", chat(1))
    store = DiskStore(
        tmp_path, namespace=NAMESPACE, block_size=P, row_layout=LAYOUT, budget_bytes=0
    )
    store.set_budget(SMALL + PIECE)
    assert len(piece_files(tmp_path)) == 4
    store.open()
    assert num_saved(store, chat(1)) == P


def test_a_file_that_cannot_be_removed_stays_counted(tmp_path, monkeypatch):
    store = make_store(tmp_path)
    save_chain(store, "chat", chat(1))
    with monkeypatch.context() as patch:
        patch.setattr("inference.kv_cache.disk.shelf.remove_file", lambda path: False)
        store.set_budget(SMALL + 3 * PIECE)
    assert store.stats().used_bytes == SMALL + 4 * PIECE
    assert num_saved(store, chat(1)) == CHAT
    store.set_budget(SMALL + 3 * PIECE)
    assert store.stats().used_bytes == SMALL + 3 * PIECE


def test_a_long_run_of_uses_keeps_the_order(tmp_path):
    clock = Clock(1_000_000.0)
    store = make_store(tmp_path, clock=clock)
    for number in (1, 2, 3):
        save_chain(store, f"chat {number}", chat(number))
        clock.now += 100
    store.set_budget(3 * SMALL + 8 * PIECE)  # from now on the order is kept
    for _ in range(300):
        num_saved(store, chat(2))
        clock.now += 0.01
    store.set_budget(3 * SMALL + 4 * PIECE)
    assert [num_saved(store, chat(number)) for number in (1, 2, 3)] == [0, CHAT, 0]


def test_a_use_of_what_has_gone_meanwhile_brings_nothing_back():
    index = PieceIndex(lambda base, ids: BlockHash(b"key"), lambda entry: None)
    entry = Entry("path", Piece(BlockHash(b"key"), 0, 1), "tag", 10, 1.0)
    index.add(entry, is_own=True)
    index.remove("path")
    index.touch(entry, 2.0)
    assert (entry.used, len(index), index.num_bytes, list(index)) == (1.0, 0, 0, [])
    assert index.evict(1) is None


@pytest.mark.parametrize("is_open", [True, False])
def test_clear_removes_everything_of_ours_and_nothing_else(tmp_path, is_open):
    mine = tmp_path / "notes.txt"
    mine.write_text("mine")
    (tmp_path / "folder").mkdir()
    save_chain(make_store(tmp_path, namespace=b"other"), "chat", chat(1))
    store = make_store(tmp_path)
    save_chain(store, "chat", chat(1))
    size = used_bytes(tmp_path)
    assert size == store.stats().used_bytes
    assert (store.clear() if is_open else clear_all(tmp_path)) == size
    assert all_files(tmp_path) == [mine]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "notes.txt"]
    assert used_bytes(tmp_path) == 0
    assert save_chain(store, "chat", chat(1)) == [True] * 4 or not is_open


def test_a_piece_that_is_being_removed_is_not_taken_in_again(tmp_path, monkeypatch):
    store = make_store(tmp_path)
    save_chain(store, "chat", range(P))
    covered = []

    def look_and_remove(path: str) -> bool:
        covered.append(store.cover(ROOT_KEY, range(P)))  # as the engine may at this moment
        return remove_file(path)

    monkeypatch.setattr("inference.kv_cache.disk.shelf.remove_file", look_and_remove)
    store.set_budget(PIECE)
    assert covered == [()]
    assert store.cover(ROOT_KEY, range(P)) == ()
    assert store.stats().num_pieces == 0


def test_of_a_chain_that_was_read_the_tail_goes_first(tmp_path):
    clock = Clock(1_000_000.0)
    store = make_store(tmp_path, clock=clock)
    save_chain(store, "chat", range(3 * P))
    clock.now += 100
    assert num_saved(store, range(3 * P)) == 3 * P
    store.set_budget(store.stats().used_bytes - 1)
    assert num_saved(store, range(3 * P)) == 2 * P


def test_what_was_used_at_the_very_time_stays():
    index = PieceIndex(hash_text=lambda base, ids: BlockHash(b""), peek=lambda entry: None)
    entry = Entry("path", Piece(BlockHash(b"key"), 0, P), "tag", 10, used=5.0)
    index.add(entry, is_own=True)
    assert index.evict(1, older_than=5.0) is None
    assert index.evict(1, older_than=5.1) == [entry]
