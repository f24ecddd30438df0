"""Blocks where no kernel keeps scores to itself: cut as on a GPU, in 16 bits, and on a GPU."""

import pytest
import torch
from torch import Tensor

from inference.attention import blocks, cutting, partial
from inference.attention.base import Extent, LayerCall, Span, extents_of
from inference.attention.blocks import BlocksAttention
from inference.attention.cutting import Sizes, split
from inference.attention.partial import Partial, attend_all
from inference.attention.reference import ReferenceAttention
from inference.config import KvSchemeName
from inference.kv_cache.layer_memory import KeyValues
from inference.kv_cache.schemes import LayerGeometry, find_scheme
from inference.kv_cache.tensors import KvTensors
from tests.inference.test_attention import KH, SHAPES, D, H, make_step

MAX_SCORES = 100 * H
SMALL = Sizes(64 * KH * D, min_view_tokens=40, window_rows=12, max_scores=MAX_SCORES)


@pytest.mark.parametrize("is_scattered", [False, True], ids=["consecutive", "scattered"])
@pytest.mark.parametrize("scheme", ["fp32", "int8"])
@pytest.mark.parametrize("window", [None, 8, 30, 200])
@pytest.mark.parametrize("shape", SHAPES)
def test_history_cut_as_on_a_gpu_equals_the_reference(
    shape: str,
    window: int | None,
    scheme: KvSchemeName,
    is_scattered: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = []

    def noting(query: Tensor, past: KeyValues, call: LayerCall) -> Partial:
        scores.append(query.shape[1] * query.shape[2] * past.keys.shape[2])
        return attend_all(query, past, call)

    monkeypatch.setattr(cutting, "_ON_CPU", SMALL)
    monkeypatch.setattr(partial, "_has_kernel", lambda query, call: False)
    monkeypatch.setattr(blocks, "attend_all", noting)
    spans, query, new, past = make_step(SHAPES[shape], scheme=scheme, is_scattered=is_scattered)
    call = LayerCall(0.25, window)
    results = []
    for backend in (BlocksAttention(), ReferenceAttention()):
        backend.begin_step(spans)
        results.append(backend.attend(query, new, past, call))
    torch.testing.assert_close(results[0], results[1], atol=3e-6, rtol=1e-5)
    most_rows = max(span.num_rows for span in spans)
    assert max(scores, default=0) <= max(MAX_SCORES, H * most_rows)


def test_long_runs_are_read_where_they_lie_and_short_ones_together() -> None:
    extents = [Extent(0, 130), Extent(500, 10), Extent(300, 50), Extent(900, 5)]
    assert split(extents, 60, SMALL) == [
        (Extent(0, 60),),
        (Extent(60, 60),),
        (Extent(300, 50),),
        (Extent(120, 10), Extent(500, 10), Extent(900, 5)),
    ]
    # A piece of the most tokens there may be is not copied, however short it is.
    assert split([Extent(0, 40)], 20, SMALL) == [(Extent(0, 20),), (Extent(20, 20),)]
    kept_inside = SMALL._replace(max_scores=None)
    assert split([Extent(0, 130)], 60, kept_inside) == [(Extent(0, 130),)]
    assert split([Extent(0, 130)], 60, None) == [
        (Extent(0, 60),),
        (Extent(60, 60),),
        (Extent(120, 10),),
    ]


def large_scores(dtype: torch.dtype, size: float) -> tuple[Tensor, KeyValues]:
    """Queries and keys whose products are some hundreds times `size`."""
    generator = torch.Generator().manual_seed(4)
    query = 6 * size * torch.randn(1, H, 3, 64, generator=generator)
    keys = 6 * torch.randn(1, KH, 50, 64, generator=generator)
    values = torch.randn(1, KH, 50, 64, generator=generator)
    return query.to(dtype), KeyValues(keys.to(dtype), values.to(dtype))


def truth(query: Tensor, past: KeyValues, scaling: float) -> Tensor:
    keys, values = (each.double().repeat_interleave(H // KH, dim=1) for each in past)
    return (query.double() @ keys.transpose(2, 3) * scaling).softmax(-1) @ values


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 1.0), (torch.float16, 400.0)])
def test_scores_of_sixteen_bits_are_not_rounded(
    dtype: torch.dtype, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "_has_kernel", lambda query, call: False)
    query, past = large_scores(dtype, size)
    raw = query.double() @ past.keys.double().repeat_interleave(H // KH, 1).transpose(2, 3)
    assert raw.abs().max() > (65504 if dtype == torch.float16 else 512)
    scaling = 1 / (64 * size)
    out = attend_all(query, past, LayerCall(scaling)).out
    assert out.dtype == dtype
    expected = truth(query, past, scaling)
    error = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < 0.006  # rounded scores: 0.014 in bfloat16, NaN in float16


def test_products_on_cuda_are_widened_by_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "_can_widen", lambda device: device.type == "meta")
    meta = torch.device("meta")
    rows = torch.empty(1, KH, 9, D, dtype=torch.bfloat16, device=meta)
    slots = torch.empty(2 * KH, 80, D, dtype=torch.bfloat16, device=meta)
    past = KeyValues(slots[None, :KH, 3:53], slots[None, KH:, 3:53])
    products = partial._products(rows, past.keys)
    assert (products.shape, products.dtype) == ((1, KH, 9, 50), torch.float32)
    query = torch.empty(1, H, 3, D, dtype=torch.bfloat16, device=meta)
    out, lse = attend_all(query, past, LayerCall(0.25))
    assert (out.shape, out.dtype) == ((1, H, 3, D), torch.bfloat16)
    assert (lse.shape, lse.dtype) == ((1, H, 3), torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("start", [0, 700])
@pytest.mark.parametrize("num_rows", [1, 130])
def test_blocks_equal_the_reference_on_a_gpu(
    num_rows: int, start: int, window: int | None, dtype: torch.dtype
) -> None:
    device = torch.device("cuda")
    scheme = find_scheme("bf16" if dtype == torch.bfloat16 else "fp16", dtype)
    kv = KvTensors(
        [LayerGeometry(KH, 64)], num_blocks=64, block_size=16, scheme=scheme, device=device
    )
    past, length = kv.layers[0], start + num_rows
    generator = torch.Generator().manual_seed(1)
    table = torch.randperm(64, generator=generator).tolist()
    slots = torch.tensor([table[i // 16] * 16 + i % 16 for i in range(length)], device=device)
    drawn = torch.randn(3, 1, H, length, 64, generator=generator).to(device, dtype)
    new = past.write(slots, KeyValues(6 * drawn[0][:, :KH], drawn[1][:, :KH]))
    own = KeyValues(*(each[:, :, start:] for each in new))
    query = 6 * drawn[2][:, :, start:]
    results = []
    for backend in (BlocksAttention(), ReferenceAttention()):
        backend.begin_step([Span(0, num_rows, start, extents_of(table, 16, length))])
        results.append(backend.attend(query, own, past, LayerCall(1 / 64, window)).float())
    error = (results[0] - results[1]).norm(dim=-1) / results[1].norm(dim=-1)
    assert error.max() < 0.01
