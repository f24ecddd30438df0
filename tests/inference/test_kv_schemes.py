"""What each scheme stores, how near it is to the truth, and that it makes no other difference."""

import pytest
import torch
from torch import Tensor

from inference.attention.base import AttentionBackend, LayerCall, Span, extents_of
from inference.attention.blocks import BlocksAttention
from inference.attention.reference import ReferenceAttention
from inference.config import KvSchemeName
from inference.kv_cache.layer_memory import KeyValues
from inference.kv_cache.schemes import (
    LayerGeometry,
    Workspace,
    bytes_per_token,
    find_scheme,
    hadamard,
)
from inference.kv_cache.tensors import KvTensors
from inference.model.step import Chunk
from tests.inference.tiny_models import (
    fill_with_garbage,
    make_module,
    make_runner,
    make_tensors,
    make_tokens,
    run_chunked,
)

SCHEMES: tuple[KvSchemeName, ...] = ("fp32", "fp16", "bf16", "int8", "int4")
P = 8


def round_trip(scheme_name: KvSchemeName, numbers: Tensor) -> Tensor:
    """What is read of (2 * KH, T, D) that was written."""
    scheme = find_scheme(scheme_name, torch.float32)
    out = torch.full_like(numbers, torch.nan)
    scheme.decode(scheme.encode(numbers), out, Workspace())
    return out


def test_auto_follows_the_type_that_the_model_computes_in() -> None:
    assert find_scheme("auto", torch.float32).name == "fp16"
    assert find_scheme("auto", torch.float16).name == "fp16"
    assert find_scheme("auto", torch.bfloat16).name == "bf16"
    assert find_scheme("int8", torch.bfloat16).name == "int8"


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [("fp32", 3072), ("fp16", 1536), ("bf16", 1536), ("int8", 792), ("int4", 636)],
)
def test_bytes_per_token(scheme: KvSchemeName, expected: int) -> None:
    geometry = [LayerGeometry(num_kv_heads=3, head_dim=64)] * 2
    assert bytes_per_token(geometry, find_scheme(scheme, torch.float32)) == expected


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_int8_halves_the_memory_within_five_percent_and_int4_takes_less(head_dim: int) -> None:
    geometry = [LayerGeometry(num_kv_heads=3, head_dim=head_dim)]
    fp16, int8, int4 = (
        bytes_per_token(geometry, find_scheme(name, torch.float32))
        for name in ("fp16", "int8", "int4")
    )
    assert int8 == pytest.approx(fp16 / 2, rel=0.05)
    assert 0.39 < int4 / fp16 < 0.44


def test_fp16_keeps_outliers_finite_and_lets_nan_be_seen() -> None:
    numbers = torch.tensor([[[1e6, -1e6, torch.inf, 0.1, torch.nan, 65504.0, 0.0, -2.0]]] * 2)
    stored = round_trip("fp16", numbers)[0, 0]
    assert stored[:3].tolist() == [65504.0, -65504.0, 65504.0]
    assert stored[4].isnan()
    assert stored[5:].tolist() == [65504.0, 0.0, -2.0]


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e-4, 1e-3, 1.0, 300.0, 1e5])
def test_int8_is_within_half_a_code(size: float) -> None:
    numbers = size * torch.randn(4, 50, 64, generator=torch.Generator().manual_seed(1))
    error = (round_trip("int8", numbers).double() - numbers.double()).abs().amax(dim=-1)
    code = (numbers.double().abs().amax(dim=-1) / 127).clamp(min=2.0**-17)
    assert (error / code).max() < 0.51


