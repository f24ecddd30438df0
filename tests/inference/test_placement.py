"""Models that do not fit the device: which layers stay on the host, who says so, and that nothing changes."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch

from inference.config import EngineConfig, SamplingParams
from inference.engine import Engine
from inference.errors import NotEnoughMemoryError
from inference.formats.gguf import GgufFile
from inference.model import model_paths, placement
from inference.model.gguf_loading import build_module
from inference.model.gguf_models import plan_model
from inference.model.int4_product import CpuInt4
from inference.model.loader import load_model
from inference.model.placement import Room, layers_on_host
from inference.model.weight_plan import plan_weights
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import remake, wide_config
from tests.inference.loaded_models import logits_of
from tests.inference.model_folders import write_folder
from tests.inference.packed_models import (
    CPU,
    NUM_LAYERS,
    TOKENS,
    decoder_of,
    make_twin,
    plain_logits,
    weights_in,
)
from tests.inference.tiny_models import make_runner, run_chunked

GIB = 2**30


@pytest.mark.parametrize(
    ("quantization", "on_host"),
    [("Q4_1", {3}), ("F32", {2, 3}), ("Q8_0", {1, 2, 3}), ("Q4_1", {0, 1, 2, 3})],
)
def test_layers_on_the_host_give_the_same_bits(
    tmp_path: Path, quantization: str, on_host: set[int]
) -> None:
    path = make_twin(tmp_path, quantization, attention_bias=True, tie_word_embeddings=True)
    with GgufFile.read(path) as file:
        plan = plan_weights(weights_in(file), torch.bfloat16, CpuInt4())
        here = decoder_of(plan)
        there = decoder_of(plan, frozenset(on_host))
    assert not here.has_streamed_layers
    assert there.has_streamed_layers
    for chunk_tokens in (30, 7, 1):
        expected = logits_of(here, TOKENS, chunk_tokens=chunk_tokens)
        assert torch.equal(logits_of(there, TOKENS, chunk_tokens=chunk_tokens), expected)


def small_room(monkeypatch: pytest.MonkeyPatch, device_bytes: int, host_bytes: int) -> None:
    def on(device: str) -> Room:
        return Room(device, device_bytes, device_bytes, host_bytes, device_bytes)

    monkeypatch.setattr(placement.Room, "on", on)
    monkeypatch.setattr(model_paths, "_int4_product", lambda _wish: CpuInt4())


def test_model_that_does_not_fit_is_split_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_twin(tmp_path, "Q4_1")
    with GgufFile.read(path) as file:
        plan = plan_weights(weights_in(file), torch.float32, CpuInt4())
        first = plain_logits(plan.weights, torch.float32)[-1]
    layer = plan.layer_bytes[0]
    small_room(monkeypatch, plan.shared_bytes + 4 * layer - 1, 10 * layer)
    engine = Engine.load(path, EngineConfig(device="cpu", backend="torch"))
    info = engine.info
    greedy = SamplingParams(temperature=0.0, max_tokens=8)
    outputs = engine.generate(conversation_id="a", prompt_token_ids=TOKENS, params=greedy)
    split_ids = [token for output in outputs for token in output.token_ids]
    engine.close()
    assert info.backend == "blocks (CPU), weights in 4 bits, 1 of 4 layers on cpu, 3 in RAM"
    assert info.weights_bytes >= plan.shared_bytes + 4 * layer + 2 * layer
    assert first[split_ids[0]] > first.max() - 0.01 * first.abs().max()


def test_model_that_fits_nowhere_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_twin(tmp_path, "Q4_1")
    with GgufFile.read(path) as file:
        plan = plan_weights(weights_in(file), torch.float32, CpuInt4())
    needed = plan.shared_bytes + sum(plan.layer_bytes)
    layer = plan.layer_bytes[0]
    for device_bytes, host_bytes in (
        (plan.shared_bytes + 3 * layer, layer),  # the host cannot hold three layers
        (plan.shared_bytes, 10 * layer),  # no room for the two that come over
        (100, 10 * needed),
    ):
        small_room(monkeypatch, device_bytes, host_bytes)
        with pytest.raises(NotEnoughMemoryError) as caught:
            load_model(path, backend="torch")
        assert (caught.value.needed_bytes, caught.value.free_bytes) == (needed, device_bytes)


def test_device_that_others_fill_while_weights_are_read_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(model_paths, "_int4_product", lambda _wish: CpuInt4())
    monkeypatch.setattr(model_paths, "load_weights", full)
    with pytest.raises(NotEnoughMemoryError):
        load_model(make_twin(tmp_path, "Q4_1"), backend="torch")


@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_device_that_others_fill_while_the_bridge_reads_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    module = remake(wide_config())
    if kind == "gguf":
        path = write_twin(module, tmp_path / "twin.gguf")
        monkeypatch.setattr("inference.model.gguf_loading.fill_weights", full)
    else:
        path = write_folder(module, tmp_path / "tiny")
        monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", full)
    with pytest.raises(NotEnoughMemoryError) as caught:
        load_model(path, backend="bridge", dtype="float32")
    assert caught.value.needed_bytes == sum(p.nbytes for p in module.parameters())


@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_bridge_places_by_accelerate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    module = remake(wide_config(num_hidden_layers=NUM_LAYERS, tie_word_embeddings=True))
    if kind == "gguf":
        path = write_twin(module, tmp_path / "twin.gguf")
    else:
        path = write_folder(module, tmp_path / "tiny")
    whole = load_model(path, backend="bridge")
    room = Room("cpu", 0, 0, 2**30, 2**30)
    monkeypatch.setattr(placement.Room, "on", lambda _device: room)
    monkeypatch.setattr(placement.Room, "max_memory", {"cpu": 2**30})
    split = load_model(path, backend="bridge")
    if kind == "gguf":
        assert split.module.hf_device_map == {"": "cpu"}
        assert split.placement == f"0 of {NUM_LAYERS} layers on cpu, {NUM_LAYERS} in RAM"
    ids = torch.tensor([TOKENS])
    with torch.inference_mode():
        assert torch.equal(split.module(ids).logits, whole.module(ids).logits)
    small = replace(room, host_bytes=1000)
    monkeypatch.setattr(placement.Room, "on", lambda _device: small)
    with pytest.raises(NotEnoughMemoryError):
        load_model(path, backend="bridge")


def test_bridge_computes_where_a_layer_is_brought_over() -> None:
    module = remake(wide_config(num_hidden_layers=3))
    expected = run_chunked(make_runner(module), TOKENS, list(range(8)), chunk_tokens=7)
    accelerate.cpu_offload(module.model.layers[1], execution_device=CPU)
    assert next(module.model.layers[1].parameters()).device.type == "meta"
    runner = make_runner(module)
    assert runner.device == CPU
    actual = run_chunked(runner, TOKENS, list(range(8)), chunk_tokens=7)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"": 0}, ""),
        ({"model.embed_tokens": 0, "model.layers": "cpu"}, "0 of 3 layers on cuda, 3 in RAM"),
        (
            {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "cpu",
             "model.layers.2": "cpu", "model.norm": "cpu"},
            "1 of 3 layers on cuda, 2 in RAM",
        ),
    ],
)  # fmt: skip
def test_placement_of_a_module_is_told(places: dict[str, Any], words: str) -> None:
    module: Any = remake(wide_config(num_hidden_layers=3))
    module.hf_device_map = places
    assert placement.describe_module(module, "cuda:0") == words


def test_tied_head_stays_with_its_embedding(tmp_path: Path) -> None:
    module = remake(wide_config(num_hidden_layers=6, tie_word_embeddings=True))
    path = write_twin(module, tmp_path / "twin.gguf")
    with GgufFile.read(path) as file:
        empty = build_module(plan_model(file), file, torch.float32)
        layer = sum(p.nbytes for p in module.model.layers[0].parameters())
        table = module.model.embed_tokens.weight.nbytes
        places = placement.split_module(empty, {0: table + 4 * layer + 1000, "cpu": 2**30})
    assert placement.place_of("lm_head.weight", places) == 0
    assert placement.place_of("model.embed_tokens.weight", places) == 0
    where = [placement.place_of(f"model.layers.{index}", places) for index in range(6)]
    assert where == [0, 0, 0, "cpu", "cpu", "cpu"]  # and room for one that comes over


def test_module_that_does_not_even_fit_the_host_is_refused() -> None:
    module = remake(wide_config())
    with pytest.raises(NotEnoughMemoryError):
        placement.split_module(module, {"cpu": 1000})
    assert placement.split_module(module, {"cpu": 10**9}) == {"": "cpu"}


def seen_by(monkeypatch: pytest.MonkeyPatch, free: Mapping[str, int]) -> None:
    monkeypatch.setattr(placement, "free_bytes", lambda device: free[device])


def test_only_cuda_leaves_layers_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    seen_by(monkeypatch, {"cuda": 1000, "cuda:1": 2000, "mps": 1000, "xpu": 1000, "cpu": 10_000})
    assert Room.on("cuda") == Room("cuda", 800, 700, 7500, 1000)
    assert Room.on("cuda:1").max_memory == {1: 1400, "cpu": 7500}
    for device in ("mps", "xpu", "cpu"):
        room = Room.on(device)
        assert (room.split_bytes, room.host_bytes) == (0, 0)


def test_weights_on_cuda_leave_a_reserve_for_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, whole in ((24 * GIB, int(21.6 * GIB)), (6 * GIB, 6 * GIB - 3 * GIB // 4)):
        seen_by(monkeypatch, {"cuda": free, "mps": free, "cpu": GIB})
        assert Room.on("cuda").whole_bytes == whole
        assert Room.on("mps").whole_bytes == int(0.9 * free)


def test_room_is_told_when_unused_memory_was_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"cuda": 1000, "cpu": 1000}
    seen_by(monkeypatch, free)
    monkeypatch.setattr(placement, "release_unused", lambda device: free.update({device: 5000}))
    assert Room.on("cuda").free == 5000


def test_layers_give_way_to_blocks() -> None:
    room = Room("cuda", whole_bytes=800, split_bytes=700, host_bytes=5000, free=1000)
    assert layers_on_host(room, 100, [100] * 6, 0) == frozenset()
    assert layers_on_host(room, 100, [100] * 6, 80) == frozenset()  # 100 of the 800
    # Of 699, and of 500, the shared weights and two layers that come over take 300.
    assert layers_on_host(room, 100, [100] * 6, 81) == {3, 4, 5}
    assert layers_on_host(room, 100, [100] * 6, 240) == {2, 3, 4, 5}


def test_blocks_get_what_is_left_where_layers_cannot_give_way() -> None:
    room = Room("cuda", whole_bytes=800, split_bytes=700, host_bytes=50, free=1000)
    assert layers_on_host(room, 100, [100] * 6, 400) == frozenset()
    with pytest.raises(NotEnoughMemoryError) as caught:
        layers_on_host(room, 101, [100] * 7, 400)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (801 + 200, 1000)
    small = replace(room, host_bytes=5000)
    # No layer is left on the device beside such blocks; so they get less.
    assert layers_on_host(small, 400, [100] * 5, 640) == {1, 2, 3, 4}


def test_blocks_of_other_devices_have_a_share_of_their_own() -> None:
    for device in ("cpu", "mps", "xpu"):
        room = Room(device, whole_bytes=900, split_bytes=0, host_bytes=0, free=1000)
        assert layers_on_host(room, 100, [100] * 8, 10**9) == frozenset()


def test_load_leaves_room_for_the_context_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []

    def on_host(room: Room, shared: int, layers: list[int], kv_bytes: int) -> frozenset[int]:
        told.append(kv_bytes)
        return frozenset()

    monkeypatch.setattr(model_paths, "layers_on_host", on_host)
    path = make_twin(tmp_path, "F32")
    for wish in ({}, {"context_tokens": 20}, {"kv_scheme": "fp32"}, {"kv_cache_bytes": 2**20}):
        config = EngineConfig(device="cpu", backend="torch", num_threads=1, **wish)
        Engine.load(path, config).close()
    with GgufFile.read(path) as file:
        spec = weights_in(file).spec
    token = 2 * 2 * NUM_LAYERS * spec.num_kv_heads * spec.head_dim  # keys and values, fp16
    tokens = spec.context_tokens
    assert told == [tokens * token, 20 * token, 2 * tokens * token, min(2**20, tokens * token)]
