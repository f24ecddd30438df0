"""Rows between blocks and the host: each way gives the same bytes; what waits for what on a device."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.kv_cache.block import ROOT_KEY
from inference.kv_cache.host_copies import (
    CpuCopies,
    DirectCopies,
    HostCopies,
    StagedCopies,
    find_copies,
    pinned_bytes,
)
from inference.kv_cache.schemes import LayerGeometry, find_scheme
from inference.kv_cache.side_stream import NoSideStream
from inference.kv_cache.tensors import KvTensors
from inference.kv_cache.tiers import BlockLoad, RamSource
from tests.inference.small_memory import WAIT_S, SmallMemory

CPU = torch.device("cpu")
P = 8
GEOMETRY = [LayerGeometry(2, 16), LayerGeometry(1, 64), LayerGeometry(2, 16)]


class NotedSide:
    """A side stream that notes what it is asked; copies are done at once."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def after_compute(self) -> AbstractContextManager[object]:
        self.events.append("after compute")
        return nullcontext()

    def mark(self) -> Any:
        raise AssertionError("nobody holds the compute stream")

    def hold_compute(self, mark: Any) -> None:
        raise AssertionError("decode goes on while blocks load")

    def keep(self, tensor: Tensor) -> None:
        self.events.append(f"keep {tensor.numel()}")

    def synchronize(self) -> None:
        self.events.append("synchronize")


def staged(num_bytes: int, side: Any = None) -> StagedCopies:
    return StagedCopies(CPU, num_bytes, lambda: side or NoSideStream(), is_pinned=False)


def make_kv(copies: HostCopies | None = None, *, device: torch.device = CPU) -> KvTensors:
    scheme = find_scheme("int8", torch.float32)
    kv = KvTensors(GEOMETRY, num_blocks=6, block_size=P, scheme=scheme, device=device)
    generator = torch.Generator().manual_seed(3)
    for plane in kv._planes:
        values = torch.randint(0, 256, plane.as_bytes.shape, generator=generator).to(torch.uint8)
        plane.as_bytes.copy_(values)
    if copies is not None:
        kv._copies = copies
    return kv


def planes_of(kv: KvTensors) -> list[Tensor]:
    return [plane.as_bytes.cpu() for plane in kv._planes]


WAYS: dict[str, Callable[[], HostCopies]] = {
    "direct": DirectCopies,
    "staged": lambda: staged(make_kv().block_bytes),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("start", "end"), [(0, P), (0, 3), (2, 5), (7, 8)])
def test_each_way_moves_the_bytes_of_the_cpu(way: str, start: int, end: int) -> None:
    plain, other = make_kv(), make_kv(WAYS[way]())
    out = torch.full((plain.block_bytes + 5,), 7, dtype=torch.uint8)
    payload = plain.export_rows(3, start, end)
    assert torch.equal(other.export_rows(3, start, end), payload)
    assert torch.equal(other.export_rows(3, start, end, out=out), payload)
    assert (out[payload.numel() :] == 7).all()
    num_rows = end - start
    for skip in {0, num_rows - 1}:
        for kv in (plain, other):
            kv.import_rows(
                5, start, payload, payload_rows=num_rows, skip=skip, num_rows=num_rows - skip
            )
            kv.copy_rows(3, 1, num_rows)
        assert all(map(torch.equal, planes_of(plain), planes_of(other)))


def test_staged_copies_come_after_what_is_computed_and_are_done_when_they_return() -> None:
    side = NotedSide()
    kv = make_kv()
    kv._copies = staged(kv.block_bytes, side)
    payload = kv.export_rows(0, 0, P)
    assert side.events == [f"keep {kv.block_bytes}", "after compute", "synchronize"]
    side.events.clear()
    kv.import_rows(1, 0, payload, payload_rows=P, skip=0, num_rows=P)
    assert side.events == ["after compute", "synchronize"]
    side.events.clear()
    kv.copy_rows(0, 2, P)  # in the order of what is computed
    assert side.events == []


def test_what_a_thread_copies_through_can_be_taken_before_it_is_needed() -> None:
    side = NotedSide()
    kv = make_kv()
    copies = staged(kv.block_bytes, side)
    copies.prepare()
    assert side.events == [f"keep {kv.block_bytes}"]
    kv._copies = copies
    kv.export_rows(0, 0, P)
    assert side.events[1:] == ["after compute", "synchronize"]


