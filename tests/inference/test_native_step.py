"""A whole step of the kernels, against transformers and against the torch path over the same blocks."""

import threading
import time
from ctypes import c_int32
from dataclasses import replace

import pytest
import torch

from inference.config import KvSchemeName
from inference.kernels.library import KernelError
from inference.kernels.structures import Layer, Matrix, MatrixType
from inference.kv_cache.schemes import find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.model.spec import LayerSpec, ModelSpec, RopeSpec
from inference.model.step import Chunk
from tests.inference.native_models import (
    ISAS,
    SCHEMES,
    native_of,
    random_model,
    run_chunked,
    run_step,
    try_step,
    use_isa,
)
from tests.inference.tiny_decoders import (
    VARIANTS,
    decoder_of,
    make_decoder_runner,
    make_variant,
    spec_of,
)
from tests.inference.tiny_models import VOCAB_SIZE, eager_logits, make_tokens
from tests.inference.tiny_models import run_chunked as run_torch

P = 8
PROMPT = make_tokens(4 * P + 5)
TABLE = [5, 6, 7, 9, 2, 1]  # a run of three, then scattered
LONG = make_tokens(600, seed=7)
LONG_TABLE = [*range(40, 70), *range(38), *range(80, 90)]
CHUNKS = (1, 7, 64, 300)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers_and_are_the_same_bits_in_chunks(variant: str) -> None:
    module = make_variant(variant)
    model, expected = native_of(module), eager_logits(module, PROMPT)
    whole = run_chunked(model, model.new_kv("fp32"), PROMPT, TABLE, chunk_tokens=len(PROMPT))
    torch.testing.assert_close(whole, expected, atol=1e-4, rtol=0)
    for chunk_tokens in (1, P - 1, P, P + 1):
        kv = model.new_kv("fp32")
        assert torch.equal(run_chunked(model, kv, PROMPT, TABLE, chunk_tokens=chunk_tokens), whole)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "variant",
    [
        "llama-biases",
        "gemma2",
        "gemma3",
        "gemma4",
        "gemma4-keys-as-values",
        "olmo2",
        "phi3-partial",
    ],
)
def test_every_instruction_set_gives_the_logits_of_transformers(isa: str, variant: str) -> None:
    use_isa(isa)
    module = make_variant(variant)
    model = native_of(module)
    logits = run_chunked(model, model.new_kv("fp32"), PROMPT, TABLE, chunk_tokens=P + 1)
    torch.testing.assert_close(logits, eager_logits(module, PROMPT), atol=1e-4, rtol=0)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "variant",
    ["llama", "llama-wide-heads", "qwen2", "gemma3", "gemma4", "gemma4-keys-as-values", "olmo2"],
)
def test_stored_numbers_and_logits_are_those_of_the_torch_path(
    scheme: KvSchemeName, variant: str
) -> None:
    module = make_variant(variant)
    model, runner = native_of(module), make_decoder_runner(decoder_of(module), kv_scheme=scheme)
    kv = model.new_kv(scheme)
    actual = run_chunked(model, kv, PROMPT, TABLE, chunk_tokens=P + 1)
    ends = [min(low + P, len(PROMPT) - 1) for low in range(0, len(PROMPT), P + 1)]
    expected = run_torch(runner, PROMPT, TABLE, chunk_tokens=P + 1)
    truth = eager_logits(module, PROMPT)
    # A number at the edge of rounding may fall to either side.
    rounding = (expected - truth[ends]).abs().max()
    assert (actual[ends] - expected).abs().max() < 1e-4 + rounding / 2
    slots = torch.tensor([TABLE[token // P] * P + token % P for token in range(len(PROMPT))])
    shapes = model.spec.kv_shapes
    for ours, theirs, (heads, head_dim) in zip(kv.layers, runner.kv.layers, shapes, strict=True):
        shape = (2 * heads, len(PROMPT), head_dim)
        read = [torch.empty(shape), torch.empty(shape)]
        with torch.inference_mode():
            ours.read_slots(slots, read[0])
            theirs.read_slots(slots, read[1])
        step = (read[0] - read[1]).abs().max() / read[1].abs().max()
        assert step < {"fp32": 1e-5, "fp16": 1e-3, "bf16": 8e-3, "int8": 0.02, "int4": 0.2}[scheme]


def spec_for_long_prompts(variant: str) -> ModelSpec:
    """Sizes that are whole blocks, and windows beyond which a long prompt goes."""
    spec = replace(spec_of(make_variant(variant)), hidden_size=64, num_heads=8, mlp_size=96)
    if variant == "llama":
        return replace(spec, layers=(LayerSpec(None), LayerSpec(70)))
    layers = [replace(layer, mlp_size=None, window=layer.window and 70) for layer in spec.layers]
    return replace(spec, layers=tuple(layers), ple_size=32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("variant", "scheme"), [("llama", "fp16"), ("llama", "int8"), ("gemma4", "fp16")]
)
def test_long_prompts_are_the_same_bits_in_any_chunks_and_on_any_number_of_threads(
    isa: str, variant: str, scheme: KvSchemeName
) -> None:
    use_isa(isa)
    model = random_model(spec_for_long_prompts(variant), kind=MatrixType.Q8_0)
    chunked = {}
    for chunk_tokens in CHUNKS:
        kv = model.new_kv(scheme, num_blocks=96)
        num_threads = CHUNKS.index(chunk_tokens) % 3 + 1
        chunked[chunk_tokens] = run_chunked(
            model, kv, LONG, LONG_TABLE, chunk_tokens=chunk_tokens, num_threads=num_threads
        )
    for logits in chunked.values():
        assert torch.equal(logits, chunked[1])
    assert torch.isfinite(chunked[1]).all()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("variant", ["qwen2", "gemma2", "gemma4"])
def test_rows_are_the_same_bits_beside_strangers(variant: str, num_threads: int) -> None:
    model = native_of(make_variant(variant))
    kv = model.new_kv("fp16")
    prompts = [PROMPT, make_tokens(19, seed=2), make_tokens(2 * P, seed=3), make_tokens(1, seed=4)]
    tables = [TABLE, [10, 12, 13], [20, 19], [30]]
    starts = [len(PROMPT) - 1, 6, 0, 0]
    chunks = []
    for prompt, table, start in zip(prompts, tables, starts, strict=True):
        if start:
            run_step(model, kv, [Chunk(prompt[:start], 0, table, needs_logits=False)])
        chunks.append(Chunk(prompt[start:], start, table, needs_logits=True))
    alone = [run_step(model, kv, [chunk], num_threads=1) for chunk in chunks]
    together = run_step(model, kv, chunks, num_threads=num_threads)
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("variant", ["llama", "gemma4"])
def test_rows_without_logits_change_nothing(variant: str) -> None:
    model = native_of(make_variant(variant))
    every, last, none = (model.new_kv("fp16") for _ in range(3))
    chunk = Chunk(PROMPT, 0, TABLE, needs_logits=True, needs_all_logits=True)
    all_logits = run_step(model, every, [chunk])
    one = run_step(model, last, [Chunk(PROMPT, 0, TABLE, needs_logits=True)])
    nothing = run_step(model, none, [Chunk(PROMPT, 0, TABLE, needs_logits=False)])
    assert all_logits.shape[0] == len(PROMPT)
    assert nothing.shape[0] == 0
    assert torch.equal(one[0], all_logits[-1])
    for layers in zip(every.layers, last.layers, none.layers, strict=True):
        first, *others = (layer.planes[0].view(torch.uint8) for layer in layers)
        assert all(torch.equal(other, first) for other in others)


@pytest.mark.parametrize("num_logits", [16, 128, 256, 260])
@pytest.mark.parametrize("kind", [MatrixType.F32, MatrixType.Q8_0])
def test_the_first_logits_alone_are_the_same_bits(num_logits: int, kind: MatrixType) -> None:
    spec = spec_of(make_variant("llama"))
    spec = replace(spec, hidden_size=64, num_heads=8, mlp_size=96, logit_softcap=3.0)
    model = random_model(spec, kind=kind)
    kv = model.new_kv("fp16")
    chunk = Chunk(PROMPT, 0, TABLE, needs_logits=True, needs_all_logits=True)
    whole = run_step(model, kv, [chunk])
    assert whole.shape[1] == 260
    first = try_step(model, kv, [chunk], num_logits=num_logits)
    assert first is not None
    assert torch.equal(first, whole[:, :num_logits])


@pytest.mark.parametrize("num_logits", [-16, 8, 250, 261, 272])
def test_a_number_of_logits_that_cannot_be_is_refused(num_logits: int) -> None:
    model = native_of(make_variant("llama"))
    kv = model.new_kv("fp16")
    chunk = Chunk([5], 0, [1], needs_logits=True)
    with pytest.raises(KernelError):
        try_step(model, kv, [chunk], num_logits=num_logits)


def test_cancel_before_a_step_stops_it() -> None:
    model = native_of(make_variant("llama"))
    kv = model.new_kv("fp16")
    chunk = Chunk(PROMPT, 0, TABLE, needs_logits=True)
    assert try_step(model, kv, [chunk], cancel=c_int32(1)) is None
    assert try_step(model, kv, [chunk], cancel=c_int32(0)) is not None


def test_cancel_stops_a_long_prefill_long_before_its_end() -> None:
    spec = spec_of(make_variant("llama"))
    model = random_model(replace(spec, layers=(LayerSpec(None),) * 20))
    kv = model.new_kv("fp16", num_blocks=128)
    tokens = make_tokens(1000)
    chunk = Chunk(tokens, 0, range(128), needs_logits=True)
    began = time.perf_counter()
    assert run_step(model, kv, [chunk]) is not None
    whole_s = time.perf_counter() - began
    cancel = c_int32(0)
    timer = threading.Timer(whole_s / 10, lambda: setattr(cancel, "value", 1))
    began = time.perf_counter()
    timer.start()
    assert try_step(model, kv, [chunk], cancel=cancel) is None
    assert time.perf_counter() - began < whole_s * 0.8


def test_what_cannot_be_is_refused() -> None:
    model = native_of(make_variant("llama"))
    kv = model.new_kv("fp16")
    for tokens, table in [([260], [1]), ([-1], [1]), ([5] * 9, [63, 64])]:
        with pytest.raises((KernelError, IndexError)):
            run_step(model, kv, [Chunk(tokens, 0, table, needs_logits=True)])


@pytest.mark.parametrize(
    ("layer", "field", "value"),
    [
        (0, "rope_index", 2),
        (0, "kv_layer", 1),  # it stores, and so has a place of its own
        (0, "head_dim", 14),
        (0, "num_kv_heads", 3),
        (0, "mlp_size", 81),
        (3, "kv_layer", 2),  # of another head size
        (3, "kv_layer", 3),  # that stores nothing
        (3, "kv_layer", -1),
        (3, "head_dim", 16),
        (5, "mlp_size", 80),
        (1, "key", Matrix()),  # those that store come first
        (2, "ple_gate", Matrix()),
        (2, "ple_output", Matrix()),
    ],
)
def test_layers_that_cannot_be_are_refused(layer: int, field: str, value: object) -> None:
    model = native_of(make_variant("gemma4"))
    kv, chunk = model.new_kv("fp16"), Chunk([5], 0, [1], needs_logits=True)
    assert run_step(model, kv, [chunk]).shape == (1, VOCAB_SIZE)
    layers = (Layer * model.spec.num_layers).from_address(model.structure.layers)
    setattr(layers[layer], field, value)
    with pytest.raises(KernelError):
        run_step(model, kv, [chunk])


def test_layers_wider_than_the_model_are_refused() -> None:
    model = native_of(make_variant("gemma4"))
    model.structure.mlp_size -= 16  # for which there is room
    with pytest.raises(KernelError):
        run_step(model, model.new_kv("fp16"), [Chunk([5], 0, [1], needs_logits=True)])


def test_layers_that_store_come_first() -> None:
    spec = spec_of(make_variant("gemma4"))
    layers = list(spec.layers)
    layers[1] = replace(layers[1], kv_layer=0, head_dim=16)  # and layer 2 stores again
    model = random_model(replace(spec, layers=tuple(layers)))
    with pytest.raises(KernelError):
        run_step(model, model.new_kv("fp16"), [Chunk([5], 0, [1], needs_logits=True)])


def test_rotary_embeddings_that_no_layer_has_are_within_bounds_too() -> None:
    spec = spec_of(make_variant("gemma4"))
    more = RopeSpec((0.5,) * (spec.head_dim // 2 + 1))
    model = random_model(replace(spec, ropes=(*spec.ropes, more)))
    with pytest.raises(KernelError):
        run_step(model, model.new_kv("fp16"), [Chunk([5], 0, [1], needs_logits=True)])


@pytest.mark.parametrize("field", ["ple_embedding", "ple_projection", "ple_norm", "head_dim"])
def test_models_without_a_part_are_refused(field: str) -> None:
    model = native_of(make_variant("gemma4"))
    kind = type(getattr(model.structure, field) or 0)
    setattr(model.structure, field, kind())
    with pytest.raises(KernelError):
        run_step(model, model.new_kv("fp16"), [Chunk([5], 0, [1], needs_logits=True)])


def test_memory_of_fewer_layers_is_refused() -> None:
    model = native_of(make_variant("llama"))
    fewer = KvTensors(
        model.geometry[:-1],
        num_blocks=8,
        block_size=P,
        scheme=find_scheme("fp16", torch.float32),
        device=torch.device("cpu"),
    )
    with pytest.raises(KernelError):
        run_step(model, fewer, [Chunk([5], 0, [1], needs_logits=True)])
