"""The disk tier: what is written is found again, each row once."""

import os
import stat
import threading
import time
from collections.abc import Sequence

import pytest

from inference.kv_cache.block import ROOT_KEY, BlockHash
from inference.kv_cache.disk import names
from inference.kv_cache.disk.trail import Maker, TrailElsewhere, pack_trail
from inference.kv_cache.tiers import DiskSource, Piece
from tests.inference.disk_stores import (
    ROW,
    Clock,
    P,
    all_files,
    frame_bytes,
    key_of,
    load,
    make_store,
    num_saved,
    piece_files,
    rows,
    save,
    save_chain,
    write,
)

RECORD = 20


def test_a_block_written_is_read_again_also_by_another_store(tmp_path):
    ids = range(100, 100 + P)
    save(make_store(tmp_path), "chat", ids)
    store = make_store(tmp_path)
    assert store.cover(ROOT_KEY, ids) == (DiskSource(Piece(key_of(ids), 0, P), 0, P),)
    assert load(store, ids) == rows(ids)
    assert store.stats().misses == {}
    assert store.stats().num_pieces == 1


def test_a_block_of_another_base_is_not_found(tmp_path):
    store = make_store(tmp_path)
    ids = range(P)
    save(store, "chat", ids)
    assert store.cover(BlockHash(b"other"), ids) == ()
    assert store.cover(ROOT_KEY, range(1, P + 1)) == ()


@pytest.mark.parametrize("reopened", [False, True])
def test_a_block_written_in_two_turns_is_two_pieces(tmp_path, reopened):
    store = make_store(tmp_path)
    ids = range(P)
    save(store, "chat", ids[:20])
    save(store, "chat", ids)
    if reopened:
        store = make_store(tmp_path)
    first, second = Piece(key_of(ids[:20]), 0, 20), Piece(key_of(ids), 20, P)
    assert store.cover(ROOT_KEY, ids) == (DiskSource(first, 0, 20), DiskSource(second, 20, P))
    assert load(store, ids) == rows(ids)
    # Fewer rows than the pieces have: as many as are wanted.
    assert store.cover(ROOT_KEY, ids[:25]) == (
        DiskSource(first, 0, 20),
        DiskSource(second, 20, 25),
    )
    assert load(store, ids[:7]) == rows(ids[:7])


@pytest.mark.parametrize("reopened", [False, True])
def test_a_text_that_parts_inside_a_piece_uses_its_first_rows(tmp_path, reopened):
    store = make_store(tmp_path)
    save(store, "chat", range(P))
    if reopened:
        store = make_store(tmp_path)
    other = [*range(12), *range(500, 510)]
    assert store.num_saved(ROOT_KEY, other) == 12
    before = store.stats().written_bytes
    save(store, "other chat", other)
    journal = 3 * 20  # the first rows, the piece that they would be, the new piece
    assert store.stats().written_bytes - before == journal + frame_bytes(22) + 10 * ROW
    assert load(store, other) == rows(other)
    assert load(store, range(P)) == rows(range(P))
    assert [path.name.split("-")[1:3] for path in piece_files(tmp_path)].count(["12", "22"]) == 1


def test_written_bytes_are_those_of_the_files(tmp_path):
    store = make_store(tmp_path)
    save_chain(store, "chat", range(100))
    stats = store.stats()
    lengths = sum(path.stat().st_size for path in all_files(tmp_path))
    header = frame_bytes(P)
    expected = 3 * header + frame_bytes(4) + 100 * ROW
    assert stats.written_bytes == expected + 4 * RECORD + len(pack_trail(range(100), Maker()))
    assert stats.used_bytes == lengths == stats.written_bytes
    save_chain(store, "chat", range(100))  # nothing is new but the trail
    assert store.stats().written_bytes == lengths + len(pack_trail(range(100), Maker()))
    assert make_store(tmp_path).stats().used_bytes == store.stats().used_bytes == lengths


def test_a_day_of_turns_writes_each_row_once(tmp_path):
    store = make_store(tmp_path)
    for end in range(7, 200, 7):
        save_chain(store, "chat", range(end))
    payload = sum(
        path.stat().st_size - frame_bytes(int(path.name.split("-")[2]))
        for path in piece_files(tmp_path)
    )
    assert payload == 196 * ROW
    assert num_saved(store, range(196)) == num_saved(make_store(tmp_path), range(196)) == 196


def test_a_shorter_piece_with_more_of_the_text_wins(tmp_path):
    store = make_store(tmp_path)
    save(store, "one", [*range(10), *range(50, 60)])
    save(store, "two", range(15))  # rows 10 to 14, after ten rows of the other
    assert [(s.start, s.end) for s in store.cover(ROOT_KEY, range(20))] == [(0, 10), (10, 15)]
    assert load(store, range(20)) == rows(range(15))