def test_memory_that_cannot_be_pinned_is_told_and_copies_are_right_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = torch.empty

    def empty(*sizes: int, pin_memory: bool = False, **options: Any) -> Tensor:
        if pin_memory:
            raise torch.AcceleratorError("CUDA error: out of memory")
        return real(*sizes, **options)

    monkeypatch.setattr(torch, "empty", empty)
    assert pinned_bytes(3 * 2**20) is None
    assert caplog.messages == ["no 3 MB of memory could be pinned: CUDA error: out of memory"]
    plain, other = make_kv(), make_kv()
    other._copies = StagedCopies(CPU, other.block_bytes, NoSideStream)
    payload = other.export_rows(3, 0, P)
    assert torch.equal(payload, plain.export_rows(3, 0, P))
    other.import_rows(5, 0, payload, payload_rows=P, skip=0, num_rows=P)
    assert torch.equal(other.export_rows(5, 0, P), payload)


def test_each_thread_has_a_stage_of_its_own() -> None:
    made = []

    def make_side() -> NoSideStream:
        made.append(threading.get_ident())
        return NoSideStream()

    kv = make_kv()
    kv._copies = StagedCopies(CPU, kv.block_bytes, make_side, is_pinned=False)
    expected = [make_kv().export_rows(block, 0, P) for block in range(6)]
    num_equal = [0] * 3

    def export_often(block: int) -> None:
        for _ in range(50):
            num_equal[block] += torch.equal(kv.export_rows(block, 0, P), expected[block])

    threads = [threading.Thread(target=export_often, args=(block,)) for block in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert num_equal == [50] * 3
    assert len(made) == 3


def test_chat_goes_through_all_tiers_by_staged_copies(tmp_path: Path) -> None:
    small = SmallMemory(tmp_path)
    sides = []

    def make_side() -> NotedSide:
        sides.append(NotedSide())
        return sides[-1]

    size = small.tensors.block_bytes
    small.tensors._copies = StagedCopies(CPU, size, make_side, is_pinned=False)
    small.transfers._rows._kernels = None  # they write what lies on the host only, without copies
    tokens = list(range(3 * P + 5))
    held = small.held(tokens)
    small.transfers.save("chat", held, tokens)
    assert small.transfers.flush(WAIT_S)
    small.transfers.spill(0, 1)
    loads = small.from_disk(held, first_target=6)
    loads.append(BlockLoad(11, ROOT_KEY, tuple(range(P)), (RamSource(1, 0, P),)))
    loading = small.transfers.load(loads)
    loading.wait(WAIT_S)
    assert list(loading.succeeded) == [True] * 5
    for n, block in enumerate(held):
        end = len(block.token_ids)
        assert small.rows(6 + n, end) == small.rows(n, end)
    assert small.rows(11) == small.rows(0)
    small.close()
    assert len(sides) in (3, 4)  # the engine's thread, the saver's, and those of one loader or both
    assert all(side.events[-1] == "synchronize" for side in sides)


def test_way_of_each_device() -> None:
    assert isinstance(find_copies(CPU, 10), CpuCopies)
    assert isinstance(find_copies(torch.device("mps"), 10), DirectCopies)
    assert isinstance(find_copies(torch.device("xpu"), 10), DirectCopies)


@pytest.mark.gpu
def test_memory_beside_a_cuda_device_is_pinned() -> None:
    pinned = pinned_bytes(2**20)
    assert pinned is not None
    assert pinned.is_pinned()
    assert (pinned.numel(), pinned.dtype) == (2**20, torch.uint8)


@pytest.mark.gpu
def test_blocks_of_a_cuda_device_move_the_bytes_of_the_cpu() -> None:
    plain, other = make_kv(), make_kv(device=torch.device("cuda"))
    for start, end in ((0, P), (2, 5)):
        payload = plain.export_rows(3, start, end)
        assert torch.equal(other.export_rows(3, start, end), payload)
        for kv in (plain, other):
            kv.import_rows(
                5, start, payload, payload_rows=end - start, skip=1, num_rows=end - start - 1
            )
            kv.copy_rows(3, 1, end)
        assert all(map(torch.equal, planes_of(plain), planes_of(other)))


@pytest.mark.gpu
def test_import_waits_for_what_still_reads_the_block() -> None:
    device = torch.device("cuda")
    kv = make_kv(device=device)
    payload = kv.export_rows(3, 0, P)
    before = kv.export_rows(5, 0, P)
    torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]  # cycles; what is computed next is behind it
    seen = [plane.as_bytes[:, :, 5 * P : 6 * P].clone() for plane in kv._planes]
    thread = threading.Thread(
        target=kv.import_rows,
        args=(5, 0, payload),
        kwargs={"payload_rows": P, "skip": 0, "num_rows": P},
    )
    thread.start()
    thread.join()
    assert torch.equal(torch.cat([part.flatten() for part in seen]).cpu(), before)
    assert torch.equal(kv.export_rows(5, 0, P), payload)
