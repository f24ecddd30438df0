"""Rows on their way between device, RAM and disk, on real threads: what fails, what is broken off."""

import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inference import transfers as transfers_module
from inference.kv_cache.block import ROOT_KEY
from inference.kv_cache.disk import claims as claims_module
from inference.kv_cache.disk.store import DiskStore
from inference.kv_cache.kv_rows import KvRows
from inference.kv_cache.tiers import BlockLoad, HeldBlock, RamSource
from inference.transfer_tickets import Loading
from tests.inference.small_memory import WAIT_S, P, SmallMemory, gated

TOKENS = list(range(100, 100 + 4 * P + 3))  # four blocks and a tail


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallMemory]:
    memory = SmallMemory(tmp_path)
    yield memory
    memory.close()


def ended(loading: Loading) -> list[bool]:
    loading.wait(WAIT_S)
    assert loading.is_done
    return list(loading.succeeded)


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


# --- loads ------------------------------------------------------------------------------------


def test_saved_chat_comes_back_bit_for_bit(small: SmallMemory) -> None:
    held = small.held(TOKENS)
    small.transfers.save("chat", held[:2], TOKENS[: 2 * P])  # two turns, so two pieces of a block
    small.transfers.save("chat", held, TOKENS)
    assert small.transfers.flush(WAIT_S)
    loading = small.transfers.load(small.from_disk(held, first_target=6))
    assert ended(loading) == [True] * 5
    for n, block in enumerate(held):
        end = len(block.token_ids)
        assert small.rows(6 + n, end) == small.rows(n, end)


@pytest.mark.parametrize("has_kernels", [True, False])
def test_rows_of_a_second_turn_are_written_behind_those_of_the_first(
    small: SmallMemory, has_kernels: bool
) -> None:
    if not has_kernels:
        small.transfers._rows._kernels = None
    (block,) = small.held(TOKENS[:P])
    first = HeldBlock(0, ROOT_KEY, block.token_ids[:3])
    small.transfers.save("chat", [first], TOKENS[:3])
    small.transfers.save("chat", [block], TOKENS[:P])
    assert small.transfers.flush(WAIT_S)
    (load,) = small.from_disk([block], first_target=6)
    assert [(s.start, s.end) for s in load.sources] == [(0, 3), (3, P)]
    assert ended(small.transfers.load([load])) == [True]
    assert small.rows(6) == small.rows(0)


def test_rows_of_pieces_that_overlap_come_to_their_places(
    small: SmallMemory, tmp_path: Path
) -> None:
    other = SmallMemory(tmp_path)  # as of another process: neither knows what the other saves
    (block,) = small.held(TOKENS[:6])
    other.held(TOKENS[:6])
    for memory, end in ((small, 2), (small, 6), (other, 4)):
        held = HeldBlock(0, ROOT_KEY, block.token_ids[:end])
        memory.transfers.save("chat", [held], TOKENS[:end])
        assert memory.transfers.flush(WAIT_S)
    other.close()
    reader = SmallMemory(tmp_path)
    (load,) = reader.from_disk([block], first_target=3)
    assert [(s.piece.start, s.piece.end, s.start, s.end) for s in load.sources] == [  # type: ignore[union-attr]  # from the disk
        (0, 4, 0, 4),
        (2, 6, 4, 6),
    ]
    assert ended(reader.transfers.load([load])) == [True]
    assert reader.rows(3, 6) == small.rows(0, 6)
    reader.close()


def test_rows_that_are_left_of_a_forgotten_piece_keep_their_places(small: SmallMemory) -> None:
    (block,) = small.held(TOKENS[:P])
    ids = block.token_ids
    for chat, text in (("one", ids[:2]), ("one", ids), ("other", (*ids[:5], 9))):
        small.transfers.save(chat, [HeldBlock(0, ROOT_KEY, text)], text)
    assert small.transfers.flush(WAIT_S)
    small.transfers.forget("one")
    (load,) = small.from_disk([HeldBlock(0, ROOT_KEY, (*ids[:5], 9))], first_target=6)
    assert [(s.start, s.end) for s in load.sources] == [(0, 2), (2, 5), (5, 6)]
    assert ended(small.transfers.load([load])) == [True]
    assert small.rows(6, 6) == small.rows(0, 6)


