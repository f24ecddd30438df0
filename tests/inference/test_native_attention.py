"""The kernels' attention against the reference backend, and against itself cut in other ways."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from inference.attention.base import LayerCall, Span, extents_of
from inference.attention.reference import ReferenceAttention
from inference.config import KvSchemeName
from inference.kernels.structures import Layer
from inference.kv_cache.layer_memory import KeyValues
from inference.kv_cache.tensors import KvTensors
from inference.model.spec import LayerSpec
from tests.inference.native_models import (
    ISAS,
    SCHEMES,
    NativeModel,
    attend,
    random_model,
    store,
    use_isa,
)
from tests.inference.tiny_decoders import make_variant, spec_of

P = 8
EDGES = (1, 7, 63, 64, 65, 127, 300, 511, 512, 513, 577, 1100)
# Sums in another order.
TOLERANCE = 2e-5


def make_model(
    *,
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 16,
    window: int | None = None,
    cap: float = 0.0,
) -> NativeModel:
    spec = replace(
        spec_of(make_variant("llama")),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        layers=(LayerSpec(window),),
        attention_softcap=cap or None,
    )
    return random_model(spec)


class Sequences:
    """Sequences in scattered blocks among garbage, and queries to all of their tokens."""

    def __init__(self, model: NativeModel, scheme: KvSchemeName, lengths: Sequence[int]) -> None:
        self.model = model
        self.sinks: Tensor | None = None
        self.lengths = lengths
        counts = [-(-length // P) for length in lengths]
        self.kv: KvTensors = model.new_kv(scheme, num_blocks=sum(counts) + 3, block_size=P)
        generator = torch.Generator().manual_seed(len(lengths))
        # Runs of four blocks that follow each other, in no order.
        runs = torch.randperm(-(-self.kv.num_blocks // 4), generator=generator)
        ids = (runs[:, None] * 4 + torch.arange(4)).flatten()
        free = [index for index in ids.tolist() if index < self.kv.num_blocks]
        self.tables = [[free.pop() for _ in range(count)] for count in counts]
        shape = model.spec
        self.queries = []
        for length, table in zip(lengths, self.tables, strict=True):
            slots = [table[token // P] * P + token % P for token in range(length)]
            keys, values = torch.randn(
                2, length, shape.num_kv_heads, shape.head_dim, generator=generator
            )
            store(model, self.kv, slots, keys, values)
            query = torch.randn(length, shape.num_heads, shape.head_dim, generator=generator)
            self.queries.append(query * shape.head_dim**-0.5)  # turned or not, it is random

    def add_sinks(self, sinks: Tensor) -> None:
        """Let them join the softmax of each head, (H,), float32."""
        self.sinks = sinks
        ctypes.cast(self.model.structure.layers, ctypes.POINTER(Layer))[0].sinks = sinks.data_ptr()

    def attend(self, parts: Sequence[tuple[int, int, int]], num_threads: int = 2) -> Tensor:
        """Attend for parts (sequence, first token, end) in one step, (T, H, D)."""
        spans, queries, row = [], [], 0
        for sequence, first, end in parts:
            extents = extents_of(self.tables[sequence], P, end)
            spans.append(Span(row, end - first, first, extents))
            queries.append(self.queries[sequence][first:end])
            row += end - first
        return attend(self.model, self.kv, spans, torch.cat(queries), num_threads=num_threads)

    def reference(self, sequence: int, first: int, end: int) -> Tensor:
        """The reference backend's answer."""
        backend, past = ReferenceAttention(), self.kv.layers[0]
        extents = extents_of(self.tables[sequence], P, end)
        backend.begin_step([Span(0, end - first, first, extents)])
        query = self.queries[sequence][first:end].transpose(0, 1)[None]
        spec = self.model.spec
        call = LayerCall(1.0, spec.layers[0].window, spec.attention_softcap, self.sinks)
        out = backend.attend(query, KeyValues(query, query), past, call)[0]
        return out if past.rotation is None else out @ past.rotation.to_query


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("head_dim", [10, 16, 24, 64, 80, 128])
def test_attention_equals_the_reference(isa: str, scheme: KvSchemeName, head_dim: int) -> None:
    use_isa(isa)
    sequences = Sequences(make_model(head_dim=head_dim), scheme, [1100, 65])
    for sequence, first, end in [
        (0, 0, 70),
        (0, 1000, 1100),
        (0, 511, 513),
        (0, 1099, 1100),
        (1, 0, 65),
    ]:
        actual = sequences.attend([(sequence, first, end)])
        expected = sequences.reference(sequence, first, end)
        torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(4, 4), (2, 1), (6, 1), (7, 1), (5, 1), (8, 1), (8, 2), (64, 1)]
)
def test_attention_of_any_group_equals_the_reference(isa: str, heads: int, kv_heads: int) -> None:
    use_isa(isa)
    sequences = Sequences(make_model(heads=heads, kv_heads=kv_heads), "fp16", [700])
    for first, end in [(0, 130), (690, 700), (699, 700)]:
        actual = sequences.attend([(0, first, end)])
        expected = sequences.reference(0, first, end)
        torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("cap", [0.0, 3.0])
