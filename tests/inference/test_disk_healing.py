"""What cannot be opened, or lies in the place of something else, heals in the same turn."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from inference.kv_cache.block import ROOT_KEY
from inference.kv_cache.tiers import DiskSource, Piece
from tests.inference.disk_stores import (
    Clock,
    key_of,
    load,
    make_store,
    num_saved,
    piece_files,
    rows,
    save,
    save_chain,
)

IDS = range(70, 75)
SOURCE = DiskSource(Piece(key_of(IDS), 0, 5), 0, 5)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The only piece."""
    save(make_store(tmp_path), "chat", IDS)
    (path,) = piece_files(tmp_path)
    return path


def refuse_to_open(monkeypatch: pytest.MonkeyPatch, path: Path, code: int) -> None:
    """Let the system not open one path, as long as the same file lies there."""
    real, inode = os.open, path.stat().st_ino
    os.link(path, path.parents[3] / "held")  # so that no other file gets its number

    def open_other(name: str, flags: int, mode: int = 0o777) -> int:
        if name == str(path) and path.exists() and path.stat().st_ino == inode:
            raise OSError(code, os.strerror(code))
        return real(name, flags, mode)

    monkeypatch.setattr(os, "open", open_other)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_read_for_which_the_system_lacks_something_keeps_the_file(
    tmp_path, saved, monkeypatch, code
):
    path = saved
    store = make_store(tmp_path)
    with monkeypatch.context() as patch:
        refuse_to_open(patch, path, code)
        assert store.read(SOURCE, ROOT_KEY, IDS) is None
    assert store.stats().misses == {"no_handle": 1}
    assert load(store, IDS) == rows(IDS)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EIO])
def test_a_piece_that_the_system_does_not_let_be_read_is_written_anew(tmp_path, monkeypatch, code):
    ids = range(100)
    save_chain(make_store(tmp_path), "chat", ids)
    store = make_store(tmp_path)
    (source,) = store.cover(key_of(range(32)), range(32, 64))
    (path,) = tmp_path.rglob(f"{source.piece.key.hex()}*")
    data = path.read_bytes()
    with monkeypatch.context() as patch:
        refuse_to_open(patch, path, code)
        assert num_saved(store, ids) == 32
        assert store.stats().misses == {"unreadable": 1}
        assert save_chain(store, "chat", ids) == [True] * 4
        assert num_saved(store, ids) == 100
    assert path.read_bytes() == data
    assert store.stats().misses == {"unreadable": 1}
    assert store.stats().problem == ""
    assert num_saved(make_store(tmp_path), ids) == 100


def test_a_piece_that_can_be_neither_read_nor_removed_is_not_offered_again(
    tmp_path, saved, monkeypatch
):
    path, data = saved, saved.read_bytes()
    store = make_store(tmp_path)
    with monkeypatch.context() as patch:
        refuse_to_open(patch, path, errno.EACCES)
        for name in ("unlink", "rmdir", "rename"):
            patch.setattr(os, name, lambda *args: refuse_all())
        assert load(store, IDS) == b""
        assert store.cover(ROOT_KEY, IDS) == ()
        assert path.read_bytes() == data
        save(store, "chat", IDS)  # the folder is ours: a new file takes its place
        assert load(store, IDS) == rows(IDS)
    assert store.stats().misses == {"unreadable": 1}


def refuse_all() -> None:
    raise PermissionError(errno.EACCES, "no")


@pytest.mark.skipif(os.name != "posix", reason="sets permissions")
def test_permissions_that_somebody_took_are_given_back(tmp_path, saved, monkeypatch):
    path = saved
    store = make_store(tmp_path)
    files = [path, *(tmp_path).rglob("*.own")]
    real = os.open

    def as_a_person(name: str, flags: int, mode: int = 0o777) -> int:
        """For the system's manager, permissions are no hindrance."""
        if os.path.isfile(name) and os.stat(name).st_mode & 0o600 != 0o600:
            refuse_all()
        return real(name, flags, mode)

    monkeypatch.setattr(os, "open", as_a_person)
    for each in files:
        each.chmod(0)
    assert load(store, IDS) == rows(IDS)
    save(store, "chat", range(70, 78))
    late = Clock(os.stat(path).st_mtime + 10_000)
    assert load(make_store(tmp_path, clock=late), range(70, 78)) == rows(range(70, 78))
    assert len(piece_files(tmp_path)) == 2  # both have an owner
    assert [each.stat().st_mode & 0o777 for each in files] == [0o600, 0o600]
    assert store.stats().misses == {}


