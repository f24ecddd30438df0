"""Paged kernels against the reference: with stand-ins for the kernels, and with the real ones on a GPU."""

import itertools

import pytest
import torch
from torch import Tensor

from inference.attention.base import AttentionBackend, LayerCall, Span
from inference.attention.flash import FlashKernel
from inference.attention.paged import (
    PagedAttention,
    PagedKernel,
    PagedStep,
    TableShape,
    power_of_two,
)
from inference.attention.reference import ReferenceAttention
from inference.kv_cache.layer_memory import KeyValues, LayerMemory
from inference.kv_cache.schemes import LayerGeometry, find_scheme
from inference.kv_cache.tensors import KvTensors
from tests.inference.paged_kernels import (
    EmulatedVarlen,
    emulated_flash_attn_varlen_func,
    span_over,
    varlen_on_gpu,
)
from tests.inference.tiny_models import fill_with_garbage

P = 256
SHAPES = {
    "one decode": [(300, 1)],
    "first token": [(0, 1)],
    "cold chunk": [(0, 40)],
    "chunk with past": [(530, 9)],
    "chunk over an edge": [(250, 12)],
    "decodes": [(700, 1), (0, 1), (255, 1), (256, 1)],
    "decodes beside chunks": [(300, 1), (8, 30), (511, 2), (0, 1)],
    "whole blocks": [(0, P), (P, 1), (2 * P - 1, 1)],
}
WINDOWS = (None, 1, 7, 255, 256, 300)
CPU = torch.device("cpu")


def kernels_of(name: str) -> PagedKernel:
    return EmulatedVarlen() if name == "varlen" else FlashKernel(emulated_flash_attn_varlen_func)


def make_memory(
    geometry: LayerGeometry, *, dtype: torch.dtype, device: torch.device, num_blocks: int = 24
) -> LayerMemory:
    """Blocks of numbers, in the type that the model computes in."""
    kv = KvTensors(
        [geometry],
        num_blocks=num_blocks,
        block_size=P,
        scheme=find_scheme("bf16" if dtype == torch.bfloat16 else "fp16", dtype),
        device=device,
    )
    fill_with_garbage(kv)
    return kv.layers[0]


def fill(memory: LayerMemory, spans: list[Span]) -> None:
    """Write numbers where the spans are, and leave garbage everywhere else."""
    generator = torch.Generator().manual_seed(7)
    for span in spans:
        for first, count in span.extents:
            rows = memory.planes[0].narrow(1, first, count)
            rows.copy_(torch.randn(rows.shape, generator=generator))


