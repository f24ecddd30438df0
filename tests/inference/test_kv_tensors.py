"""Rows that move between blocks, payloads and back, bit for bit; and memory that is given back."""

import gc
import mmap
import sys
import threading
from collections.abc import Callable

import psutil
import pytest
import torch
from torch import Tensor

from inference.config import KvSchemeName
from inference.kv_cache.host_memory import HostArena, HostRegion, runs_of
from inference.kv_cache.layer_memory import KeyValues
from inference.kv_cache.schemes import LayerGeometry
from inference.kv_cache.tensors import KvTensors
from tests.inference.tiny_models import fill_with_garbage, make_tensors

P = 8
# Two groups of layers, mixed.
GEOMETRY = [LayerGeometry(2, 16), LayerGeometry(1, 64), LayerGeometry(2, 16)]
SCHEMES: tuple[KvSchemeName, ...] = ("fp32", "fp16", "bf16", "int8", "int4")
CAN_GIVE_BACK = pytest.mark.skipif(
    sys.platform != "linux", reason="resident memory follows at once only there"
)


def make_kv(scheme: KvSchemeName, *, num_blocks: int = 12) -> KvTensors:
    return make_tensors(GEOMETRY, scheme, num_blocks=num_blocks, block_size=P)


def write_block(kv: KvTensors, block_id: int, *, seed: int = 0) -> None:
    """Fill a whole block with random tokens."""
    generator = torch.Generator().manual_seed(seed)
    kv.touch([block_id])
    for layer, shape in enumerate(kv.geometry):
        size = (1, shape.num_kv_heads, P, shape.head_dim)
        new = KeyValues(*(torch.randn(size, generator=generator) for _ in range(2)))
        kv.write(layer, torch.arange(block_id * P, (block_id + 1) * P), new)


def rows(kv: KvTensors, block_id: int, start: int, end: int) -> list[Tensor]:
    """What is stored there, as bytes, per layer and plane."""
    low, high = block_id * P + start, block_id * P + end
    return [
        plane.view(torch.uint8)[:, low:high].clone()
        for layer in kv.layers
        for plane in layer.planes
    ]


def is_garbage(kv: KvTensors, block_id: int, start: int, end: int) -> bool:
    return all(bool((part == 255).all()) for part in rows(kv, block_id, start, end))


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_payload_of_a_block_is_as_long_as_its_memory(scheme: KvSchemeName) -> None:
    kv = make_kv(scheme)
    write_block(kv, 3)
    payload = kv.export_rows(3, 0, P)
    assert payload.dtype == torch.uint8
    assert payload.shape == (kv.block_bytes,)
    assert kv.export_rows(3, 2, 5).shape == (3 * kv.bytes_per_token,)


def test_payload_holds_layers_of_a_shape_together_then_heads_then_rows() -> None:
    kv = make_kv("fp32")
    write_block(kv, 3)
    payload = kv.export_rows(3, 2, 5).view(torch.float32)
    first, second = 2 * 2 * 2 * 3 * 16, 1 * 2 * 1 * 3 * 64
    assert payload.shape == (first + second,)
    both = payload[:first].view(2, 4, 3, 16)
    slots = slice(3 * P + 2, 3 * P + 5)
    assert torch.equal(both[0], kv.layers[0].planes[0][:, slots])
    assert torch.equal(both[1], kv.layers[2].planes[0][:, slots])
    assert torch.equal(payload[first:].view(2, 3, 64), kv.layers[1].planes[0][:, slots])


