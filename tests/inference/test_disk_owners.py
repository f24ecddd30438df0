"""Who owns what: what only one chat used goes with it, from all models, also without a store."""

import os
import time
from pathlib import Path

import pytest

from inference.kv_cache.block import ROOT_KEY
from inference.kv_cache.disk import names
from inference.kv_cache.disk.claims import MANY_TAGS
from inference.kv_cache.disk.format import VERSION, first_rows, row_bytes
from inference.kv_cache.disk.journal import RECORD_BYTES, read_tags
from inference.kv_cache.disk.store import DiskStore, forget_all_but, forget_conversation
from tests.inference.disk_stores import (
    NAMESPACE,
    Clock,
    P,
    all_files,
    load,
    make_store,
    num_saved,
    piece_files,
    rows,
    save_chain,
    write,
)

SYSTEM = range(2 * P)
ONE = [*SYSTEM, *range(1000, 1040)]
TWO = [*SYSTEM, *range(2000, 2040)]


def forget(store: DiskStore, root: Path, chat: str, *, is_open: bool) -> int:
    return store.forget(chat) if is_open else forget_conversation(root, chat)


def held(root: Path) -> int:
    return sum(path.stat().st_size for path in all_files(root))


@pytest.mark.parametrize("is_open", [True, False])
def test_forget_keeps_what_another_chat_shares(tmp_path, is_open):
    store = make_store(tmp_path)
    save_chain(store, "one", ONE)
    alone = held(tmp_path)
    save_chain(store, "two", TWO)
    before = held(tmp_path)
    freed = forget(store, tmp_path, "two", is_open=is_open)
    assert freed == before - held(tmp_path) == before - alone
    assert num_saved(make_store(tmp_path), TWO) == len(SYSTEM)
    assert num_saved(make_store(tmp_path), ONE) == len(ONE)
    assert forget(store, tmp_path, "one", is_open=is_open) == alone
    assert all_files(tmp_path) == []
    assert forget(store, tmp_path, "one", is_open=is_open) == 0
    if is_open:
        assert store.stats().used_bytes == store.stats().num_pieces == 0
    assert num_saved(store, ONE) == 0


@pytest.mark.parametrize("is_open", [True, False])
def test_forget_works_across_models(tmp_path, is_open):
    first, second = make_store(tmp_path), make_store(tmp_path, namespace=b"other")
    for store in (first, second):
        save_chain(store, "one", ONE)
        save_chain(store, "two", TWO)
    second = make_store(tmp_path, namespace=b"other")
    assert second.stats().used_bytes == held(tmp_path)
    forget(second, tmp_path, "one", is_open=is_open)
    for namespace in (NAMESPACE, b"other"):
        fresh = make_store(tmp_path, namespace=namespace)
        assert num_saved(fresh, ONE) == len(SYSTEM)
        assert num_saved(fresh, TWO) == len(TWO)
    forget(second, tmp_path, "two", is_open=is_open)
    assert all_files(tmp_path) == []
    if is_open:
        assert second.stats().used_bytes == 0


def test_conversations_that_are_not_among_those_known_are_forgotten_in_all_models(tmp_path):
    for namespace in (NAMESPACE, b"other"):
        store = make_store(tmp_path, namespace=namespace)
        save_chain(store, "one", ONE)
        store.save_trail("one", ONE)
        save_chain(store, "two", TWO)
        store.save_trail("two", TWO)
    before = held(tmp_path)
    assert forget_all_but(tmp_path, ["one", "two", "three"]) == 0
    freed = forget_all_but(tmp_path, ["two"])
    assert freed == before - held(tmp_path) > 0
    fresh = make_store(tmp_path)
    assert (num_saved(fresh, ONE), num_saved(fresh, TWO)) == (len(SYSTEM), len(TWO))
    assert (fresh.load_trail("one"), fresh.load_trail("two")) == (None, tuple(TWO))
    assert forget_all_but(tmp_path, []) == before - freed
    assert all_files(tmp_path) == []


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("has_pieces", [1, 2])
def test_forget_leaves_another_only_the_rows_that_it_goes_on_after(tmp_path, is_open, has_pieces):
    store = make_store(tmp_path)
    one, two = [*range(12), *range(1000, 1020)], [*range(12), *range(2000, 2020)]
    if has_pieces == 2:
        save_chain(store, "one", one[:5])
    save_chain(store, "one", one)
    save_chain(store, "two", two)
    save_chain(store, "three", [*range(7), 3000])
    before, written = held(tmp_path), store.stats().written_bytes
    freed = forget(store, tmp_path, "one", is_open=is_open)
    assert freed == before - held(tmp_path)
    secret = (1000).to_bytes(4, "little") + (1001).to_bytes(4, "little")
    assert not any(secret in path.read_bytes() for path in all_files(tmp_path))
    late = Clock(time.time() + 10_000)
    fresh = make_store(tmp_path, clock=late)  # without an owner, they would go now
    stores = [store, fresh] if is_open else [fresh]
    for each in stores:
        assert load(each, two) == rows(two)
        assert load(each, one) == rows(one)[: 12 * 4]
        assert each.stats().misses == {}
    if is_open:
        assert store.stats().used_bytes == held(tmp_path)
        assert store.stats().written_bytes > written
    forget(store, tmp_path, "two", is_open=is_open)
    three = [*range(7), 3000]
    assert load(make_store(tmp_path), three) == rows(three)
    assert load(make_store(tmp_path), two) == rows(two)[: 7 * 4]
    forget(store, tmp_path, "three", is_open=is_open)
    assert all_files(tmp_path) == []