def test_block_comes_back_from_a_slot(small: SmallMemory) -> None:
    payload = small.write(3, seed=1)
    small.transfers.spill(3, 2)
    small.write(3, seed=2)
    whole = BlockLoad(5, ROOT_KEY, tuple(range(P)), (RamSource(2, 0, P),))
    part = BlockLoad(6, ROOT_KEY, tuple(range(3)), (RamSource(2, 0, 3),))
    assert ended(small.transfers.load([whole, part])) == [True, True]
    assert small.rows(5) == payload
    assert small.rows(6, 3) == small.rows(5, 3)


def test_first_rows_of_a_block_are_copied_and_no_others(small: SmallMemory) -> None:
    source, target = small.write(1, seed=1), small.write(4, seed=2)
    small.transfers.copy_rows(1, 4, 5)
    assert small.rows(4, 5) == small.rows(1, 5)
    assert small.rows(1) == source
    rest = small.tensors.export_rows(4, 5, P)
    small.tensors.import_rows(
        6,
        0,
        torch.frombuffer(bytearray(target), dtype=torch.uint8),
        payload_rows=P,
        skip=0,
        num_rows=P,
    )
    assert torch.equal(rest, small.tensors.export_rows(6, 5, P))


def test_nothing_to_load_is_done_at_once(small: SmallMemory) -> None:
    loading = small.transfers.load([])
    assert loading.is_done
    assert loading.succeeded == []