def make_spans(lengths: list[tuple[int, int]]) -> list[Span]:
    """Sequences over scattered blocks."""
    free = iter([9, 2, 17, 4, 3, 11, 1, 20, 6, 5, 15, 0])
    spans, row = [], 0
    for start, num_rows in lengths:
        table = list(itertools.islice(free, -(-(start + num_rows) // P)))
        spans.append(span_over(row, num_rows, start, table, P))
        row += num_rows
    return spans


def make_query(
    spans: list[Span], num_heads: int, head_dim: int, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    T = sum(span.num_rows for span in spans)
    generator = torch.Generator().manual_seed(3)
    return (2 * torch.randn(1, num_heads, T, head_dim, generator=generator)).to(device, dtype)


def attend(
    backend: AttentionBackend, spans: list[Span], query: Tensor, past: LayerMemory, call: LayerCall
) -> Tensor:
    backend.begin_step(spans)
    out = backend.attend(query, KeyValues(query, query), past, call)
    assert out.dtype == query.dtype
    return out.float()


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Within the rounding of 16 bits, of each row and head on its own."""
    error = (actual - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < 0.01


@pytest.mark.parametrize(
    ("heads", "dtype"),
    [((2, 2), torch.bfloat16), ((6, 2), torch.bfloat16), ((3, 1), torch.float16)],
    ids=["each", "grouped", "one"],
)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", ["varlen", "flash"])
@pytest.mark.parametrize("shape", SHAPES)
def test_paged_equals_the_reference(
    shape: str, name: str, window: int | None, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    spans = make_spans(SHAPES[shape])
    past = make_memory(LayerGeometry(heads[1], 8), dtype=dtype, device=CPU)
    fill(past, spans)
    query = make_query(spans, heads[0], 8, dtype=dtype, device=CPU)
    call = LayerCall(0.3, window)
    paged = PagedAttention(kernels_of(name), block_size=P, device=CPU)
    expected = attend(ReferenceAttention(), spans, query, past, call)
    assert_near(attend(paged, spans, query, past, call), expected)


def test_flash_caps_scores() -> None:
    spans = make_spans([(40, 3), (300, 1)])
    past = make_memory(LayerGeometry(2, 8), dtype=torch.bfloat16, device=CPU)
    fill(past, spans)
    query = make_query(spans, 6, 8, dtype=torch.bfloat16, device=CPU)
    paged = PagedAttention(kernels_of("flash"), block_size=P, device=CPU)
    capped = attend(paged, spans, query, past, LayerCall(0.3, softcap=1.5))
    assert_near(
        capped, attend(ReferenceAttention(), spans, query, past, LayerCall(0.3, softcap=1.5))
    )
    plain = attend(paged, spans, query, past, LayerCall(0.3))
    assert (capped - plain).abs().max() > 0.1


def test_pages_are_the_blocks_where_they_lie() -> None:
    past = make_memory(LayerGeometry(3, 8), dtype=torch.bfloat16, device=CPU, num_blocks=4)
    past.planes[0].copy_(torch.arange(past.planes[0].numel()).view(past.planes[0].shape) % 251)
    keys, values = past.pages(P)
    assert keys.shape == values.shape == (4, P, 3, 8)
    assert keys.untyped_storage().data_ptr() == past.planes[0].untyped_storage().data_ptr()
    assert keys.stride(-1) == values.stride(-1) == 1
    assert torch.equal(keys[2, 17, 1], past.planes[0][1, 2 * P + 17])
    assert torch.equal(values[3, 255, 0], past.planes[0][3, 4 * P - 1])


def test_numbers_of_a_step_are_those_of_its_spans() -> None:
    spans = make_spans([(300, 1), (0, 3)])
    shape = TableShape.of(spans, P)
    assert shape == TableShape(num_sequences=2, num_blocks=4)
    numbers = torch.tensor(PagedStep.numbers(spans, shape, P), dtype=torch.int32)
    assert len(numbers) == shape.num_numbers
    step = PagedStep.over(numbers, shape, max_rows=3, block_size=P)
    assert step.first_rows.tolist() == [0, 1, 4]
    assert step.first_keys.tolist() == [0, 301, 304]
    assert step.num_keys.tolist() == [301, 3]
    assert step.table.tolist() == [[9, 2, 0, 0], [17, 0, 0, 0]]
    assert (step.max_rows, step.max_keys) == (3, 4 * P)


@pytest.mark.parametrize(("tokens", "width"), [(1, 4), (4 * P, 4), (4 * P + 1, 8), (9 * P, 16)])
def test_tables_are_at_least_four_blocks_wide(tokens: int, width: int) -> None:
    span = Span(0, 1, tokens - 1, ((0, tokens),))  # type: ignore[arg-type]  # as an extent
    assert TableShape.of([span], P) == TableShape(1, width)


def test_blocks_of_long_runs_are_all_in_the_table() -> None:
    run = Span(0, 1, 3 * P + 5, ((4 * P, 3 * P + 6),))  # type: ignore[arg-type]  # as an extent
    assert PagedStep.numbers([run], TableShape(1, 4), P)[-4:] == [4, 5, 6, 7]


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (33, 64)])
def test_power_of_two(count: int, expected: int) -> None:
    assert power_of_two(count) == expected


# --- on a GPU ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("head_dim", [64, 72, 128, 256])
@pytest.mark.parametrize("heads", [(4, 4), (14, 2)], ids=["each", "seven"])
def test_varlen_equals_the_reference_on_a_gpu(
    heads: tuple[int, int], head_dim: int, dtype: torch.dtype
) -> None:
    for lengths, window in itertools.product(SHAPES.values(), WINDOWS):
        check_on_gpu(varlen_on_gpu(), lengths, window, heads, head_dim, dtype=dtype)


@pytest.mark.gpu
@pytest.mark.flash
@pytest.mark.parametrize("softcap", [None, 1.5], ids=["plain", "softcap"])
def test_flash_equals_the_reference_on_a_gpu(softcap: float | None) -> None:
    kernel = FlashKernel()
    reason = kernel.why_not_on(torch.device("cuda"))
    if reason:
        pytest.skip(f"without flash: {reason}")
    for lengths, window in itertools.product(SHAPES.values(), WINDOWS):
        check_on_gpu(kernel, lengths, window, (6, 2), 64, dtype=torch.bfloat16, softcap=softcap)


@pytest.mark.gpu
def test_varlen_shares_long_histories_out_on_a_gpu() -> None:
    """Two sequences of several thousand tokens: the kernel splits each over many multiprocessors."""
    lengths = [(11 * P + 3, 1), (7 * P, 1)]
    for heads in ((4, 4), (14, 2)):
        check_on_gpu(varlen_on_gpu(), lengths, None, heads, 64, dtype=torch.bfloat16, num_blocks=24)


def check_on_gpu(
    kernel: PagedKernel,
    lengths: list[tuple[int, int]],
    window: int | None,
    heads: tuple[int, int],
    head_dim: int,
    *,
    dtype: torch.dtype,
    softcap: float | None = None,
    num_blocks: int = 24,
) -> None:
    """A kernel against the reference, over blocks that are garbage wherever nobody wrote."""
    device = torch.device("cuda")
    free = iter(torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist())
    spans, row = [], 0
    for start, num_rows in lengths:
        table = list(itertools.islice(free, -(-(start + num_rows) // P)))
        spans.append(span_over(row, num_rows, start, table, P))
        row += num_rows
    geometry = LayerGeometry(heads[1], head_dim)
    past = make_memory(geometry, dtype=dtype, device=device, num_blocks=num_blocks)
    fill(past, spans)
    query = make_query(spans, heads[0], head_dim, dtype=dtype, device=device)
    call = LayerCall(head_dim**-0.5, window, softcap)
    paged = PagedAttention(kernel, block_size=P, device=device)
    with torch.inference_mode():
        expected = attend(ReferenceAttention(), spans, query, past, call)
        actual = attend(paged, spans, query, past, call)
    assert_near(actual, expected)