def test_of_many_unknown_pieces_few_headers_are_read(tmp_path, monkeypatch):
    store = make_store(tmp_path)
    for chat in range(100):
        save(store, f"chat {chat}", range(1000 * chat, 1000 * chat + 5))
    store = make_store(tmp_path)
    assert store.cover(ROOT_KEY, [99_000, 7]) == (
        DiskSource(Piece(key_of(range(99_000, 99_005)), 0, 5), 0, 1),
    )
    opened: list[str] = []
    real = os.open

    def count(path: str, flags: int, mode: int) -> int:
        opened.append(path)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", count)
    assert store.cover(ROOT_KEY, [7]) == ()
    assert len(opened) == 32
    assert store.cover(ROOT_KEY, range(99_000, 99_005))
    assert len(opened) == 32


def collide(namespace: bytes, parent_key: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    return BlockHash(b"same")


def test_a_colliding_key_is_told_apart_by_the_ids_in_the_header(tmp_path):
    store = make_store(tmp_path, hash_block=collide)
    save(store, "one", range(P))
    other = range(500, 500 + P)
    assert store.cover(ROOT_KEY, other) == ()
    fresh = make_store(tmp_path, hash_block=collide)
    assert load(fresh, other) == b""
    assert fresh.stats().misses == {"other_text": 1}
    assert fresh.cover(ROOT_KEY, other) == ()  # by now the ids are known
    assert load(fresh, range(P)) == rows(range(P))
    save(fresh, "two", other)  # takes the place
    assert load(fresh, other) == rows(other)
    assert load(fresh, range(P)) == b""


def test_a_colliding_name_is_told_apart_by_the_base_in_the_header(tmp_path, monkeypatch):
    monkeypatch.setattr(names, "base_tag", lambda base_key: 16 * "0")
    save(make_store(tmp_path, hash_block=collide), "one", range(P), BlockHash(b"base"))
    fresh = make_store(tmp_path, hash_block=collide)
    assert load(fresh, range(P), BlockHash(b"other")) == b""
    assert fresh.cover(BlockHash(b"other"), range(5)) == ()  # by now the base is known
    assert fresh.stats().misses == {"other_text": 1}
    assert load(fresh, range(P), BlockHash(b"base")) == rows(range(P))


def test_rows_that_have_gone_since_they_were_seen_are_written_again(tmp_path):
    store = make_store(tmp_path)
    save(store, "chat", range(10))
    assert store.claim("chat", [(ROOT_KEY, tuple(range(20)))]) == [10]
    piece_files(tmp_path)[0].unlink()
    assert load(store, range(10)) == b""
    assert write(store, ROOT_KEY, range(20), 0, rows(range(20)))
    assert load(make_store(tmp_path), range(20)) == rows(range(20))


def test_write_of_rows_that_are_there_writes_nothing(tmp_path):
    store = make_store(tmp_path)
    save(store, "chat", range(20))
    before = store.stats().written_bytes
    assert write(store, ROOT_KEY, range(15), 0, rows(range(15)))
    assert store.stats().written_bytes == before


def test_a_trail_is_the_last_sequence_of_a_chat(tmp_path):
    store = make_store(tmp_path)
    assert store.load_trail("chat") is None
    store.save_trail("chat", range(10))
    store.save_trail("chat", (5, 2**31 - 1, -1))
    store.save_trail("empty", ())
    assert make_store(tmp_path).load_trail("chat") == (5, 2**31 - 1, -1)
    assert store.load_trail("empty") == ()
    other = make_store(tmp_path, namespace=b"other")
    assert other.load_trail("chat") is None
    (elsewhere,) = other.load_trails_elsewhere("chat")
    assert elsewhere.token_ids == (5, 2**31 - 1, -1)
    assert list(other.load_trails_elsewhere("third")) == []
    assert list(store.load_trails_elsewhere("chat")) == []
    other.set_budget(0)
    assert list(other.load_trails_elsewhere("chat")) == []


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"fingerprint": b"f2", "weights": b"w2"}, "other_model"),
        ({"fingerprint": b"f2", "weights": b"w2", "precision": b"int8"}, "other_model"),
        ({"weights": b"w2"}, "other_weights"),
        ({"weights": b"w2", "computing": b"torch", "precision": b"int8"}, "other_weights"),
        ({"computing": b"torch"}, "other_computing"),
        ({"fingerprint": b"f2", "computing": b"torch", "precision": b"int8"}, "other_computing"),
        ({"precision": b"int8"}, "other_precision"),
    ],
)
def test_a_trail_tells_why_what_was_kept_elsewhere_cannot_be_used(tmp_path, changed, difference):
    known = {"fingerprint": b"f", "weights": b"w", "computing": b"avx2", "precision": b"fp16"}
    here = make_store(tmp_path, maker=Maker.of(**known))
    there = make_store(tmp_path, namespace=b"other", maker=Maker.of(**{**known, **changed}))
    there.save_trail("chat", (1, 2, 3))
    assert list(here.load_trails_elsewhere("chat")) == [TrailElsewhere(difference, (1, 2, 3))]


