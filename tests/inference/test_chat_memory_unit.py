"""What is kept of turns over small tiers without a model: budgets, trails, memory given back."""

from pathlib import Path

import psutil
import pytest

from inference import chat_memory
from inference.kv_cache.schemes import LayerGeometry
from inference.metrics import TierStats
from inference.request import RequestId
from inference.sequence import Sequence
from tests.inference.small_memory import WAIT_S, P, SmallMemory, gated
from tests.inference.test_kv_tensors import CAN_GIVE_BACK

TOKENS = list(range(100, 100 + 4 * P + 3))
LARGE = (LayerGeometry(8, 128),) * 32  # 1 MiB a block


def spill_everything(small: SmallMemory, num_blocks: int) -> None:
    """Let another chat take all blocks, so that what is cached goes to RAM."""
    small.run("other", [7] * (num_blocks * P), on_disk=False)


# --- memory -----------------------------------------------------------------------------------


@CAN_GIVE_BACK
@pytest.mark.parametrize("way", ["clear", "forget", "smaller"])
def test_memory_of_slots_goes_back_to_the_system(way: str) -> None:
    small = SmallMemory(num_blocks=16, ram_slots=32, geometry=LARGE)
    mib = small.tensors.block_bytes
    assert mib == 2**20
    for number in range(3):
        small.run(f"chat {number}", [100 * number + n for n in range(16 * P)], on_disk=False)
    assert small.ram.num_used == 32
    assert small.arena.touched_bytes == 32 * mib
    before = psutil.Process().memory_info().rss
    if way == "clear":
        assert small.memory.clear() == 48 * mib
    elif way == "forget":
        assert small.memory.forget("chat 0") + small.memory.forget("chat 1") == 32 * mib
    else:
        small.memory.set_budgets(4 * mib, 0)
    kept = 4 * mib if way == "smaller" else 0
    assert small.arena.touched_bytes == kept
    assert before - psutil.Process().memory_info().rss > 31 * mib - kept
    small.kv.check_integrity([])
    small.close()


def test_slot_that_is_read_while_all_is_cleared_goes_back_afterwards() -> None:
    small = SmallMemory()
    small.run("chat", TOKENS[: 4 * P], on_disk=False)
    spill_everything(small, 12)
    assert small.arena.touched_bytes == 4 * small.tensors.block_bytes
    small.ram.pin(0)
    small.memory.clear()
    assert small.arena.touched_bytes == small.tensors.block_bytes
    small.memory.tend()
    assert small.arena.touched_bytes == small.tensors.block_bytes
    small.ram.unpin(0)
    small.memory.tend()
    assert small.arena.touched_bytes == 0
    small.close()


# --- budgets ----------------------------------------------------------------------------------


def test_budgets_change_what_may_be_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = SmallMemory(tmp_path, ram_slots=6)
    size = small.tensors.block_bytes
    small.run("chat", TOKENS[: 4 * P])
    assert small.memory.flush(WAIT_S)
    spill_everything(small, 12)

    def tiers() -> tuple[TierStats, TierStats]:
        small.kv.check_integrity([])
        return small.memory.tiers()[1:]

    ram, disk = tiers()
    assert ram == TierStats(4 * size, 6 * size)
    assert disk.used_bytes > 4 * size
    small.memory.set_budgets(2 * size + 1, 10**9)  # smaller
    assert tiers() == (TierStats(2 * size, 2 * size), TierStats(disk.used_bytes, 10**9))
    small.memory.set_budgets(100 * size, 2 * size + 500)  # as large as was reserved; a smaller disk
    assert tiers()[0] == TierStats(2 * size, 6 * size)
    assert 0 < tiers()[1].used_bytes <= 2 * size + 500
    small.memory.set_budgets(0, 0)  # off
    assert tiers() == (TierStats(), TierStats())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    monkeypatch.setattr(chat_memory, "default_ram_bytes", lambda device, held: 3 * size + held)
    monkeypatch.setattr(chat_memory, "default_disk_bytes", lambda root, held: 10**6 + held)
    small.memory.set_budgets(None, None)  # chosen, and on again
    assert tiers() == (TierStats(0, 3 * size), TierStats(0, 10**6))
    small.run("chat", TOKENS[: 4 * P])
    assert small.memory.flush(WAIT_S)
    assert tiers()[1].used_bytes > 4 * size
    small.close()