@pytest.mark.parametrize(("start", "end"), [(0, P), (0, 1), (3, 6), (P - 1, P)])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_exported_and_imported_are_the_same_bits(
    scheme: KvSchemeName, start: int, end: int
) -> None:
    kv = make_kv(scheme)
    write_block(kv, 3)
    payload = kv.export_rows(3, start, end)
    count = end - start
    kv.import_rows(7, start, payload, payload_rows=count, skip=0, num_rows=count)
    assert_same(rows(kv, 7, start, end), rows(kv, 3, start, end))
    assert is_garbage(kv, 7, 0, start)
    assert is_garbage(kv, 7, end, P)
    assert is_garbage(kv, 6, 0, P)
    assert is_garbage(kv, 8, 0, P)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_import_takes_the_middle_of_a_longer_payload(scheme: KvSchemeName) -> None:
    kv = make_kv(scheme)
    write_block(kv, 3)
    slot = torch.full((kv.block_bytes + 100,), 7, dtype=torch.uint8)  # a slot is longer
    assert kv.export_rows(3, 1, P, out=slot).data_ptr() == slot.data_ptr()
    assert (slot[(P - 1) * kv.bytes_per_token :] == 7).all()
    kv.import_rows(0, 4, slot, payload_rows=P - 1, skip=2, num_rows=3)
    assert_same(rows(kv, 0, 4, 7), rows(kv, 3, 3, 6))
    assert is_garbage(kv, 0, 0, 4)
    assert is_garbage(kv, 0, 7, P)


@pytest.mark.parametrize("num_rows", [1, 5, P])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_copy_rows_copies_the_first_rows_only(scheme: KvSchemeName, num_rows: int) -> None:
    kv = make_kv(scheme)
    write_block(kv, 3)
    kv.copy_rows(3, 9, num_rows)
    assert_same(rows(kv, 9, 0, num_rows), rows(kv, 3, 0, num_rows))
    assert is_garbage(kv, 9, num_rows, P)
    assert kv.touched_bytes == 2 * kv.block_bytes


@pytest.mark.parametrize("is_inference", [False, True])
def test_rows_move_on_another_thread_whatever_kind_of_tensor(is_inference: bool) -> None:
    with torch.inference_mode(is_inference):
        kv = make_kv("int8")
        write_block(kv, 3)
        out = torch.empty(kv.block_bytes, dtype=torch.uint8)
    before = torch.get_num_threads()

    def move() -> None:
        kv.export_rows(3, 0, P, out=out)
        kv.import_rows(5, 0, out, payload_rows=P, skip=0, num_rows=P)
        kv.copy_rows(5, 6, P)

    run_in_thread(move)
    assert_same(rows(kv, 6, 0, P), rows(kv, 3, 0, P))
    assert torch.get_num_threads() == before


def run_in_thread(work: Callable[[], None]) -> None:
    failures: list[Exception] = []

    def guarded() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # carried to the test
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    assert not failures


def test_discard_forgets_the_blocks_and_spares_their_neighbours() -> None:
    kv = make_kv("fp16")
    for block_id in range(12):
        write_block(kv, block_id, seed=block_id)
    kept = {block_id: rows(kv, block_id, 0, P) for block_id in (0, 1, 5, 9, 10, 11)}
    kv.discard([2, 3, 4, 8])
    kv.discard([6, 7])
    assert kv.touched_bytes == 6 * kv.block_bytes
    for block_id, expected in kept.items():
        assert_same(rows(kv, block_id, 0, P), expected)
    kv.discard([3])  # again changes nothing
    assert kv.touched_bytes == 6 * kv.block_bytes


@pytest.mark.parametrize("scheme", SCHEMES)
def test_discarded_block_can_be_written_again(scheme: KvSchemeName) -> None:
    kv = make_kv(scheme)
    write_block(kv, 3, seed=1)
    expected = rows(kv, 3, 0, P)
    kv.discard(range(12))
    assert kv.touched_bytes == 0
    write_block(kv, 3, seed=1)
    assert_same(rows(kv, 3, 0, P), expected)
    assert kv.touched_bytes == kv.block_bytes


@pytest.mark.parametrize("scheme", SCHEMES)
def test_spare_block_lies_behind_the_others_and_counts_for_nothing(scheme: KvSchemeName) -> None:
    plain = make_kv(scheme)
    assert plain.spare_slot is None
    kv = KvTensors(
        GEOMETRY,
        num_blocks=12,
        block_size=P,
        scheme=plain.scheme,
        device=torch.device("cpu"),
        has_spare=True,
    )
    fill_with_garbage(kv)
    assert (kv.num_blocks, kv.spare_slot) == (12, 12 * P)
    write_block(kv, 11)
    payload = kv.export_rows(11, 0, P)
    new = KeyValues(*(torch.ones(1, 2, P, 16) for _ in range(2)))
    kv.write(0, torch.arange(12 * P, 13 * P), new)
    assert torch.equal(kv.export_rows(11, 0, P), payload)
    assert kv.touched_bytes == kv.block_bytes == plain.block_bytes
    kv.discard([11])
    assert kv.touched_bytes == 0
    write_block(plain, 11)
    assert torch.equal(plain.export_rows(11, 0, P), payload)


