"""What saving a turn costs the threads that compute: how often each of its blocks is looked at."""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from inference import transfers as transfers_module
from inference.kernels.library import load_kernels
from inference.kv_cache import kv_rows
from inference.kv_cache.block import ROOT_KEY, BlockHash, hash_block
from inference.kv_cache.disk.claims import Block
from inference.kv_cache.disk.index import PieceIndex
from inference.kv_cache.disk.row_source import RowFile
from inference.kv_cache.disk.store import DiskStore
from inference.kv_cache.kv_rows import KvRows
from tests.inference import disk_stores
from tests.inference.disk_stores import (
    key_of,
    make_store,
    num_saved,
    piece_files,
    rows,
    save_chain,
    write,
)
from tests.inference.small_memory import NAMESPACE, WAIT_S, P, SmallMemory

TOKENS = range(100, 100 + 8 * P)
NUM_OLD = 3


@pytest.fixture
def counts() -> Counter[str]:
    return Counter()


@pytest.fixture
def small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: Counter[str]
) -> Iterator[SmallMemory]:
    """A memory whose disk tier counts how often it names a text."""

    def count_and_hash(
        namespace: bytes, base_key: BlockHash, token_ids: Sequence[int]
    ) -> BlockHash:
        counts["names"] += 1
        return hash_block(namespace, base_key, token_ids)

    def store(self: SmallMemory, root: Path, disk_bytes: int) -> DiskStore:
        store = DiskStore(
            root,
            namespace=NAMESPACE,
            block_size=P,
            row_layout=self.tensors.row_layout,
            budget_bytes=disk_bytes,
            hash_block=count_and_hash,
        )
        store.open()
        return store

    monkeypatch.setattr(SmallMemory, "_store", store)
    memory = SmallMemory(tmp_path)
    yield memory
    memory.close()


def count_calls(monkeypatch: pytest.MonkeyPatch, counts: Counter[str]) -> None:
    """Count how often the saver asks the index and the system for pieces."""
    real_cover, real_stat = PieceIndex.cover, os.stat

    def cover(self: PieceIndex, *args: object) -> object:
        counts["covers"] += 1
        return real_cover(self, *args)  # type: ignore[arg-type]  # whatever they are

    def stat(path: object, **more: object) -> os.stat_result:
        counts["looks"] += str(path).endswith(".kv") and more == {"follow_symlinks": False}
        return real_stat(path, **more)  # type: ignore[arg-type]  # whatever they are

    monkeypatch.setattr(PieceIndex, "cover", cover)
    monkeypatch.setattr(os, "stat", stat)


def chain(ids: Sequence[int]) -> list[Block]:
    """Full blocks, each after that before it."""
    blocks: list[Block] = []
    base = ROOT_KEY
    for at in range(0, len(ids), disk_stores.P):
        block = tuple(ids[at : at + disk_stores.P])
        blocks.append((base, block))
        base = key_of(block, base)
    return blocks


def test_blocks_of_a_turn_are_named_and_looked_for_once_and_new_ones_again_when_written(
    small: SmallMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: Counter[str]
) -> None:
    held = small.held(TOKENS)
    small.transfers.save("chat", held[:NUM_OLD], TOKENS[: NUM_OLD * P])
    assert small.transfers.flush(WAIT_S)
    counts.clear()
    with monkeypatch.context() as patch:
        count_calls(patch, counts)
        small.transfers.save("chat", held, TOKENS)
        assert small.transfers.flush(WAIT_S)
    assert len(piece_files(tmp_path)) == len(held)
    num_new = len(held) - NUM_OLD
    assert counts["names"] == len(held)
    assert counts["covers"] == len(held) + num_new
    assert counts["looks"] == len(held) + 1  # one to know where the new ones begin


