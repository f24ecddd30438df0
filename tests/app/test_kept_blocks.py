import logging
from pathlib import Path

import pytest

from app import kept_blocks
from app.kept_blocks import forget_all, forget_chat, keep_only
from inference.config import EngineConfig
from inference.kv_cache.block import ROOT_KEY
from inference.kv_cache.disk.store import DiskStore, used_bytes
from tests.app.fake_engine import FakeEngine, FakeScript
from tests.inference.disk_stores import write

ROW_BYTES = 8


def save(folder: Path, namespace: bytes, chat: str, ids: tuple[int, ...]) -> None:
    store = DiskStore(
        folder, namespace=namespace, block_size=4, row_layout=((1, ROW_BYTES),), budget_bytes=2**20
    )
    store.open()
    store.claim(chat, [(ROOT_KEY, ids)])
    assert write(store, ROOT_KEY, ids, 0, bytes(4 * ROW_BYTES))


def test_open_engine_forgets_by_itself(tmp_path: Path) -> None:
    script = FakeScript(freed_bytes=7)
    engine = FakeEngine("/m", EngineConfig(), lambda _: None, script=script)
    assert forget_chat(engine, tmp_path, "c") == 7
    assert forget_all(engine, tmp_path) == 7
    assert engine.calls == [("forget", "c"), ("clear_cache",)]


def test_files_are_forgotten_without_an_engine(tmp_path: Path) -> None:
    for namespace in (b"one model", b"another model"):
        save(tmp_path, namespace, "c", (1, 2, 3, 4))
        save(tmp_path, namespace, "other", (5, 6, 7, 8))
    before = used_bytes(tmp_path)
    freed = forget_chat(None, tmp_path, "c")
    assert freed > 2 * 4 * ROW_BYTES
    assert used_bytes(tmp_path) == before - freed
    assert forget_chat(None, tmp_path, "c") == 0
    assert forget_all(None, tmp_path) == before - freed
    assert used_bytes(tmp_path) == 0


def test_only_known_chats_are_kept(tmp_path: Path) -> None:
    save(tmp_path, b"one model", "c", (1, 2, 3, 4))
    save(tmp_path, b"one model", "deleted", (5, 6, 7, 8))
    before = used_bytes(tmp_path)
    freed = keep_only(tmp_path, ["c", "never used"])
    assert freed > 4 * ROW_BYTES
    assert used_bytes(tmp_path) == before - freed
    assert keep_only(tmp_path, ["c"]) == 0
    assert keep_only(None, []) == 0


def test_nothing_is_freed_where_nothing_is(tmp_path: Path) -> None:
    assert forget_chat(None, None, "c") == 0
    assert forget_all(None, None) == 0
    assert forget_chat(None, tmp_path / "none", "c") == 0
    assert forget_all(None, tmp_path / "none") == 0


def test_folder_that_cannot_be_used_is_told_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(folder: Path) -> int:
        raise PermissionError("no rights")

    monkeypatch.setattr(kept_blocks, "clear_all", refuse)
    with caplog.at_level(logging.WARNING):
        assert forget_all(None, tmp_path) == 0
    assert "no rights" in caplog.text
