"""Clearing many files: nobody waits for the last of them, nobody finds one, and none is left for good."""

import os
import threading
import time
from pathlib import Path

import pytest

from inference.kv_cache.block import ROOT_KEY
from inference.kv_cache.disk import clearing
from inference.kv_cache.disk.files import remove_file
from inference.kv_cache.disk.store import clear_all, forget_all_but, used_bytes
from tests.inference.disk_stores import P, all_files, make_store, num_saved, save_chain

IDS = tuple(range(4 * P))


def wait_until_empty(root: Path) -> None:
    """Wait until a thread has removed what was set aside."""
    deadline = time.monotonic() + 30.0
    while list(root.iterdir()):
        assert time.monotonic() < deadline, sorted(root.rglob("*"))
        time.sleep(0.01)


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clearing, "MOST_AT_ONCE", 3)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, the thread that removes what was set aside waits."""
    opened = threading.Event()

    def wait_and_remove(path: str) -> bool:
        if threading.current_thread().name == "kv-clear":
            assert opened.wait(30.0)
        return remove_file(path)

    monkeypatch.setattr(clearing, "remove_file", wait_and_remove)
    return opened


@pytest.mark.parametrize("is_open", [True, False])
def test_many_files_are_gone_for_all_at_once_and_removed_soon(
    tmp_path: Path, few_at_once: None, gate: threading.Event, is_open: bool
) -> None:
    store = make_store(tmp_path)
    save_chain(store, "chat", IDS)
    size = used_bytes(tmp_path)
    num_files = len(all_files(tmp_path))
    assert size > 0
    assert (store.clear() if is_open else clear_all(tmp_path)) == size
    assert used_bytes(tmp_path) == 0
    assert make_store(tmp_path).cover(ROOT_KEY, IDS[:P]) == ()
    if is_open:
        assert store.cover(ROOT_KEY, IDS[:P]) == ()
        assert store.stats().used_bytes == 0
    set_aside = [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]
    assert [len(all_files(path)) for path in set_aside] == [num_files]
    assert save_chain(store, "other", IDS) == [True] * 4 or not is_open  # beside it
    gate.set()
    store.clear()
    wait_until_empty(tmp_path)


def test_few_files_are_removed_before_it_returns(tmp_path: Path, gate: threading.Event) -> None:
    store = make_store(tmp_path)
    save_chain(store, "chat", IDS)
    store.clear()
    assert list(tmp_path.iterdir()) == []


def test_where_a_folder_cannot_be_renamed_its_files_are_removed_at_once(
    tmp_path: Path, few_at_once: None, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path)
    save_chain(store, "chat", IDS)
    size = used_bytes(tmp_path)

    def refuse(old: str, new: str) -> None:
        raise PermissionError(old)

    monkeypatch.setattr(os, "rename", refuse)
    assert store.clear() == size
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["open", "clear", "start"])
def test_what_a_killed_program_left_set_aside_is_removed(tmp_path: Path, how: str) -> None:
    save_chain(make_store(tmp_path), "chat", IDS)
    (folder,) = tmp_path.iterdir()
    folder.rename(tmp_path / "999999999-7.tmp")
    if how == "open":
        store = make_store(tmp_path)
        assert num_saved(store, IDS) == 0
        store.clear()
    elif how == "clear":
        assert clear_all(tmp_path) == 0
    else:
        assert forget_all_but(tmp_path, []) == 0
    wait_until_empty(tmp_path)