def test_error_on_a_loader_thread_is_a_failed_load_and_the_thread_goes_on(
    small: SmallMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = small.held(TOKENS)
    small.transfers.save("chat", held, TOKENS)
    assert small.transfers.flush(WAIT_S)
    loads = small.from_disk(held, first_target=6)
    read = DiskStore.read

    def failing(self: DiskStore, source: Any, base_key: Any, token_ids: Any) -> Any:
        if base_key == held[2].base_key:
            raise RuntimeError("broken")
        return read(self, source, base_key, token_ids)

    monkeypatch.setattr(DiskStore, "read", failing)
    succeeded = ended(small.transfers.load(loads))
    assert succeeded[:3] == [True, True, False]
    assert "could not be loaded" in caplog.text
    monkeypatch.undo()
    assert ended(small.transfers.load(loads)) == [True] * 5


def test_what_follows_a_block_that_is_not_there_is_proved_too(
    small: SmallMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers_module, "NUM_LOADERS", 1)
    held = small.held(TOKENS)
    small.transfers.save("chat", held, TOKENS)
    assert small.transfers.flush(WAIT_S)
    loads = small.from_disk(held, first_target=6)
    name = loads[1].sources[0].piece.key.hex()  # type: ignore[union-attr]  # from the disk
    next(path for path in files(tmp_path) if path.name.startswith(name)).unlink()
    gate = gated(monkeypatch, "read")
    gate.open()
    assert ended(small.transfers.load(loads)) == [True, False, True, True, True]
    assert gate.calls == 5  # so that all that is damaged is found, and written anew
    assert small.disk is not None
    assert small.disk.stats().misses == {"missing": 1}


def test_load_that_is_broken_off_reads_only_what_it_has_begun(
    small: SmallMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers_module, "NUM_LOADERS", 1)
    held = small.held(TOKENS)
    small.transfers.save("chat", held, TOKENS)
    assert small.transfers.flush(WAIT_S)
    gate = gated(monkeypatch, "read")
    loading = small.transfers.load(small.from_disk(held, first_target=6))
    gate.wait_for_somebody()
    loading.cancel()
    assert not loading.is_done  # its first block is still written to
    gate.open()
    assert ended(loading) == [True, False, False, False, False]
    assert gate.calls == 1


# --- saves ------------------------------------------------------------------------------------


def test_blocks_are_given_back_only_when_they_are_written(
    small: SmallMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gated(monkeypatch, "write")
    small.transfers.save("chat", small.held(TOKENS), TOKENS)
    gate.wait_for_somebody()
    assert small.transfers.take_saved() == []
    assert small.transfers.is_saving
    assert not small.transfers.flush(0.01)
    gate.open()
    assert small.transfers.flush(WAIT_S)
    assert small.transfers.take_saved() == [0, 1, 2, 3, 4]
    assert not small.transfers.is_saving


def test_full_disk_is_said_and_no_further_block_is_tried(
    small: SmallMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def full(path: str, *args: object, **options: object) -> None:
        tried.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(KvRows, "write_files", lambda rows, files: [False] * len(files))
    monkeypatch.setattr(claims_module, "write_file", full)
    small.transfers.save("chat", small.held(TOKENS), TOKENS)
    assert small.transfers.flush(WAIT_S)
    assert small.transfers.take_saved() == [0, 1, 2, 3, 4]
    assert len(tried) == 1
    assert small.disk is not None
    stats = small.disk.stats()
    assert stats.problem.startswith("The disk is full")
    assert stats.misses == {"no_space": 1}
    assert small.disk.load_trail("chat") is None


def test_budget_of_two_blocks_keeps_the_first_ones(tmp_path: Path) -> None:
    small = SmallMemory(tmp_path)
    assert small.disk is not None
    small.transfers.set_disk_budget(3 * small.tensors.block_bytes)
    held = small.held(TOKENS)
    small.transfers.save("chat", held, TOKENS)
    assert small.transfers.flush(WAIT_S)
    saved = [small.disk.num_saved(b.base_key, b.token_ids) for b in held]
    assert saved == [P, P, 0, 0, 0]
    assert small.disk.stats().misses == {"over_budget": 1}
    small.close()


def test_error_while_saving_gives_the_blocks_back_and_the_next_turn_is_saved(
    small: SmallMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: DiskStore, *args: object) -> None:
        raise ValueError("broken")

    held = small.held(TOKENS)
    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "claim", broken)
        small.transfers.save("chat", held, TOKENS)
        assert small.transfers.flush(WAIT_S)
    assert "could not be kept on disk" in caplog.text
    assert small.transfers.take_saved() == [0, 1, 2, 3, 4]
    small.transfers.save("chat", held, TOKENS)
    assert small.transfers.flush(WAIT_S)
    assert small.disk is not None
    assert small.disk.load_trail("chat") == tuple(TOKENS)


def test_forgotten_chat_is_not_written_further_and_others_are(
    small: SmallMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gated(monkeypatch, "write")
    held = small.held(TOKENS)
    small.transfers.save("chat", held, TOKENS)
    small.transfers.save("other", held[:1], TOKENS[:P])
    small.transfers.save("chat", held, TOKENS)
    gate.wait_for_somebody()
    saver = small.transfers._saver
    submit = saver.submit

    def open_and_submit(*args: Any) -> Any:
        gate.open()  # the saves are cancelled by now
        return submit(*args)

    monkeypatch.setattr(saver, "submit", open_and_submit)
    small.transfers.forget("chat")
    assert small.disk is not None
    assert [small.disk.num_saved(b.base_key, b.token_ids) for b in held] == [P, 0, 0, 0, 0]
    assert small.disk.load_trail("chat") is None
    assert small.disk.load_trail("other") == tuple(TOKENS[:P])
    assert sorted(small.transfers.take_saved()) == sorted([0, 1, 2, 3, 4] * 2 + [0])


def test_disk_turned_off_while_a_turn_is_saved_is_empty(
    small: SmallMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gated(monkeypatch, "write")
    small.transfers.save("chat", small.held(TOKENS), TOKENS)
    gate.wait_for_somebody()
    gate.open()
    small.transfers.set_disk_budget(0)
    assert files(tmp_path) == []
    assert small.transfers.take_saved() == [0, 1, 2, 3, 4]


def test_without_a_disk_nothing_is_saved_and_nothing_forgotten() -> None:
    small = SmallMemory()
    small.transfers.save("chat", small.held(TOKENS), TOKENS)
    assert small.transfers.flush(WAIT_S)
    assert small.transfers.take_saved() == [0, 1, 2, 3, 4]
    assert (small.transfers.forget("chat"), small.transfers.clear()) == (0, 0)
    small.transfers.set_disk_budget(5)
    small.close()


# --- the end ----------------------------------------------------------------------------------


def test_close_waits_for_a_turn_that_is_being_saved(tmp_path: Path) -> None:
    small = SmallMemory(tmp_path)
    small.transfers.save("chat", small.held(TOKENS), TOKENS)
    small.close()
    again = SmallMemory(tmp_path)
    assert again.disk is not None
    assert again.disk.load_trail("chat") == tuple(TOKENS)
    again.close()


def test_close_waits_neither_for_a_disk_that_hangs_nor_for_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers_module, "LAST_BLOCK_TIMEOUT_S", 0.05)
    small = SmallMemory(tmp_path)
    held = small.held(TOKENS)
    small.transfers.save("chat", held, TOKENS)
    assert small.transfers.flush(WAIT_S)
    reads, writes = gated(monkeypatch, "read"), gated(monkeypatch, "write")
    loading = small.transfers.load(small.from_disk(held, first_target=6))
    longer = small.held([*TOKENS, *range(2 * P)])
    small.transfers.save("chat", longer, TOKENS)
    reads.wait_for_somebody()
    writes.wait_for_somebody()
    began = time.monotonic()
    small.transfers.close(0.05)
    small.arena.close()
    assert time.monotonic() - began < 5.0
    assert not loading.is_done
    reads.open()  # threads end, and write into nothing that is not there any more
    writes.open()
    ended(loading)
    small.transfers._saver.shutdown()
    small.transfers._loaders.shutdown()
    assert writes.calls == 1
    assert reads.calls <= transfers_module.NUM_LOADERS


def test_saving_is_spread_while_tokens_are_computed_and_quick_when_somebody_waits(
    small: SmallMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers_module, "SPREAD_S", 600.0)
    held = small.held(TOKENS)
    small.transfers.set_computing(True)
    small.transfers.save("chat", held, TOKENS)
    time.sleep(0.1)
    assert small.transfers.take_saved() == []
    assert small.disk is not None
    assert small.disk.stats().num_pieces == 0
    assert small.transfers.flush(WAIT_S)  # what waits for the disk ends the patience
    assert small.disk.stats().num_pieces == len(held)


def test_a_turn_is_on_disk_within_a_second_also_while_tokens_are_computed(
    small: SmallMemory,
) -> None:
    assert transfers_module.SPREAD_S < 1.0
    held = small.held(TOKENS)
    small.transfers.set_computing(True)
    began = time.monotonic()
    small.transfers.save("chat", held, TOKENS)
    small.transfers.wait_for_any(WAIT_S)
    assert len(small.transfers.take_saved()) == len(held)
    assert time.monotonic() - began >= transfers_module.SPREAD_S * 0.9
    assert small.disk is not None
    assert small.disk.stats().num_pieces == len(held)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own there")
def test_saver_gives_way_to_threads_that_compute(small: SmallMemory) -> None:
    found = small.transfers._saver.submit(lambda: os.getpriority(os.PRIO_PROCESS, 0)).result()
    assert found == min(19, os.getpriority(os.PRIO_PROCESS, 0) + transfers_module.SAVER_NICENESS)
