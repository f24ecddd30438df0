"""Whatever is wrong with the folder or the disk: whole pieces or none, a plain word, no exception."""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from inference.kv_cache.block import ROOT_KEY
from inference.kv_cache.disk import files, names
from inference.kv_cache.disk.store import clear_all, forget_conversation, used_bytes
from inference.kv_cache.disk.writer import FULL
from tests.inference.disk_stores import (
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

IDS = range(70, 75)


class FakeEntry:
    """What a scan may meet: an entry that is gone, or a junction of Windows."""

    name, path = "4194999-1.tmp", "nowhere"

    def __init__(self, attributes: int | None) -> None:
        self.attributes = attributes

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        return True

    def stat(self, *, follow_symlinks: bool) -> SimpleNamespace:
        if self.attributes is None:
            raise FileNotFoundError
        return SimpleNamespace(st_file_attributes=self.attributes, st_mtime=0.0)


def test_an_entry_that_is_gone_or_leads_elsewhere_is_no_folder():
    kinds = (None, 0, stat.FILE_ATTRIBUTE_REPARSE_POINT)
    assert [files.is_folder(FakeEntry(kind)) for kind in kinds] == [False, True, False]  # type: ignore[arg-type]  # enough of an entry


def test_entries_that_go_during_a_scan_are_passed_over(tmp_path, monkeypatch):
    save_chain(make_store(tmp_path), "chat", IDS)
    real = files.entries

    def with_one_gone(path: str) -> Iterator[os.DirEntry[str]]:
        yield from real(path)
        yield FakeEntry(None)  # type: ignore[misc]  # enough of an entry

    monkeypatch.setattr("inference.kv_cache.disk.root.entries", with_one_gone)
    assert num_saved(make_store(tmp_path), IDS) == 5


@pytest.mark.skipif(os.name != "posix", reason="makes links")
def test_links_among_journals_and_blocks_are_not_followed_without_a_store(tmp_path):
    root, elsewhere = tmp_path / "kv", tmp_path / "elsewhere"
    save_chain(make_store(root), "chat", IDS)
    namespace = root / names.namespace_folder(NAMESPACE)
    (namespace / "chats" / "0.own").symlink_to(elsewhere)
    shutil.move(namespace / "blocks", elsewhere)
    (namespace / "blocks").symlink_to(elsewhere, target_is_directory=True)
    (root / ("0" * 32)).symlink_to(elsewhere, target_is_directory=True)
    small = sum(path.stat().st_size for path in all_files(namespace / "chats"))
    assert used_bytes(root) == small
    assert forget_conversation(root, "chat") == small
    shutil.rmtree(namespace / "chats")
    (namespace / "chats").symlink_to(elsewhere, target_is_directory=True)
    assert used_bytes(root) == 0
    assert clear_all(root) == 0
    assert list(root.iterdir()) == []
    assert len(piece_files(elsewhere)) == 1


@pytest.mark.skipif(os.name != "posix", reason="makes links")
@pytest.mark.parametrize("level", ["namespace", "blocks", "chats", "fan"])
def test_links_to_folders_elsewhere_are_not_followed(tmp_path, level):
    root, elsewhere = tmp_path / "kv", tmp_path / "elsewhere"
    save_chain(make_store(root), "chat", IDS)
    namespace = root / names.namespace_folder(NAMESPACE)
    folder = {
        "namespace": namespace,
        "blocks": namespace / "blocks",
        "chats": namespace / "chats",
        "fan": piece_files(root)[0].parent,
    }[level]
    shutil.move(folder, elsewhere)
    folder.symlink_to(elsewhere, target_is_directory=True)
    content = {path: path.read_bytes() for path in all_files(elsewhere)}
    assert content
    clock = Clock(os.stat(elsewhere).st_mtime + 10_000)  # orphans would go
    store = make_store(root, clock=clock)
    store.forget("chat")
    store.clear()
    assert {path: path.read_bytes() for path in all_files(elsewhere)} == content
    assert make_store(root).stats().num_pieces == 0
    assert save_chain(make_store(root), "chat", IDS) == [True]
    assert {path: path.read_bytes() for path in all_files(elsewhere)} == content or level == "fan"


def test_a_root_that_is_a_link_is_used(tmp_path):
    (tmp_path / "big disk").mkdir()
    (tmp_path / "kv").symlink_to(tmp_path / "big disk", target_is_directory=True)
    save_chain(make_store(tmp_path / "kv"), "chat", IDS)
    assert num_saved(make_store(tmp_path / "kv"), IDS) == 5
    assert len(all_files(tmp_path / "big disk")) == 3


def test_a_file_in_the_place_of_the_folder_turns_writing_off_until_it_is_gone(tmp_path):
    root = tmp_path / "kv"
    root.write_text("mine")
    clock = Clock(1_000_000.0)
    store = make_store(root, clock=clock)
    assert store.stats().problem == (
        f"The cache folder {root} cannot be written (File exists), so chats are not kept beyond memory."
        " Check its rights and its disk."
    )
    assert store.cover(ROOT_KEY, IDS) == ()
    assert save_chain(store, "chat", IDS) == [False]
    assert store.stats().misses == {"not_writable": 1}
    assert (store.forget("chat"), store.clear()) == (0, 0)
    assert root.read_text() == "mine"
    root.unlink()
    clock.now += 61
    assert save_chain(store, "chat", IDS) == [True]
    assert store.stats().problem == ""
    assert num_saved(store, IDS) == 5


def test_a_folder_deleted_while_open_is_made_again(tmp_path):
    root = tmp_path / "kv"
    store = make_store(root)
    save_chain(store, "chat", range(40))
    shutil.rmtree(root)
    assert num_saved(store, range(40)) == 0
    assert save_chain(store, "chat", range(70)) == [True] * 3
    assert num_saved(store, range(70)) == 70
    clock = Clock(os.stat(root).st_mtime + 10_000)
    assert num_saved(make_store(root, clock=clock), range(70)) == 70  # they have an owner


@pytest.mark.parametrize("number", range(8))
def test_any_files_deleted_while_open_are_misses(tmp_path, number):
    store = make_store(tmp_path)
    save_chain(store, "chat", range(100))
    found = all_files(tmp_path)
    for at, path in enumerate(found):
        if hash((number, at)) % 3 == 0:
            path.unlink()
    assert num_saved(store, range(100)) in (0, 32, 64, 96, 100)
    assert save_chain(store, "chat", range(100)) == [True] * 4
    assert num_saved(store, range(100)) == 100
    assert num_saved(make_store(tmp_path), range(100)) == 100


class Faults:
    """Lets the system's call number `at` fail, and those after it as long as `lasting`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, at: int, code: int, *, lasting: bool
    ) -> None:
        self.calls = 0
        self.at, self.code, self.lasting = at, code, lasting
        # os.unlink is not among them: a disk that is full lets files go.
        for name in ("open", "write", "replace", "mkdir", "utime", "chmod"):
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            self.calls += 1
            if self.calls == self.at or (self.lasting and self.calls > self.at):
                raise OSError(self.code, os.strerror(self.code))
            return real(*args, **more)

        return call


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.ENOENT])
def test_each_call_that_fails_while_saving_leaves_whole_pieces(tmp_path, code, lasting):
    at = 0
    while True:
        at += 1
        root = tmp_path / str(at)
        clock = Clock(1_000_000.0)
        store = make_store(root, clock=clock)
        with pytest.MonkeyPatch.context() as monkeypatch:
            faults = Faults(monkeypatch, at, code, lasting=lasting)
            saved = save_chain(store, "chat", range(70))
        if faults.calls < at:
            break
        assert not list(root.rglob("*.tmp"))
        assert num_saved(store, range(70)) == min(70, P * [*saved, False].index(False))
        assert store.stats().used_bytes == sum(path.stat().st_size for path in all_files(root))
        # What could not be noted as owned was not written.
        late = Clock(os.stat(root).st_mtime + 10_000)
        assert num_saved(make_store(root, clock=late), range(70)) == num_saved(store, range(70))
        clock.now += 61
        assert save_chain(store, "chat", range(70)) == [True] * 3
        assert store.stats().problem == ""
        assert num_saved(make_store(root), range(70)) == 70
    assert at > 15
    assert saved == [True] * 3


def test_a_full_disk_is_left_alone_for_a_minute(tmp_path):
    clock = Clock(1_000_000.0)
    store = make_store(tmp_path, clock=clock)
    store.claim("chat", [(ROOT_KEY, tuple(IDS))])
    with pytest.MonkeyPatch.context() as monkeypatch:
        faults = Faults(monkeypatch, 1, errno.ENOSPC, lasting=True)
        assert not write(store, ROOT_KEY, IDS, 0, rows(IDS))
        tried = faults.calls
        assert tried > 0
        assert not write(store, ROOT_KEY, IDS, 0, rows(IDS))
        store.save_trail("chat", IDS)
        assert faults.calls == tried
    assert store.stats().problem == FULL
    assert store.stats().misses == {"no_space": 2}
    assert store.room_tokens == 0
    clock.now += 59.9
    assert not write(store, ROOT_KEY, IDS, 0, rows(IDS))
    clock.now += 0.2
    assert write(store, ROOT_KEY, IDS, 0, rows(IDS))
    assert store.stats().problem == ""
    assert store.room_tokens == 10**9 // ROW


@pytest.mark.parametrize("fault", ["full", "closed"])
def test_a_disk_that_takes_nothing_has_no_room_before_anything_is_written(
    tmp_path, monkeypatch, fault
):
    store = make_store(tmp_path / "kv")
    assert store.room_tokens == 10**9 // ROW
    shutil.rmtree(tmp_path / "kv")  # it is made again when something is written
    assert store.room_tokens == 10**9 // ROW
    (tmp_path / "kv").mkdir()
    if fault == "full":
        free = frame_bytes(P) + P * ROW
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
        assert store.room_tokens == 10**9 // ROW
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free - 1))
    else:
        monkeypatch.setattr(os, "access", lambda path, how: False)
    assert store.room_tokens == 0
    store.set_budget(0)
    assert store.room_tokens is None


def test_a_read_only_folder_is_read_and_a_problem(tmp_path):
    save(make_store(tmp_path), "chat", IDS)
    with pytest.MonkeyPatch.context() as monkeypatch:

        def refuse(*args, **more):
            raise OSError(errno.EROFS, "read-only")

        for name in ("write", "replace", "mkdir", "utime", "chmod", "unlink", "makedirs", "rmdir"):
            monkeypatch.setattr(os, name, refuse)
        store = make_store(tmp_path)
        assert load(store, IDS) == rows(IDS)
        store.claim("chat", [(ROOT_KEY, tuple(range(9)))])
        assert not write(store, ROOT_KEY, range(9), 0, rows(range(9)))
        assert store.stats().problem.startswith(
            f"The cache folder {tmp_path} cannot be written (read-only), so"
        )
        assert store.stats().misses == {"not_writable": 1}
        assert store.forget("chat") == 0
        store.clear()
    assert load(make_store(tmp_path), IDS) == rows(IDS)


def test_writes_in_small_steps_are_whole(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:7]))
    store = make_store(tmp_path)
    assert save_chain(store, "chat", range(40)) == [True, True]
    assert num_saved(make_store(tmp_path), range(40)) == 40
