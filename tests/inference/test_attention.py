"""Blocks against the reference, and the parts that attention is put together from."""

import itertools
import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from inference.attention.base import Extent, LayerCall, Span, cut_extents, extents_of
from inference.attention.blocks import BlocksAttention
from inference.attention.partial import attend_all, attend_causal, attend_edge, merge
from inference.attention.reference import ReferenceAttention
from inference.config import KvSchemeName
from inference.kv_cache.layer_memory import KeyValues, LayerMemory
from inference.kv_cache.schemes import LayerGeometry
from tests.inference.tiny_models import make_tensors

H, KH, D, P = 6, 2, 16, 8
SCHEMES: tuple[KvSchemeName, ...] = ("fp32", "fp16", "bf16", "int8", "int4")


def test_extents_of_consecutive_blocks_are_one_run() -> None:
    assert extents_of([3, 4, 5, 9, 2, 3], 8, 45) == (
        Extent(24, 24),
        Extent(72, 8),
        Extent(16, 13),
    )


def test_extents_of_more_blocks_than_tokens_end_at_the_last_token() -> None:
    assert extents_of([7, 1], 8, 3) == (Extent(56, 3),)


def test_extents_of_nothing_are_none() -> None:
    assert extents_of([7, 1], 8, 0) == ()
    assert extents_of([], 8, 0) == ()