def test_sinks_equal_the_reference(
    isa: str, scheme: KvSchemeName, window: int | None, cap: float
) -> None:
    use_isa(isa)
    sequences = Sequences(make_model(window=window, cap=cap), scheme, [1100, 65])
    # Such that hardly count, that take half, and beside which nothing else counts.
    sequences.add_sinks(torch.tensor([-200.0, -2.0, 0.0, 3.0, 30.0, 200.0]))
    for sequence, first, end in [(0, 0, 70), (0, 1000, 1100), (0, 1099, 1100), (1, 0, 65)]:
        actual = sequences.attend([(sequence, first, end)])
        expected = sequences.reference(sequence, first, end)
        torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=1e-4)
        assert (actual[:, 5] == 0).all()
        assert actual[:, :4].abs().amax() > 0.1


@pytest.mark.parametrize("isa", ISAS)
def test_what_is_no_number_stays_none_beside_a_sink(isa: str) -> None:
    use_isa(isa)
    sequences = Sequences(make_model(), "fp32", [700])
    sequences.add_sinks(torch.tensor([-5.0, -1.0, 0.0, 1.0, 5.0, 3e38]))
    assert torch.isfinite(sequences.attend([(0, 600, 700)])).all()
    assert (sequences.attend([(0, 600, 700)])[:, 5] == 0).all()
    sequences.queries[0][650, :, 3] = torch.nan
    out = sequences.attend([(0, 600, 700)])
    assert torch.isnan(out[50]).all()
    assert torch.isfinite(out[51:]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 500, 513])
def test_windows_equal_the_reference(isa: str, window: int) -> None:
    use_isa(isa)
    sequences = Sequences(make_model(window=window), "fp16", [1100])
    spans = [(0, window + 1), (0, 1100), (1099, 1100)]
    spans += [(max(0, window - 2), window - 1)] if window > 1 else []
    spans += [(window - 1, window), (window, window + 1), (window + 1, window + 2)]
    for first, end in spans:
        actual = sequences.attend([(0, first, end)])
        expected = sequences.reference(0, first, end)
        torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", ["fp16", "int8"])
def test_soft_caps_equal_the_reference(isa: str, scheme: KvSchemeName) -> None:
    use_isa(isa)
    sequences = Sequences(make_model(cap=3.0), scheme, [600])
    for first, end in [(0, 600), (599, 600)]:
        actual = sequences.attend([(0, first, end)])
        expected = sequences.reference(0, first, end)
        torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("window", [None, 70])
def test_rows_are_the_same_bits_however_they_are_computed(
    isa: str, scheme: KvSchemeName, window: int | None
) -> None:
    use_isa(isa)
    sequences = Sequences(make_model(window=window), scheme, EDGES)
    longest = len(EDGES) - 1
    whole = sequences.attend([(longest, 0, EDGES[-1])], num_threads=1)
    for size in (7, 64, 300):
        for num_threads in (1, 2, 3):
            parts = [
                (longest, low, min(low + size, EDGES[-1])) for low in range(0, EDGES[-1], size)
            ]
            cut = torch.cat([sequences.attend([part], num_threads) for part in parts])
            assert torch.equal(cut, whole)
    tokens = [end - 1 for end in EDGES]
    alone = torch.cat([sequences.attend([(longest, token, token + 1)]) for token in tokens])
    assert torch.equal(alone, whole[tokens])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_few_rows_of_any_group_are_the_bits_of_many(
    isa: str, scheme: KvSchemeName, group: int
) -> None:
    use_isa(isa)
    sequences = Sequences(make_model(heads=2 * group, head_dim=64), scheme, [200])
    many = sequences.attend([(0, 100, 200)])
    for size in (1, 2, 3):
        parts = [(0, low, min(low + size, 200)) for low in range(100, 200, size)]
        assert torch.equal(torch.cat([sequences.attend([part]) for part in parts]), many)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_rows_are_the_same_bits_in_a_batch(isa: str, num_threads: int) -> None:
    use_isa(isa)
    sequences = Sequences(make_model(), "int8", EDGES)
    last = [(index, end - 1, end) for index, end in enumerate(EDGES)]
    alone = torch.cat([sequences.attend([part]) for part in last])
    assert torch.equal(sequences.attend(last, num_threads), alone)
    mixed = [(10, 100, 400), (0, 0, 1), (11, 1090, 1100), (5, 126, 127), (9, 500, 513)]
    alone = torch.cat([sequences.attend([part]) for part in mixed])
    assert torch.equal(sequences.attend(mixed, num_threads), alone)