@pytest.mark.skipif(os.name != "posix", reason="sets permissions")
@pytest.mark.parametrize("name", ["blocks", "chats", "", "fan"])
def test_a_folder_that_somebody_closed_is_opened_again(tmp_path, monkeypatch, name):
    store = make_store(tmp_path)
    save_chain(store, "chat", range(100))
    (namespace,) = tmp_path.iterdir()
    fan = namespace / "blocks" / key_of(range(32)).hex()[:2]
    folder = fan if name == "fan" else namespace / name
    folder.chmod(0)
    real_open, real_access, real_replace = os.open, os.access, os.replace

    def is_closed(path: str) -> bool:
        """As it is for all but the system's manager."""
        return folder.stat().st_mode & 0o700 == 0 and folder in (Path(path), *Path(path).parents)

    def open_as_a_person(path: str, flags: int, mode: int = 0o777) -> int:
        if is_closed(path):
            refuse_all()
        return real_open(path, flags, mode)

    def replace_as_a_person(source: str, target: str) -> None:
        if is_closed(source) or is_closed(target):
            refuse_all()
        real_replace(source, target)

    monkeypatch.setattr(os, "open", open_as_a_person)
    monkeypatch.setattr(os, "replace", replace_as_a_person)
    monkeypatch.setattr(
        os, "access", lambda path, how: not is_closed(path) and real_access(path, how)
    )
    num_saved(store, range(100))
    assert save_chain(store, "chat", range(110)) == [True] * 4
    assert store.stats().problem == ""
    assert num_saved(store, range(110)) == 110
    assert num_saved(make_store(tmp_path), range(110)) == 110
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("when", ["open", "closed"])
@pytest.mark.parametrize("pattern", ["*.kv", "*.own", "*.trail"])
def test_a_folder_in_the_place_of_a_file_gives_way_in_the_same_turn(
    tmp_path, pattern, when, is_full
):
    ids = range(100)
    store = make_store(tmp_path)
    save_chain(store, "chat", ids)
    for path in list(tmp_path.rglob(pattern)):
        path.unlink()
        path.mkdir()
        if is_full:
            (path / "of somebody").write_text("mine")
    if when == "closed":
        store = make_store(tmp_path)
    expected = 0 if pattern == "*.kv" else 100
    assert num_saved(store, ids) == expected
    assert save_chain(store, "chat", range(110)) == [True] * 4
    assert store.stats().problem == ""
    assert num_saved(store, range(110)) == 110
    assert store.load_trail("chat") == tuple(range(110))
    late = Clock(os.stat(tmp_path).st_mtime + 10_000)
    assert num_saved(make_store(tmp_path, clock=late), range(110)) == 110
    num_kept = len([path for path in tmp_path.rglob("of somebody") if path.read_text() == "mine"])
    assert bool(num_kept) == is_full


@pytest.mark.parametrize("name", ["blocks", "chats", "", "fan"])
def test_a_file_in_the_place_of_a_folder_gives_way(tmp_path, name):
    store = make_store(tmp_path)
    save_chain(store, "chat", range(100))
    (namespace,) = tmp_path.iterdir()
    folder = piece_files(tmp_path)[0].parent if name == "fan" else namespace / name
    shutil.rmtree(folder)
    folder.write_text("in the way")
    num_saved(store, range(100))
    assert save_chain(store, "chat", range(100)) == [True] * 4
    assert store.stats().problem == ""
    assert num_saved(make_store(tmp_path), range(100)) == 100


@pytest.mark.parametrize("when", ["open", "closed"])
@pytest.mark.parametrize("pattern", ["*.own", "*.trail"])
def test_a_file_that_is_too_large_for_a_journal_or_trail_gives_way_and_is_never_read(
    tmp_path, pattern, when
):
    store = make_store(tmp_path)
    save_chain(store, "chat", range(100))
    paths = list(tmp_path.rglob(pattern))
    assert paths
    for path in paths:
        os.truncate(path, 2**42)  # no memory holds it, and the file system keeps no byte of it
    if when == "closed":
        store = make_store(tmp_path)
    assert num_saved(store, range(100)) == 100
    assert save_chain(store, "chat", range(110)) == [True] * 4
    assert store.stats().problem == ""
    assert store.load_trail("chat") == tuple(range(110))
    late = Clock(os.stat(tmp_path).st_mtime + 10_000)
    assert num_saved(make_store(tmp_path, clock=late), range(110)) == 110
    assert all(path.stat().st_size < 2**20 for path in tmp_path.rglob(pattern))