@pytest.mark.parametrize("at", range(18 + 4 * 16 + 12))
def test_a_damaged_trail_is_none(tmp_path, at):
    store = make_store(tmp_path)
    store.save_trail("chat", (1, 2, 3))
    (path,) = tmp_path.rglob("*.trail")
    data = bytearray(path.read_bytes())
    assert len(data) == 18 + 4 * 16 + 12
    path.write_bytes(data[:at])
    assert store.load_trail("chat") is None
    data[at] ^= 1
    path.write_bytes(data)
    assert store.load_trail("chat") is None


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_files_are_private_whatever_the_umask(tmp_path, umask):
    root = tmp_path / "caches" / "kv"
    root.parent.mkdir()
    before = os.umask(umask)
    try:
        save_chain(make_store(root), "chat", range(40))
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}
    assert len(modes) > 8
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_files_are_private_also_where_folders_and_files_were_open_before(tmp_path):
    store = make_store(tmp_path)
    save_chain(store, "chat", range(40))
    folders = [path for path in [tmp_path, *tmp_path.rglob("*")] if path.is_dir()]
    for folder in folders:
        folder.chmod(0o777)
    (journal,) = tmp_path.rglob("*.own")
    (trail,) = tmp_path.rglob("*.trail")
    journal.chmod(0o666)
    trail.chmod(0o666)
    before = os.umask(0)
    try:
        save_chain(store, "chat", range(100))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in all_files(tmp_path)} == {0o600}


def test_names_tell_neither_text_nor_chat(tmp_path):
    store = make_store(tmp_path)
    save_chain(store, "my-secret-chat", range(40))
    files = [str(path.relative_to(tmp_path)) for path in all_files(tmp_path)]
    assert len(files) == 4
    assert not any("secret" in name for name in files)
    assert not any(b"secret" in path.read_bytes() for path in all_files(tmp_path))


@pytest.mark.parametrize(
    "name", ["aa-0-1-0000000000000000", "a-0-1-0000000000000000.kv", "aa-1-1-0000000000000000.kv"]
)
def test_other_names_are_not_those_of_pieces(name):
    assert names.parse_piece_name(name) is None


def test_a_store_that_is_not_open_or_off_does_nothing(tmp_path):
    store = make_store(tmp_path / "kv", budget=0)
    store.claim("chat", [(ROOT_KEY, tuple(range(4)))])
    assert not write(store, ROOT_KEY, range(4), 0, rows(range(4)))
    store.save_trail("chat", range(4))
    source = DiskSource(Piece(key_of(range(4)), 0, 4), 0, 4)
    assert store.read(source, ROOT_KEY, range(4)) is None
    assert store.cover(ROOT_KEY, range(4)) == ()
    assert store.load_trail("chat") is None
    assert store.stats().misses == {}
    assert not (tmp_path / "kv").exists()


def test_several_threads_write_read_and_evict_together(tmp_path):
    store = make_store(tmp_path, budget=12_000)
    errors: list[Exception] = []
    is_over = threading.Event()

    def follow(chat: int) -> None:
        try:
            while not is_over.is_set():
                num_saved(store, range(chat * 1000, chat * 1000 + 80))
        except Exception as error:  # noqa: BLE001  # told to the test
            errors.append(error)

    threads = [threading.Thread(target=follow, args=(chat,)) for chat in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(20):
        chat = turn % 5
        save_chain(store, f"chat {chat}", range(chat * 1000, chat * 1000 + 10 + 3 * turn))
        if turn % 7 == 6:
            store.forget(f"chat {chat}")
    is_over.set()
    for thread in threads:
        thread.join()
    assert errors == []
    stats = store.stats()
    assert stats.used_bytes == sum(path.stat().st_size for path in all_files(tmp_path)) <= 12_000
    assert set(stats.misses) <= {"missing", "over_budget"}


def test_the_clock_defaults_to_the_real_one(tmp_path):
    before = time.time()
    save(make_store(tmp_path), "chat", range(4))
    (path,) = piece_files(tmp_path)
    assert before - 1 <= path.stat().st_mtime <= time.time()


def test_a_times_file_is_renewed_at_most_once_a_minute(tmp_path):
    clock = Clock(1_000_000.0)
    store = make_store(tmp_path, clock=clock)
    save(store, "chat", range(4))
    (path,) = piece_files(tmp_path)
    first = path.stat().st_mtime
    clock.now += 59
    save(store, "chat", range(4))
    assert path.stat().st_mtime == first
    clock.now += 2
    save(store, "chat", range(4))
    assert path.stat().st_mtime == pytest.approx(1_000_061, abs=1e-3)


def test_rows_that_many_chats_share_are_found_after_a_restart(tmp_path):
    clock = Clock(time.time() - 1000.0)
    store = make_store(tmp_path, clock=clock)
    texts = [(*range(11), *(100 * chat + row for row in range(5))) for chat in range(1, 61)]
    for chat, ids in enumerate(texts):
        save(store, f"chat {chat}", ids)
        clock.now += 1.0
    # The first chat wrote all its rows, the others those that they do not share with it.
    assert sorted(path.name.split("-")[1] for path in piece_files(tmp_path)) == ["0"] + ["11"] * 59
    for ids in (texts[0], texts[1], texts[-1]):
        assert load(make_store(tmp_path), ids) == rows(ids)
        assert load(make_store(tmp_path), (*ids, 7)) == rows(ids)