@pytest.mark.parametrize("size", [1e-30, 1e-4, 1e-3, 1.0, 300.0])
@pytest.mark.parametrize("head_dim", [8, 48, 64, 72])
def test_int4_has_keys_of_int8_and_values_within_half_a_code(size: float, head_dim: int) -> None:
    numbers = size * torch.randn(4, 50, head_dim, generator=torch.Generator().manual_seed(1))
    group = {8: 8, 48: 24, 64: 32, 72: 24}[head_dim]
    stored = round_trip("int4", numbers)
    assert torch.equal(stored[:2], round_trip("int8", numbers)[:2])
    error = (stored[2:].double() - numbers[2:].double()).view(2, 50, -1, group)
    grouped = numbers[2:].double().view(2, 50, -1, group)
    code = ((grouped.amax(dim=-1) - grouped.amin(dim=-1)) / 15).clamp(min=2.0**-17)
    assert (error.abs().amax(dim=-1) / code).max() < 0.53


@pytest.mark.parametrize("scheme", SCHEMES)
def test_zeros_come_back_as_zeros_and_nan_is_never_hidden(scheme: KvSchemeName) -> None:
    numbers = torch.zeros(2, 3, 64)
    numbers[0, 1, 5] = torch.nan
    stored = round_trip(scheme, numbers)
    assert stored[0, 1].isnan().any()
    stored[0, 1] = 0.0
    assert torch.equal(stored, torch.zeros(2, 3, 64))


