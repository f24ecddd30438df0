"""How much each tier may take when nobody says."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from inference import kv_budgets
from inference.kv_budgets import default_device_bytes, default_disk_bytes, default_ram_bytes

GIB = 2**30
MIB = 2**20
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Free bytes by device, as the system would tell them."""
    told = {"cpu": 16 * GIB, "cuda": 8 * GIB}
    monkeypatch.setattr(kv_budgets, "free_bytes", told.__getitem__)
    return told


@pytest.mark.parametrize(
    ("context_bytes", "expected"),
    [
        (10 * MIB, 80 * MIB),  # eight chats of a small model
        (GIB, 2 * GIB),  # no more than what is comfortable
        (3 * GIB, 3 * GIB),  # but always a whole context
        (5 * GIB, 4 * GIB),  # if a quarter of what is free holds it
    ],
)
def test_device_has_room_for_a_context_and_for_several_chats(
    free: dict[str, int], context_bytes: int, expected: int
) -> None:
    assert default_device_bytes("cpu", context_bytes) == expected


def test_device_on_a_small_machine_takes_an_eighth_for_comfort(free: dict[str, int]) -> None:
    free["cpu"] = 2 * GIB
    assert default_device_bytes("cpu", 100 * MIB) == 256 * MIB


@pytest.mark.parametrize(
    ("free_bytes", "context_bytes", "expected"),
    [
        (8 * GIB, 10 * MIB, 80 * MIB),  # eight chats of a small model
        (8 * GIB, 3 * GIB, 3 * GIB),
        (8 * GIB, 9 * GIB, int(0.8 * 7.25 * GIB)),  # nobody else needs the rest of a card
        (2 * GIB, 9 * GIB, int(0.8 * (2 * GIB - int(0.4 * GIB)))),
    ],
)
def test_cuda_takes_most_of_what_steps_do_not_need(
    free: dict[str, int], free_bytes: int, context_bytes: int, expected: int
) -> None:
    free["cuda"] = free_bytes
    assert default_device_bytes("cuda", context_bytes) == expected


@pytest.mark.parametrize(
    ("device", "free_bytes", "expected"),
    [
        ("cpu", 8 * GIB, GIB),
        ("cpu", 64 * GIB, 2 * GIB),
        ("cuda", 8 * GIB, 2 * GIB),
        ("cuda", 64 * GIB, 8 * GIB),
    ],
)
def test_ram_takes_more_beside_a_graphics_card(
    free: dict[str, int], device: str, free_bytes: int, expected: int
) -> None:
    free["cpu"] = free_bytes
    assert default_ram_bytes(device) == expected


def test_ram_that_is_held_counts_as_free(free: dict[str, int]) -> None:
    free["cpu"] = 7 * GIB
    assert default_ram_bytes("cpu", GIB) == GIB


@pytest.mark.parametrize(
    ("total", "free_bytes", "held", "expected"),
    [
        (1000 * GIB, 500 * GIB, 0, 10 * GIB),
        (100 * GIB, 50 * GIB, 0, 5 * GIB),
        (100 * GIB, 6 * GIB, 0, 3 * GIB),
        (100 * GIB, 3 * GIB, 3 * GIB, 3 * GIB),  # the same disk once all of that is used
        (100 * GIB, 0, 3 * GIB, 3 * GIB // 2),  # others took the rest: give way, but not all
        (100 * GIB, 0, 0, 1),  # full: the tier says so, as it would not if it were off
    ],
)
def test_disk_takes_a_share_of_what_is_there_and_free(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    total: int,
    free_bytes: int,
    held: int,
    expected: int,
) -> None:
    asked: list[Path] = []

    def usage(path: Path) -> Usage:
        asked.append(path)
        if not path.exists():
            raise FileNotFoundError(path)
        return Usage(total, total - free_bytes, free_bytes)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    folder = tmp_path / "not" / "there"
    assert default_disk_bytes(folder, held) == expected
    assert asked == [folder, folder.parent, tmp_path]


def test_disk_that_cannot_be_asked_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def usage(path: Path) -> Usage:
        raise OSError

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert default_disk_bytes(tmp_path, 0) == 0