@pytest.mark.parametrize("fault", ["header", "payload", "gone", "read", "write"])
def test_forget_where_the_first_rows_cannot_be_kept_is_a_miss(tmp_path, monkeypatch, fault):
    store = make_store(tmp_path)
    one, two = [*range(12), *range(1000, 1020)], [*range(12), *range(2000, 2020)]
    save_chain(store, "one", one)
    (path,) = piece_files(tmp_path)
    save_chain(store, "two", two)
    if fault in ("header", "payload"):
        data = bytearray(path.read_bytes())
        data[20 if fault == "header" else -1] ^= 1
        path.write_bytes(data)

    def fail(*args, **more):
        if fault == "gone":
            path.unlink()
        raise OSError

    where = "inference.kv_cache.disk.forgetting."
    if fault in ("gone", "read"):
        monkeypatch.setattr(where + "open_for_reading", fail)
    elif fault == "write":
        monkeypatch.setattr(where + "write_file", fail)
    store.forget("one")
    assert not path.exists()
    assert load(store, two) == b""
    assert save_chain(store, "two", two) == [True]
    assert load(store, two) == rows(two)


def test_pieces_that_nobody_owns_go_at_open_after_ten_minutes(tmp_path):
    save_chain(make_store(tmp_path), "chat", range(40))
    (journal,) = tmp_path.rglob("*.own")
    journal.unlink()
    now = time.time()
    assert num_saved(make_store(tmp_path, clock=Clock(now + 590)), range(40)) == 40
    assert num_saved(make_store(tmp_path, clock=Clock(now + 610)), range(40)) == 0
    assert piece_files(tmp_path) == []


def test_forget_takes_pieces_along_that_nobody_owns(tmp_path):
    clock = Clock(time.time() - 5000)
    store = make_store(tmp_path, clock=clock)
    save_chain(store, "one", ONE)
    save_chain(store, "two", TWO)
    journal = names.conversation_path(str(next(tmp_path.iterdir())), "one", names.OWN)
    data = Path(journal).read_bytes()
    Path(journal).write_bytes(data[: 2 * RECORD_BYTES + 3])  # torn: two records are left
    clock.now += 5000
    store.forget("one")
    store.forget("two")
    assert all_files(tmp_path) == []


def test_a_torn_record_is_cut_off_before_the_next(tmp_path):
    store = make_store(tmp_path)
    save_chain(store, "chat", range(40))
    (journal,) = tmp_path.rglob("*.own")
    whole = read_tags(str(journal))
    assert len(whole) == 2
    journal.write_bytes(journal.read_bytes()[:-1])
    assert len(read_tags(str(journal))) == 1
    save_chain(store, "chat", range(70))
    assert whole < read_tags(str(journal))
    assert len(read_tags(str(journal))) == 4
    assert store.stats().used_bytes == held(tmp_path)


def test_forget_leaves_another_all_rows_but_the_last(tmp_path):
    store = make_store(tmp_path)
    save_chain(store, "one", range(20))
    save_chain(store, "two", [*range(19), 900])
    store.forget("one")
    assert num_saved(store, [*range(19), 900]) == 20


def test_forget_keeps_no_rows_for_another_that_has_their_text_after_other_blocks(tmp_path):
    store = make_store(tmp_path)
    before = [*range(1000, 1000 + P)]
    save_chain(store, "one", [*range(P), *range(500, 520)])
    of_one = piece_files(tmp_path)
    save_chain(store, "two", [*before, *range(500, 520)])
    save_chain(
        store, "three", [*before, *range(500, 510), 7]
    )  # goes on in the middle of that of two
    of_others = sorted(set(piece_files(tmp_path)) - set(of_one))
    store.forget("one")
    assert piece_files(tmp_path) == of_others