@pytest.mark.parametrize("size", [8, 64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_there_and_back_is_exact(size: int, dtype: torch.dtype) -> None:
    factors = find_scheme("int4", dtype).rotation_factors(size)
    assert factors is not None
    there, back = (hadamard(size, factor=f, device=torch.device("cpu")).to(dtype) for f in factors)
    assert torch.equal(there @ back.T, torch.eye(size, dtype=dtype))


def test_heads_that_are_no_power_of_two_are_not_rotated() -> None:
    assert find_scheme("int4", torch.float32).rotation_factors(80) is None
    assert find_scheme("int8", torch.float32).rotation_factors(96) is None


def make_layer(scheme: KvSchemeName, *, head_dim: int = 64, num_blocks: int = 20) -> KvTensors:
    return make_tensors([LayerGeometry(2, head_dim)], scheme, num_blocks=num_blocks, block_size=P)


def make_new(
    num_tokens: int, *, head_dim: int = 64, dtype: torch.dtype = torch.float32
) -> KeyValues:
    generator = torch.Generator().manual_seed(num_tokens)
    shape = (1, 2, num_tokens, head_dim)
    return KeyValues(*(torch.randn(shape, generator=generator).to(dtype) for _ in range(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 48])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_write_returns_what_is_read_later_however_it_is_written_and_read(
    scheme: KvSchemeName, head_dim: int, dtype: torch.dtype
) -> None:
    kv = make_layer(scheme, head_dim=head_dim)
    layer = kv.layers[0]
    new = make_new(50, head_dim=head_dim, dtype=dtype)
    slots = torch.randperm(20 * P, generator=torch.Generator().manual_seed(2))[:50]
    whole = kv.write(0, slots, new)
    assert whole.keys.shape == new.keys.shape
    assert whole.values.dtype == dtype
    expected = torch.cat(whole, dim=1)[0]
    out = torch.empty(4, 50, head_dim, dtype=dtype)
    layer.read_slots(slots, out)
    assert torch.equal(out, expected)
    layer.read_run(int(slots[7]), 1, out[:, :1])
    assert torch.equal(out[:, :1], expected[:, 7:8])
    fill_with_garbage(kv)
    kv.write(0, slots, new)
    run = torch.empty(4, 20 * P, head_dim, dtype=dtype)
    layer.read_run(0, 20 * P, run)
    assert torch.equal(run[:, slots], expected)


def attend_exactly(query: Tensor, new: KeyValues, call: LayerCall) -> Tensor:
    """Causal attention in float64 over keys and values as the model made them: (1, T, H, D)."""
    T, group = query.shape[2], query.shape[1] // new.keys.shape[1]
    keys, values = (part.double().repeat_interleave(group, dim=1) for part in new)
    scores = query.double() @ keys.transpose(2, 3) * call.scaling
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    hidden = (distance < 0) | (distance >= (call.window or T))
    return (scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ values).transpose(1, 2)


# Largest difference of an attended value of size 1.
TOLERANCE: dict[KvSchemeName, float] = {
    "fp32": 1e-5,
    "fp16": 2e-3,
    "bf16": 2e-2,
    "int8": 3e-2,
    "int4": 0.3,
}


@pytest.mark.parametrize("call", [LayerCall(0.125), LayerCall(0.125, 20), LayerCall(0.125, 9, 3.0)])
@pytest.mark.parametrize("backend", [BlocksAttention(), ReferenceAttention()], ids=lambda b: b.name)
@pytest.mark.parametrize("head_dim", [64, 48])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_attention_is_near_the_exact_one(
    scheme: KvSchemeName, head_dim: int, backend: AttentionBackend, call: LayerCall
) -> None:
    kv = make_layer(scheme, head_dim=head_dim)
    new = make_new(90, head_dim=head_dim)
    query = torch.randn(1, 4, 90, head_dim, generator=torch.Generator().manual_seed(5))
    expected = attend_exactly(query, new, call)
    table = torch.randperm(20, generator=torch.Generator().manual_seed(3)).tolist()
    slots = torch.tensor([table[i // P] * P + i % P for i in range(90)])
    rotation = kv.layers[0].rotation
    turned = query if rotation is None else query @ rotation.to_query
    for start, end in ((0, 60), (60, 89), (89, 90)):
        part = KeyValues(*(tensor[:, :, start:end] for tensor in new))
        stored = kv.write(0, slots[start:end], part)
        backend.begin_step([Span(0, end - start, start, extents_of(table, P, end))])
        out = backend.attend(turned[:, :, start:end], stored, kv.layers[0], call)
        out = out if rotation is None else out @ rotation.to_query
        error = (out - expected[:, start:end]).abs().max()
        assert error < TOLERANCE[scheme]


@pytest.mark.parametrize("attention", ["blocks", "reference"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_next_token_is_the_same_in_chunks_whole_scattered_and_beside_others(
    family: str, scheme: KvSchemeName, attention: str
) -> None:
    module = make_module(family)
    prompt = make_tokens(3 * P + 5)
    table = [5, 6, 7, 9]
    rows = []
    for chunk_tokens in (1, P - 1, P + 1, len(prompt)):
        runner = make_runner(module, attention=attention, block_size=P, kv_scheme=scheme)
        rows.append(run_chunked(runner, prompt, table, chunk_tokens=chunk_tokens)[-1])
    runner = make_runner(module, attention=attention, block_size=P, kv_scheme=scheme)
    rows.append(run_chunked(runner, prompt, [30, 2, 17, 8], chunk_tokens=11)[-1])
    other = Chunk(make_tokens(13, seed=4), 0, [40, 41], needs_logits=False)
    run_chunked(runner, prompt[:-3], table, chunk_tokens=64)
    last = Chunk(prompt[-3:], len(prompt) - 3, table, needs_logits=True)
    rows.append(runner.run([other, last])[0])
    assert len({int(row.argmax()) for row in rows}) == 1
    # A code may fall the other way in another chunk, as the matrix products differ in the last bit.
    tolerance = 1e-4 if scheme in ("fp32", "fp16") else 0.03
    torch.testing.assert_close(torch.stack(rows), rows[0].expand(6, -1), atol=tolerance, rtol=0)


@pytest.mark.parametrize(("scheme", "limit"), [("fp16", 5e-3), ("int8", 0.05), ("int4", 0.6)])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_logits_are_near_those_of_fp32(family: str, scheme: KvSchemeName, limit: float) -> None:
    module = make_module(family)
    prompt = make_tokens(3 * P + 5)
    exact, near = (
        run_chunked(make_runner(module, kv_scheme=name), prompt, [5, 6, 7, 9], chunk_tokens=9)
        for name in ("fp32", scheme)
    )
    difference = (near - exact).abs().max() / exact.std()
    assert 1e-7 < difference < limit
