"""Two stores of one process, of a model and of the one that guesses for it: one account, one budget."""

import gc
import threading
from pathlib import Path

import pytest

from inference.kv_cache.disk.store import DiskStore, used_bytes
from tests.inference.disk_stores import Clock, P, make_store, num_saved, piece_files, save_chain

CHAT = 4 * P


def chat(number: int) -> range:
    return range(number * 1000, number * 1000 + CHAT)


def joined(
    tmp_path: Path, *, budget: int = 10**9, clock: Clock | None = None
) -> tuple[DiskStore, DiskStore]:
    clock = clock or Clock(1_000_000.0)
    one = make_store(tmp_path, budget=budget, clock=clock)
    other = make_store(tmp_path, namespace=b"draft", budget=budget, clock=clock)
    one.join(other)
    return one, other


def check_counts(tmp_path: Path, *stores: DiskStore) -> None:
    real = used_bytes(tmp_path)
    assert [store.stats().used_bytes for store in stores] == [real] * len(stores)


def test_what_one_writes_counts_for_both_and_only_the_writer_has_written_it(tmp_path):
    one, other = joined(tmp_path)
    save_chain(one, "a", chat(1))
    check_counts(tmp_path, one, other)
    assert other.stats().written_bytes == 0
    save_chain(other, "a", chat(1))
    save_chain(one, "a", range(1000, 1000 + CHAT + P // 2))  # the journal and trail grow
    check_counts(tmp_path, one, other)
    assert one.stats().num_pieces == other.stats().num_pieces == len(piece_files(tmp_path))


def test_the_budget_is_that_of_both_together(tmp_path):
    budget = 9000
    clock = Clock(1_000_000.0)
    one, other = joined(tmp_path, budget=budget, clock=clock)
    for number in range(12):
        clock.now += 100
        save_chain(one, f"chat {number % 2}", chat(number))
        save_chain(other, f"chat {number % 2}", chat(number))
        check_counts(tmp_path, one, other)
        assert used_bytes(tmp_path) <= budget
    assert num_saved(other, chat(11)) == CHAT


def test_a_chat_that_is_forgotten_by_one_is_gone_for_both(tmp_path):
    one, other = joined(tmp_path)
    for store in (one, other):
        save_chain(store, "a", chat(1))
        save_chain(store, "b", [*range(1000, 1000 + P), *range(5000, 5000 + P)])
    one.forget("a")
    check_counts(tmp_path, one, other)
    assert num_saved(other, chat(1)) == P  # the block that b has too
    assert other.stats().misses == {}
    one.clear()
    check_counts(tmp_path, one, other)
    assert piece_files(tmp_path) == []
    assert num_saved(other, chat(1)) == 0
    assert other.stats().misses == {}


def test_a_store_that_is_gone_is_told_nothing(tmp_path):
    one, other = joined(tmp_path)
    del other
    gc.collect()
    save_chain(one, "a", chat(1))
    check_counts(tmp_path, one)


@pytest.mark.parametrize("budget", [10**9, 20_000])
def test_both_write_and_forget_at_once(tmp_path, budget):
    stores = joined(tmp_path, budget=budget)

    def work(store: DiskStore) -> None:
        for number in range(30):
            save_chain(store, f"chat {number % 5}", chat(number))
            if number % 7 == 6:
                store.forget(f"chat {number % 5}")

    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for store in stores:
        store.clear()
    check_counts(tmp_path, *stores)
    assert used_bytes(tmp_path) == 0