@CAN_GIVE_BACK
def test_discard_one_by_one_gives_back_pages_that_blocks_share() -> None:
    # A block's rows of one head are 8 * 16 * 2 = 256 bytes: 16 blocks share a page.
    geometry = [LayerGeometry(2, 16)] * 4
    kv = make_tensors(geometry, "fp16", num_blocks=4096, block_size=P)
    kv.touch(range(4096))
    before = psutil.Process().memory_info().rss
    for block_id in range(4096):
        kv.discard([block_id])
    freed = before - psutil.Process().memory_info().rss
    assert 4096 * kv.block_bytes == 16 * 2**20
    assert freed > 15 * 2**20


@CAN_GIVE_BACK
def test_dropped_tensors_give_all_their_memory_back() -> None:
    kv = make_kv("fp16", num_blocks=8192)  # 32 MB, all written
    held = 8192 * kv.block_bytes
    before = psutil.Process().memory_info().rss
    del kv
    gc.collect()
    assert before - psutil.Process().memory_info().rss > 0.95 * held


@CAN_GIVE_BACK
def test_region_is_taken_when_written_and_given_back_in_pages() -> None:
    size = 64 * 2**20
    before = psutil.Process().memory_info().rss
    region = HostRegion(size)
    assert psutil.Process().memory_info().rss - before < 2**20
    region.bytes.fill_(1)
    assert psutil.Process().memory_info().rss - before > 0.95 * size
    region.discard(100, size - 100)
    assert psutil.Process().memory_info().rss - before < 2**20
    assert region.bytes[:100].eq(1).all()
    assert region.bytes[mmap.PAGESIZE :][:100].eq(0).all()


def test_region_discard_within_one_page_keeps_it() -> None:
    region = HostRegion(3 * mmap.PAGESIZE)
    region.bytes.fill_(1)
    region.discard(10, mmap.PAGESIZE + 10)
    region.discard(2 * mmap.PAGESIZE, 3 * mmap.PAGESIZE - 1)
    assert region.bytes.eq(1).all()


def test_arena_slots_are_apart_and_counted_while_in_use() -> None:
    arena = HostArena(1000, 5)
    for index in range(5):
        arena.slot(index).fill_(index + 1)
    assert arena.touched_bytes == 5000
    arena.discard([1, 2])
    assert arena.touched_bytes == 3000
    assert [int(arena.slot(index)[0]) for index in (0, 3, 4)] == [1, 4, 5]
    assert arena.slot(3).shape == (1000,)
    assert arena.slot(3).eq(4).all()
    arena.slot(1).fill_(9)
    assert arena.touched_bytes == 4000


def test_arena_closed_has_no_slots_and_a_slot_still_held_stays_readable() -> None:
    arena = HostArena(5000, 3)
    held = arena.slot(1)
    arena.close()
    arena.close()
    assert arena.touched_bytes == 0
    held.fill_(1)
    with pytest.raises(IndexError, match="closed"):
        arena.slot(1)
    arena.discard([1])


def test_arena_without_slots() -> None:
    arena = HostArena(1000, 0)
    assert arena.touched_bytes == 0
    with pytest.raises(IndexError):
        arena.slot(0)
    arena.close()


@CAN_GIVE_BACK
def test_arena_gives_memory_back_on_discard_and_close() -> None:
    arena = HostArena(2**20, 32)
    before = psutil.Process().memory_info().rss
    for index in range(32):
        arena.slot(index).fill_(1)
    arena.discard(range(16))
    assert 15 * 2**20 < psutil.Process().memory_info().rss - before < 17 * 2**20
    held = arena.slot(20)
    arena.close()
    assert psutil.Process().memory_info().rss - before < 2**20
    assert held.shape == (2**20,)


def test_runs_of_numbers_in_any_order() -> None:
    assert runs_of([5, 1, 2, 9, 3, 2]) == [(1, 3), (5, 1), (9, 1)]
    assert runs_of([]) == []