@pytest.mark.parametrize("at", range(RECORD_BYTES))
def test_a_damaged_record_owns_nothing(tmp_path, at):
    save_chain(make_store(tmp_path), "chat", range(10))
    (journal,) = tmp_path.rglob("*.own")
    data = bytearray(journal.read_bytes())
    data[at] ^= 4
    journal.write_bytes(data)
    assert read_tags(str(journal)) == set()


def test_a_journal_that_is_mostly_stale_is_written_anew(tmp_path):
    store = make_store(tmp_path)
    save_chain(store, "chat", range(P))
    branches = range(1, MANY_TAGS + 60)
    for branch in branches:
        save_chain(store, "chat", [*range(P), *range(1000 * branch, 1000 * branch + 5)])
    (journal,) = tmp_path.rglob("*.own")
    assert len(read_tags(str(journal))) == 1 + len(branches)
    for path in piece_files(tmp_path)[10:]:
        path.unlink()
    store = make_store(tmp_path)
    parsed = [names.parse_piece_name(path.name) for path in piece_files(tmp_path)]
    left = {names.owner_tag(found[0].key) for found in parsed if found is not None}
    save_chain(store, "chat", range(P + 8))
    tags = read_tags(str(journal))
    assert left < tags
    assert len(tags) <= len(left) + 2
    assert store.stats().used_bytes == held(tmp_path)


def test_a_claim_that_cannot_be_noted_lets_nothing_be_written(tmp_path, monkeypatch):
    clock = Clock(time.time())
    store = make_store(tmp_path, clock=clock)

    def fail(*args, **more):
        raise OSError

    ids = tuple(range(8))
    with monkeypatch.context() as patch:
        patch.setattr("inference.kv_cache.disk.claims.append_tags", fail)
        store.claim("chat", [(ROOT_KEY, ids)])
    clock.now += 61
    assert not write(store, ROOT_KEY, ids, 0, rows(ids))
    assert store.stats().misses == {"not_writable": 1}
    assert piece_files(tmp_path) == []


def test_two_processes_own_together(tmp_path):
    window, terminal = make_store(tmp_path), make_store(tmp_path)
    save_chain(window, "one", ONE)
    save_chain(terminal, "two", TWO)
    window.forget("one")
    assert num_saved(terminal, TWO) == len(TWO)
    assert num_saved(make_store(tmp_path), TWO) == len(TWO)


def test_what_is_not_finished_goes_with_its_process(tmp_path):
    save_chain(make_store(tmp_path), "chat", range(10))
    fan = piece_files(tmp_path)[0].parent
    folders = [fan, fan.parent, next(tmp_path.rglob("chats"))]
    now = time.time()
    for folder in folders:
        (folder / "4194999-1.tmp").write_bytes(b"of a process that is gone")
        (folder / f"{os.getpid()}-1.tmp").write_bytes(b"of one that lives")
        (folder / "notes.txt").write_bytes(b"not ours")
    make_store(tmp_path, clock=Clock(now + 10))
    left = [path.name for folder in folders for path in folder.iterdir() if path.suffix == ".tmp"]
    assert left == [f"{os.getpid()}-1.tmp"] * 3
    make_store(tmp_path, clock=Clock(now + 3700))
    assert not list(tmp_path.rglob("*.tmp"))
    assert len(list(tmp_path.rglob("notes.txt"))) == 3


def test_namespace_folders_are_told_by_their_name():
    assert names.is_namespace_folder(names.namespace_folder(NAMESPACE))
    assert not names.is_namespace_folder("blocks")


def test_namespace_has_another_folder_in_another_version_of_the_format(monkeypatch):
    folder = names.namespace_folder(NAMESPACE)
    monkeypatch.setattr("inference.kv_cache.disk.names.VERSION", VERSION + 1)
    assert names.namespace_folder(NAMESPACE) != folder


def test_first_rows_of_a_payload_are_taken_out_of_every_run() -> None:
    # Three rows: a plane of two runs of 2 bytes each, and one of one byte.
    payload = b"a0a1a2b0b1b2xyz"
    assert first_rows(memoryview(payload), ((2, 2), (1, 1)), 3, 2) == b"a0a1b0b1xy"
    assert first_rows(memoryview(payload), ((2, 2), (1, 1)), 3, 1) == b"a0b0x"
    assert row_bytes(((2, 2), (1, 1))) == 5