@pytest.mark.parametrize("num_tokens", [1, 7, 8, 9, 16, 80, 81, 399, 400])
def test_extents_hold_the_slots_of_all_tokens_in_order(num_tokens: int) -> None:
    dice = random.Random(num_tokens)
    for table in ([*range(20, 70)], dice.sample(range(60), 50), [*range(30, 55), *range(5, 30)]):
        slots = [table[token // 8] * 8 + token % 8 for token in range(num_tokens)]
        extents = extents_of(table, 8, num_tokens)
        assert [s for first, count in extents for s in range(first, first + count)] == slots
        joined = [
            one.first_slot + one.num_slots != two.first_slot for one, two in pairwise(extents)
        ]
        assert all(joined)


def test_cut_extents_takes_the_tokens_asked_for() -> None:
    extents = (Extent(24, 24), Extent(72, 8), Extent(16, 13))
    assert cut_extents(extents, 20, 34) == [Extent(44, 4), Extent(72, 8), Extent(16, 2)]
    assert cut_extents(extents, 24, 24) == []


def make_parts(num_keys: int, num_rows: int, *, seed: int = 0) -> tuple[Tensor, KeyValues]:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, H, num_rows, D, generator=generator)
    keys, values = (torch.randn(1, KH, num_keys, D, generator=generator) for _ in range(2))
    return query, KeyValues(keys, values)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_merge_of_parts_is_attention_over_all(softcap: float | None) -> None:
    query, past = make_parts(50, 3)
    call = LayerCall(0.25, softcap=softcap)
    cuts = [KeyValues(past.keys[:, :, a:b], past.values[:, :, a:b]) for a, b in ((0, 7), (7, 50))]
    whole = attend_all(query, past, call).out
    merged = merge([attend_all(query, cut, call) for cut in cuts], call)
    torch.testing.assert_close(merged, whole, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attend_edge_row_that_sees_nothing_counts_for_nothing(softcap: float | None) -> None:
    query, edge = make_parts(3, 4)
    part = attend_edge(query, edge, LayerCall(0.25, softcap=softcap))
    assert torch.equal(part.lse[0, :, 3], torch.full((H,), -torch.inf))
    assert torch.equal(part.out[0, :, 3], torch.zeros(H, D))
    last_but_one = KeyValues(edge.keys[:, :, 2:], edge.values[:, :, 2:])
    alone = attend_all(query[:, :, 2:3], last_but_one, LayerCall(0.25, softcap=softcap))
    torch.testing.assert_close(part.out[:, :, 2:3], alone.out)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attend_causal_first_row_sees_itself_only(softcap: float | None) -> None:
    query, new = make_parts(5, 5)
    part = attend_causal(query, new, LayerCall(0.25, softcap=softcap))
    values = new.values.repeat_interleave(H // KH, dim=1)
    torch.testing.assert_close(part.out[:, :, 0], values[:, :, 0])
    expected = attend_all(query[:, :, 4:5], new, LayerCall(0.25, softcap=softcap))
    torch.testing.assert_close(part.out[:, :, 4:5], expected.out, atol=1e-6, rtol=1e-5)


def make_memory(
    num_blocks: int, *, scheme: KvSchemeName, num_kv_heads: int = KH, head_dim: int = D
) -> LayerMemory:
    """One layer's memory, full of garbage."""
    geometry = [LayerGeometry(num_kv_heads, head_dim)]
    return make_tensors(geometry, scheme, num_blocks=num_blocks, block_size=P).layers[0]


def fill(memory: LayerMemory, slots: Tensor, *, seed: int) -> KeyValues:
    """Write random tokens; returns them as they are stored, (1, KH, T, D)."""
    shape = (1, memory.geometry.num_kv_heads, len(slots), memory.geometry.head_dim)
    generator = torch.Generator().manual_seed(seed)
    new = KeyValues(*(torch.randn(shape, generator=generator) for _ in range(2)))
    return memory.write(slots, new)


def make_step(
    lengths: list[tuple[int, int]], *, scheme: KvSchemeName, is_scattered: bool
) -> tuple[list[Span], Tensor, KeyValues, LayerMemory]:
    """Spans of (start, new tokens); slots that nobody owns are full of garbage."""
    generator = torch.Generator().manual_seed(len(lengths))
    num_blocks = sum(-(-(start + rows) // P) for start, rows in lengths) + 5
    order = torch.randperm(num_blocks, generator=generator).tolist()
    free = iter(order if is_scattered else range(num_blocks))
    past = make_memory(num_blocks, scheme=scheme)
    spans, new, row = [], [], 0
    for start, rows in lengths:
        table = list(itertools.islice(free, -(-(start + rows) // P)))
        slots = torch.tensor([table[i // P] * P + i % P for i in range(start + rows)])
        stored = fill(past, slots, seed=row)
        new.append(KeyValues(stored.keys[:, :, start:], stored.values[:, :, start:]))
        spans.append(Span(row, rows, start, extents_of(table, P, start + rows)))
        row += rows
    query = torch.randn(1, H, row, D, generator=generator)
    return spans, query, KeyValues(*(torch.cat(t, dim=2) for t in zip(*new, strict=True))), past


SHAPES = {
    "one decode": [(70, 1)],
    "first token": [(0, 1)],
    "cold chunk": [(0, 40)],
    "chunk with past": [(23, 9)],
    "long past": [(1100, 5)],
    "two decodes and a chunk": [(70, 1), (8, 1), (33, 150)],
    "block edges": [(7, 1), (8, 8), (9, 7), (16, 1)],
}


@pytest.mark.parametrize("is_scattered", [False, True], ids=["consecutive", "scattered"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("softcap", [None, 3.0], ids=["plain", "softcap"])
@pytest.mark.parametrize("window", [None, 1, 2, 8, 30, 200])
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_equal_the_reference(
    shape: str, window: int | None, softcap: float | None, scheme: KvSchemeName, is_scattered: bool
) -> None:
    spans, query, new, past = make_step(SHAPES[shape], scheme=scheme, is_scattered=is_scattered)
    call = LayerCall(0.25, window, softcap)
    results = []
    for backend in (BlocksAttention(), ReferenceAttention()):
        backend.begin_step(spans)
        results.append(backend.attend(query, new, past, call))
    torch.testing.assert_close(results[0], results[1], atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("softcap", [None, 3.0], ids=["plain", "softcap"])
@pytest.mark.parametrize("window", [None, 1, 8, 200])
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_with_sinks_equal_the_reference(
    shape: str, window: int | None, softcap: float | None
) -> None:
    spans, query, new, past = make_step(SHAPES[shape], scheme="fp16", is_scattered=True)
    call = LayerCall(0.25, window, softcap, torch.linspace(-2.0, 60.0, H))
    results = []
    for backend in (BlocksAttention(), ReferenceAttention()):
        backend.begin_step(spans)
        results.append(backend.attend(query, new, past, call))
    torch.testing.assert_close(results[0], results[1], atol=3e-6, rtol=1e-5)


def test_a_sink_takes_its_share_of_the_weights() -> None:
    query, past = make_parts(1, 1)  # one key: without a sink its value is the result
    sinks = torch.full((H,), -torch.inf)
    scores = (query[0, :, 0] * past.keys[0, :, 0].repeat_interleave(H // KH, 0)).sum(1) * 0.25
    sinks[0] = scores[0] + torch.log(torch.tensor(3.0))
    out = merge([attend_all(query, past, LayerCall(0.25))], LayerCall(0.25, sinks=sinks))
    value = past.values.repeat_interleave(H // KH, dim=1)
    torch.testing.assert_close(out[:, 0], value[:, 0] / 4, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(out[:, 1:], value[:, 1:])


def test_blocks_next_step_forgets_the_plan_of_the_last() -> None:
    backend = BlocksAttention()
    for is_scattered in (False, True):  # the same lengths in other blocks
        spans, query, new, past = make_step([(60, 4)], scheme="fp16", is_scattered=is_scattered)
        backend.begin_step(spans)
        reference = ReferenceAttention()
        reference.begin_step(spans)
        call = LayerCall(0.25)
        torch.testing.assert_close(
            backend.attend(query, new, past, call),
            reference.attend(query, new, past, call),
            atol=3e-6,
            rtol=1e-5,
        )


@pytest.mark.parametrize("num_rows", [1, 30])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_blocks_scattered_over_more_than_the_scratch_equal_the_reference(
    num_rows: int, scheme: KvSchemeName
) -> None:
    wide_kh, wide_d = 8, 128  # 512 tokens fill the scratch
    generator = torch.Generator().manual_seed(3)
    length = 1100 + num_rows
    table = torch.randperm(160, generator=generator).tolist()
    past = make_memory(160, scheme=scheme, num_kv_heads=wide_kh, head_dim=wide_d)
    stored = fill(past, torch.tensor([table[i // P] * P + i % P for i in range(length)]), seed=3)
    new = KeyValues(*(tensor[:, :, 1100:] for tensor in stored))
    query = torch.randn(1, 2 * wide_kh, num_rows, wide_d, generator=generator)
    results = []
    for backend in (BlocksAttention(), ReferenceAttention()):
        backend.begin_step([Span(0, num_rows, 1100, extents_of(table, P, length))])
        results.append(backend.attend(query, new, past, LayerCall(0.1)))
    torch.testing.assert_close(results[0], results[1], atol=3e-6, rtol=1e-5)


def test_blocks_of_two_geometries_share_a_step() -> None:
    spans, query, new, past = make_step([(40, 3)], scheme="fp16", is_scattered=True)
    narrow = make_memory(past.planes[0].shape[1] // P, scheme="fp16", num_kv_heads=1)
    slots = torch.cat([torch.arange(first, first + count) for first, count in spans[0].extents])
    narrow_new = KeyValues(*(tensor[:, :, 40:] for tensor in fill(narrow, slots, seed=2)))
    backend, reference = BlocksAttention(), ReferenceAttention()
    for each in (backend, reference):
        each.begin_step(spans)
    for own, blocks in ((new, past), (narrow_new, narrow)):
        torch.testing.assert_close(
            backend.attend(query, own, blocks, LayerCall(0.25)),
            reference.attend(query, own, blocks, LayerCall(0.25)),
            atol=3e-6,
            rtol=1e-5,
        )


def test_blocks_decode_gives_the_same_bits_on_any_number_of_threads() -> None:
    generator = torch.Generator().manual_seed(5)
    past = make_memory(40, scheme="fp32", num_kv_heads=3, head_dim=64)
    stored = fill(past, torch.arange(100), seed=5)
    query = torch.randn(1, 9, 1, 64, generator=generator)
    new = KeyValues(*(tensor[:, :, 99:] for tensor in stored))
    spans = [Span(0, 1, 99, extents_of(range(40), P, 100))]
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            backend = BlocksAttention()
            backend.begin_step(spans)
            results.append(backend.attend(query, new, past, LayerCall(0.125)))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
