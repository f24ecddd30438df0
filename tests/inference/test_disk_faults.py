"""Whatever is wrong with a file or the folder is a clean miss, counted, and never a wrong row."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from inference.kv_cache.block import ROOT_KEY, BlockHash
from inference.kv_cache.disk.format import Miss, pack_header, pack_sum
from inference.kv_cache.disk.piece_file import PieceReader
from inference.kv_cache.tiers import DiskSource, Piece
from tests.inference.disk_stores import (
    NAMESPACE,
    ROW,
    P,
    key_of,
    load,
    make_store,
    piece_files,
    rows,
    save,
)

IDS = range(70, 75)
SOURCE = DiskSource(Piece(key_of(IDS), 0, 5), 0, 5)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, bytes]:
    """The only piece and what is in it."""
    save(make_store(tmp_path), "chat", IDS)
    (path,) = piece_files(tmp_path)
    return path, path.read_bytes()


def misses_after(root: Path) -> Mapping[Miss, int]:
    """Read the piece; it must be a miss, and the same for somebody who looks for other rows."""
    store = make_store(root)
    assert store.read(SOURCE, ROOT_KEY, IDS) is None
    assert store.cover(ROOT_KEY, IDS) == ()
    return store.stats().misses


def test_each_flipped_byte_is_a_miss_and_removes_the_file(tmp_path, saved):
    path, data = saved
    reasons = set()
    for at in range(len(data)):
        for bit in (0, 7):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            misses = misses_after(tmp_path)
            assert sum(misses.values()) == 1
            reasons |= set(misses)
            assert not path.exists()
    assert reasons == {"not_a_piece", "other_version", "other_model", "truncated", "damaged"}


def test_each_flipped_byte_of_a_header_is_no_rows_to_a_text_that_parts(tmp_path, saved):
    path, data = saved
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 16
        path.write_bytes(damaged)
        store = make_store(tmp_path)
        assert load(store, [70, 71, 9]) == b""
        assert not path.exists()


def test_each_length_but_the_right_one_is_a_miss(tmp_path, saved):
    path, data = saved
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert misses_after(tmp_path) == {"truncated": 1}
        assert not path.exists()
    path.write_bytes(data + b"\0")
    assert misses_after(tmp_path) == {"truncated": 1}
    path.write_bytes(data)
    assert load(make_store(tmp_path), IDS) == rows(IDS)


@pytest.mark.parametrize("length", [0, 100, 148])
def test_a_file_of_the_wrong_length_is_written_anew(tmp_path, saved, length):
    path, data = saved
    path.write_bytes((data * 2)[:length])
    store = make_store(tmp_path)
    save(store, "chat", IDS)
    assert path.read_bytes() == data
    assert load(store, IDS) == rows(IDS)


def other_piece(
    *,
    namespace: bytes = NAMESPACE,
    base: BlockHash = ROOT_KEY,
    ids: range = IDS,
    start: int = 0,
    row: int = ROW,
) -> bytes:
    payload = bytes((len(ids) - start) * row)
    return pack_header(namespace, ((1, row),), base, ids, start) + payload + pack_sum(payload)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"GGUF" + bytes(200), "not_a_piece"),
        (b"QuireKV\n\x01\x00" + bytes(300), "other_version"),
        (other_piece(namespace=b"a longer name of another model"), "other_model"),
        (other_piece(namespace=b"x"), "other_model"),
        (other_piece(ids=range(5)), "wrong_name"),
        (other_piece(base=key_of(range(P))), "wrong_name"),
        (other_piece(start=1), "wrong_name"),
        (other_piece(ids=range(70, 74)), "wrong_name"),
        (other_piece(row=ROW + 4), "truncated"),
    ],
)
def test_a_file_that_belongs_elsewhere_is_a_counted_miss(tmp_path, saved, data, reason):
    path, _ = saved
    path.write_bytes(data)
    assert misses_after(tmp_path) == {reason: 1}
    assert not path.exists()


@pytest.mark.parametrize("part", ["header", "payload"])
def test_a_file_that_ends_while_it_is_read_is_a_miss(tmp_path, saved, monkeypatch, part):
    path, data = saved
    store = make_store(tmp_path)
    real = os.fstat

    def cut_after(handle: int) -> os.stat_result:
        status = real(handle)
        os.truncate(path, 50 if part == "header" else len(data) - 1)
        return status

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", cut_after)
        assert store.read(SOURCE, ROOT_KEY, IDS) is None
    assert store.stats().misses == {"truncated": 1}


def test_a_piece_that_is_gone_when_its_ids_are_wanted_is_missing(tmp_path, saved):
    store = make_store(tmp_path)
    saved[0].unlink()
    assert store.cover(ROOT_KEY, [70, 9]) == ()
    assert store.stats().misses == {"missing": 1}
    assert store.stats().num_pieces == 0


def test_a_piece_that_is_removed_while_it_is_read_stays_removed(tmp_path, saved, monkeypatch):
    store = make_store(tmp_path)
    read = PieceReader.read

    def clear_and_read(*args):
        found = read(*args)
        store.clear()
        return found

    monkeypatch.setattr(PieceReader, "read", clear_and_read)
    assert bytes(store.read(SOURCE, ROOT_KEY, IDS) or b"") == rows(IDS)
    assert store.cover(ROOT_KEY, IDS) == ()
    assert store.stats().used_bytes == 0


def test_a_file_that_is_gone_is_missing_once(tmp_path, saved):
    store = make_store(tmp_path)
    saved[0].unlink()
    assert store.cover(ROOT_KEY, IDS) == (SOURCE,)
    assert store.read(SOURCE, ROOT_KEY, IDS) is None
    assert store.cover(ROOT_KEY, IDS) == ()
    assert store.stats().misses == {"missing": 1}
    assert store.stats().num_pieces == 0


@pytest.mark.skipif(os.name != "posix", reason="makes links")
@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_something_else_in_the_place_of_a_piece_is_a_miss(tmp_path, saved, kind):
    path, data = saved
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(data)
    store = make_store(tmp_path)
    path.unlink()
    if kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert store.read(SOURCE, ROOT_KEY, IDS) is None
    assert store.stats().misses == {"not_a_piece": 1}
    assert store.cover(ROOT_KEY, IDS) == ()
    assert not os.path.lexists(path)
    assert elsewhere.read_bytes() == data