def test_disk_that_is_off_costs_a_turn_nothing(tmp_path: Path) -> None:
    small = SmallMemory(tmp_path, disk_bytes=0)
    small.run("chat", TOKENS)
    assert not small.transfers.is_saving
    assert small.kv.num_pinned == 0
    assert small.memory.disk_state() == (0, (), "")
    small.close()


def test_folder_that_cannot_be_made_is_said_and_the_rest_works(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    small = SmallMemory(tmp_path / "file" / "kv")
    small.run("chat", TOKENS)
    assert small.memory.flush(WAIT_S)
    written, misses, problem = small.memory.disk_state()
    assert (written, dict(misses)["not_writable"]) == (0, 1)
    assert "cannot be written" in problem
    assert small.memory.trail_of("chat") is not None
    assert small.kv.num_pinned == 0
    assert small.memory.forget("chat") == 5 * small.tensors.block_bytes
    small.close()


# --- trails -----------------------------------------------------------------------------------


def test_trails_in_memory_are_bounded_and_the_least_recent_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_memory, "_MAX_TRAILS", 2)
    small = SmallMemory()
    for chat in ("a", "b", "a", "c"):
        small.run(chat, TOKENS[:3])
    assert list(small.memory.trail_of("a") or ()) == TOKENS[:3]
    assert list(small.memory.trail_of("c") or ()) == TOKENS[:3]
    assert small.memory.trail_of("b") is None
    small.close()


def test_trail_comes_from_the_disk_after_a_restart_and_goes_with_the_chat(tmp_path: Path) -> None:
    first = SmallMemory(tmp_path)
    first.run("chat", TOKENS)
    first.run("cleared", TOKENS)
    first.close()
    small = SmallMemory(tmp_path)
    assert list(small.memory.trail_of("chat") or ()) == TOKENS
    small.memory.forget("chat")
    assert small.memory.trail_of("chat") is None
    assert small.memory.trail_of("cleared") is not None
    small.memory.clear()
    assert small.memory.trail_of("cleared") is None
    small.close()


def test_trail_in_memory_goes_with_the_chat() -> None:
    small = SmallMemory()
    for chat in ("chat", "other"):
        small.run(chat, TOKENS)
    small.memory.forget("chat")
    assert small.memory.trail_of("chat") is None
    assert list(small.memory.trail_of("other") or ()) == TOKENS
    small.close()


def test_trail_ends_with_what_was_computed(tmp_path: Path) -> None:
    small = SmallMemory(tmp_path)
    sequence = Sequence(RequestId(1), "chat", TOKENS[:6])
    assert small.kv.grow(sequence.block_table, 6)
    sequence.num_computed = 5  # the last token is sampled, and not read yet
    small.memory.keep(sequence, on_disk=True)
    assert small.memory.flush(WAIT_S)
    assert small.disk is not None
    for trail in (small.memory.trail_of("chat"), small.disk.load_trail("chat")):
        assert list(trail or ()) == TOKENS[:5]
    small.kv.release(sequence.block_table)
    small.close()


def test_sequence_without_a_computed_token_leaves_nothing() -> None:
    small = SmallMemory()
    small.memory.keep(Sequence(RequestId(1), "chat", TOKENS), on_disk=True)
    assert small.memory.trail_of("chat") is None
    assert small.kv.counts().cached == 0
    small.close()


# --- saves and forgetting ---------------------------------------------------------------------


def test_blocks_are_pinned_while_they_are_written_and_go_when_their_chat_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gated(monkeypatch, "write")
    small = SmallMemory(tmp_path)
    small.run("chat", TOKENS)
    gate.wait_for_somebody()
    assert small.memory.tend()
    assert (small.kv.num_pinned, small.kv.counts().used) == (5, 5)
    gate.open()
    freed = small.memory.forget("chat")
    assert freed >= 5 * small.tensors.block_bytes
    assert not small.memory.tend()
    assert (small.kv.num_pinned, small.kv.counts().free) == (0, 12)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    small.kv.check_integrity([])
    small.close()


def test_turn_that_may_be_kept_after_one_that_may_not_is_kept_whole(tmp_path: Path) -> None:
    small = SmallMemory(tmp_path)
    small.run("chat", TOKENS[: 2 * P], on_disk=False)
    assert small.memory.flush(WAIT_S)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    small.run("chat", TOKENS)
    small.close()
    again = SmallMemory(tmp_path)
    hit = again.kv.attach([*TOKENS, 1], "chat")
    assert hit is not None
    assert hit.num_disk_tokens == len(TOKENS)
    again.kv.abandon_load(list(hit.block_ids), hit)
    again.close()
