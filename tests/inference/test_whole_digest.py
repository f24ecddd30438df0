"""The digest of all bytes of the weights, and what is remembered of it."""

import errno
import hashlib
import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from inference.errors import ModelFileError
from inference.formats import whole_digest
from inference.formats.whole_digest import MAX_REMEMBERED, WeightFiles

PIECE = 64
LONG_AGO = time.time() - 1000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pieces of some bytes; the paths whose pieces were read."""
    read: list[str] = []
    real = whole_digest._piece_digest

    def note(stamp: whole_digest.Stamp, start: int, size: int) -> bytes:
        read.append(Path(stamp.path).name)
        return real(stamp, start, size)

    monkeypatch.setattr(whole_digest, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(whole_digest, "READ_BYTES", 10)
    monkeypatch.setattr(whole_digest, "_piece_digest", note)
    # A change sets the time of the file's entry to now, which nobody can set back.
    monkeypatch.setattr(whole_digest, "SETTLED_NS", -(10**12))
    return read


def write(path: Path, data: bytes, when: float = LONG_AGO) -> Path:
    path.write_bytes(data)
    os.utime(path, (when, when))
    return path


def digest(path: Path, folder: Path) -> bytes:
    return WeightFiles.seen_at(path).digest(folder)


def test_digest_is_that_of_the_pieces_in_order(tmp_path: Path) -> None:
    data = os.urandom(2 * PIECE + 5)
    pieces = [hashlib.blake2b(data[at : at + PIECE], digest_size=32) for at in (0, 64, 128)]
    joined = b"".join(piece.digest() for piece in pieces)
    whole = hashlib.blake2b(joined, digest_size=32, person=b"quire-whole-1").digest()
    path = write(tmp_path / "a.gguf", data)
    expected = hashlib.blake2b(whole, digest_size=32).digest()
    assert digest(path, tmp_path / "1") == expected
    assert digest(path, tmp_path / "1") == expected
    assert digest(write(tmp_path / "copy.gguf", data), tmp_path / "2") == expected


def test_each_byte_and_the_length_count(tmp_path: Path) -> None:
    data = bytes(3 * PIECE)
    variants = [data, data[:-1], data + b"\0", b""]
    variants += [data[:at] + b"\1" + data[at + 1 :] for at in range(len(data))]
    path = tmp_path / "a.gguf"
    found = {digest(write(path, each, LONG_AGO + n), tmp_path) for n, each in enumerate(variants)}
    assert len(found) == len(variants)


def test_folder_has_all_its_safetensors_and_nothing_else(
    tmp_path: Path, small_pieces: list[str]
) -> None:
    folder, cache = tmp_path / "model", tmp_path / "kv"
    folder.mkdir()
    (folder / "nested.safetensors").mkdir()
    write(folder / "config.json", b"{}")
    write(folder / "b.safetensors", b"second")
    first = write(folder / "a.safetensors", b"first")
    before = digest(folder, cache)
    assert sorted(small_pieces) == ["a.safetensors", "b.safetensors"]
    small_pieces.clear()
    write(folder / "config.json", b"{ }")
    assert digest(folder, cache) == before
    assert small_pieces == []
    write(first, b"other", LONG_AGO + 1)
    assert digest(folder, cache) != before
    assert small_pieces == ["a.safetensors"]


@pytest.mark.skipif(os.name != "posix", reason="Windows has no time of the entry")
def test_file_is_read_once_as_long_as_its_stamp_holds(
    tmp_path: Path, small_pieces: list[str]
) -> None:
    path, cache = write(tmp_path / "a.gguf", b"weights"), tmp_path / "new" / "kv"
    first = digest(path, cache)
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    assert digest(path, cache) == digest(link, cache) == first
    assert len(small_pieces) == 1
    (memory,) = cache.iterdir()
    assert stat.S_IMODE(memory.stat().st_mode) == 0o600
    write(tmp_path / "b.gguf", b"Weights")
    os.replace(tmp_path / "b.gguf", path)  # same length, same time, another file
    assert digest(path, cache) != first
    path.write_bytes(b"WEIGHTS")
    changed = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == changed:
        os.utime(path, (LONG_AGO, LONG_AGO))  # same file too: only its entry changed
    assert digest(path, cache) not in (first, b"")
    assert len(small_pieces) == 3


@pytest.mark.parametrize("part", ["mtime_ns", "ctime_ns"])
def test_file_that_changed_a_moment_ago_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(whole_digest, "SETTLED_NS", 2 * 10**9)
    path = write(tmp_path / "a.gguf", b"weights")
    (stamp,) = WeightFiles.seen_at(path).stamps
    now = max(stamp.mtime_ns, stamp.ctime_ns) + 2 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: now - 1)
    digest(path, tmp_path / "kv")
    assert not (tmp_path / "kv").exists()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    digest(path, tmp_path / "kv")
    assert (tmp_path / "kv" / "weights.json").exists()
    values = {"mtime_ns": 0, "ctime_ns": 0, part: 5 * 10**9}
    stamp = whole_digest.Stamp("a", 1, values["mtime_ns"], values["ctime_ns"], 1)
    assert not whole_digest._is_settled(stamp, 7 * 10**9 - 1)
    assert whole_digest._is_settled(stamp, 7 * 10**9)


def test_memory_is_bounded_and_keeps_the_latest(tmp_path: Path, small_pieces: list[str]) -> None:
    cache = tmp_path / "kv"
    paths = [write(tmp_path / f"{n}.gguf", b"%d" % n) for n in range(MAX_REMEMBERED + 3)]
    for path in (*paths, paths[-1]):
        digest(path, cache)
    assert len(small_pieces) == len(paths)
    body = (cache / "weights.json").read_bytes().split(b"\n", 1)[1]
    assert len(json.loads(body)) == MAX_REMEMBERED
    small_pieces.clear()
    digest(paths[3], cache)
    assert small_pieces == []
    digest(paths[2], cache)
    assert small_pieces == ["2.gguf"]


def test_each_damage_of_the_memory_is_noticed(tmp_path: Path, small_pieces: list[str]) -> None:
    path, cache = write(tmp_path / "a.gguf", b"weights"), tmp_path / "kv"
    expected = digest(path, cache)
    memory = cache / "weights.json"
    whole = memory.read_bytes()
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    body = b'[[["a", 1], 7], 8]'
    damaged += [b"", whole[:-1], whole_digest._checksum(body) + b"\n" + body]
    for data in damaged:
        memory.write_bytes(data)
        small_pieces.clear()
        assert digest(path, cache) == expected
        assert small_pieces == ["a.gguf"]
        assert memory.read_bytes() == whole


def test_memory_that_cannot_be_written_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.gguf", b"weights")
    (tmp_path / "file").write_text("in the way")
    expected = digest(path, tmp_path / "file")
    cache = tmp_path / "kv"
    (cache / "weights.json").mkdir(parents=True)
    assert digest(path, cache) == expected
    assert caplog.text.count("could not be remembered") == 2
    assert [each.name for each in cache.iterdir()] == ["weights.json"]


def test_file_that_is_not_the_one_that_was_loaded_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", b"weights")
    seen = WeightFiles.seen_at(path)
    write(path, b"WEIGHTS", LONG_AGO + 1)
    with pytest.raises(ModelFileError, match="changed while it was opened"):
        seen.digest(tmp_path / "kv")
    path.unlink()
    with pytest.raises(ModelFileError, match="changed while it was opened"):
        seen.digest(tmp_path / "kv")


@pytest.mark.parametrize("change", ["longer", "cut"])
def test_file_that_changes_while_it_is_read_is_refused_and_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = write(tmp_path / "a.gguf", bytes(5 * PIECE))
    seen = WeightFiles.seen_at(path)
    real = whole_digest._piece_digest

    def change_then_read(stamp: whole_digest.Stamp, start: int, size: int) -> bytes:
        os.truncate(path, 3 if change == "cut" else 900)
        return real(stamp, start, size)

    monkeypatch.setattr(whole_digest, "_piece_digest", change_then_read)
    with pytest.raises(ModelFileError, match="changed while it was opened"):
        seen.digest(tmp_path / "kv")
    assert not (tmp_path / "kv").exists()


def test_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.gguf", b"weights")
    seen = WeightFiles.seen_at(path)

    def fail(stamp: whole_digest.Stamp, start: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(whole_digest, "_piece_digest", fail)
    with pytest.raises(ModelFileError, match="Input/output error") as caught:
        seen.digest(tmp_path / "kv")
    assert caught.value.path == path


def test_only_much_to_read_is_reported_and_can_be_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = write(tmp_path / "a.gguf", bytes(4 * PIECE)), tmp_path / "kv"
    told: list[float] = []
    monkeypatch.setattr(whole_digest, "SLOW_BYTES", 4 * PIECE + 1)
    WeightFiles.seen_at(path).digest(tmp_path / "1", told.append)
    assert told == []
    monkeypatch.setattr(whole_digest, "SLOW_BYTES", 4 * PIECE)

    def break_off(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        WeightFiles.seen_at(path).digest(cache, break_off)
    assert not cache.exists()
    assert not [each for each in threading.enumerate() if each.name.startswith("digest")]
    WeightFiles.seen_at(path).digest(cache, told.append)
    assert told == [0.25, 0.5, 0.75, 1.0]
    WeightFiles.seen_at(path).digest(cache, told.append)
    assert len(told) == 4


def test_nothing_there_has_a_digest_too(tmp_path: Path) -> None:
    empty = hashlib.blake2b(digest_size=32).digest()
    assert digest(tmp_path / "none", tmp_path / "kv") == empty
    assert not (tmp_path / "kv").exists()