def test_blocks_that_are_whole_on_disk_are_named_and_looked_for_once_a_turn(
    small: SmallMemory, monkeypatch: pytest.MonkeyPatch, counts: Counter[str]
) -> None:
    held = small.held(TOKENS)
    for _ in range(2):
        counts.clear()
        with monkeypatch.context() as patch:
            count_calls(patch, counts)
            small.transfers.save("chat", held, TOKENS)
            assert small.transfers.flush(WAIT_S)
    assert counts == {"names": len(held), "covers": len(held), "looks": len(held)}


def test_saver_without_kernels_sleeps_once_for_several_small_blocks(
    small: SmallMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_rows, "BURST_BYTES", 3 * small.tensors.block_bytes + 1)
    monkeypatch.setattr(kv_rows, "load_kernels", lambda: None)
    monkeypatch.setattr(transfers_module, "SPREAD_S", 0.3)
    pauses: list[float] = []

    class Hurry(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return super().wait(timeout)

    rows = KvRows(small.tensors)
    monkeypatch.setattr(rows, "_is_hurried", Hurry())
    monkeypatch.setattr(small.transfers, "_rows", rows)
    began = time.monotonic()
    small.transfers.save("chat", small.held(TOKENS), TOKENS)
    small.transfers.wait_for_any(WAIT_S)
    assert len(pauses) == 3  # eight blocks
    assert time.monotonic() - began >= 0.29  # the last one ends when the turn is due
    assert pauses[0] <= 0.3 * 3 / 8


@pytest.mark.skipif(sys.platform == "win32" or load_kernels() is None, reason="needs the kernels")
def test_saver_hands_many_blocks_at_a_time_to_the_kernels_with_their_share_of_the_time(
    small: SmallMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_rows, "BLOCKS_AT_ONCE", 3)
    monkeypatch.setattr(transfers_module, "SPREAD_S", 0.3)
    calls: list[tuple[int, float]] = []

    class Told(KvRows):
        def write_files(self, files: Sequence[RowFile]) -> Sequence[bool]:
            calls.append((len(files), self.spread_s))
            return super().write_files(files)

    rows = Told(small.tensors)
    monkeypatch.setattr(small.transfers, "_rows", rows)
    small.transfers.set_computing(True)
    began = time.monotonic()
    small.transfers.save("chat", small.held(TOKENS), TOKENS)
    small.transfers.wait_for_any(WAIT_S)
    assert [count for count, _ in calls] == [3, 3, 2]
    assert time.monotonic() - began >= 0.1  # no step ends, so most wait for all of their share
    assert calls[0][1] <= 0.3 * 3 / 8


def test_what_another_process_wrote_behind_a_gap_is_not_written_again(tmp_path: Path) -> None:
    size = disk_stores.P
    ids = range(4 * size)
    window, terminal = make_store(tmp_path), make_store(tmp_path)
    save_chain(terminal, "chat", ids)
    second = key_of(ids[size : 2 * size], key_of(ids[:size]))
    (gap,) = (path for path in piece_files(tmp_path) if path.name.startswith(second.hex()))
    gap.unlink()
    inodes = {path: path.stat().st_ino for path in piece_files(tmp_path)}
    blocks = chain(ids)
    assert window.claim("chat", blocks) == [size, 0, 0, 0]
    assert all(write(window, base, block, 0, rows(block)) for base, block in blocks)
    assert {path: path.stat().st_ino for path in inodes} == inodes
    assert num_saved(window, ids) == len(ids)


def test_order_of_what_is_taken_over_while_it_is_written_is_that_of_the_chain(
    tmp_path: Path,
) -> None:
    size = disk_stores.P
    ids = range(4 * size)
    window, terminal = make_store(tmp_path), make_store(tmp_path)
    blocks = chain(ids)
    assert window.claim("chat", blocks) == [0] * 4
    save_chain(terminal, "chat", ids)
    assert all(write(window, base, block, 0, rows(block)) for base, block in blocks)
    window.set_budget(window.stats().used_bytes - 1)
    assert num_saved(window, ids) == 3 * size
