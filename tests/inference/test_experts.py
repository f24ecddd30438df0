"""Mixtures of experts: who is chosen, and that the kernels compute what torch does."""

import ctypes
import threading
import time
from collections.abc import Mapping
from ctypes import c_int32
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.config import BackendName, EngineConfig
from inference.engine import Engine
from inference.errors import CpuOnlyError, UnsupportedModelError
from inference.kernels.library import KernelError
from inference.kernels.structures import Layer, MatrixType
from inference.model import model_paths
from inference.model.decoder import TorchDecoder
from inference.model.experts import choose_experts, clamped_swish
from inference.model.loader import load_model
from inference.model.native_model import NativeModel as LoadedNative
from inference.model.spec import SHARED_MATRICES, ExpertSpec, ModelSpec, Role, WeightKey
from inference.model.step import Chunk
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import EXTRA, make_twin, make_twin_module
from tests.inference.loaded_models import logits_of, needs_kernels
from tests.inference.model_folders import write_folder
from tests.inference.native_models import (
    ISAS,
    NativeModel,
    kernels,
    run_chunked,
    run_step,
    try_step,
    use_isa,
)
from tests.inference.tiny_decoders import make_decoder_runner, make_variant, spec_of
from tests.inference.tiny_models import eager_logits, make_tokens
from tests.inference.tiny_models import run_chunked as run_torch

LONG = make_tokens(300, seed=7)
TABLE = [*range(20, 50), *range(18)]
EXPERT_ROLES: tuple[Role, ...] = ("router", "gate", "up", "down")
SHARED_ROLES: tuple[Role, ...] = ("shared_router", *SHARED_MATRICES)
PARALLEL_ROLES: tuple[Role, ...] = (
    *("router_norm", "expert_norm", "expert_scale", "post_shared_norm", "post_expert_norm"),
)
SHARING = ExpertSpec(4, 2, weights_sum_to_one=True, shared_size=96)
MANY = ExpertSpec(40, 3, weights_sum_to_one=True)  # more products than go into one region


def make_spec(experts: ExpertSpec = MANY, *, mlp_size: int = 32) -> ModelSpec:
    spec = spec_of(make_variant("llama"))
    roles: list[Role] = [role for role in spec.layer_roles if role not in ("gate", "up", "down")]
    return replace(
        spec,
        hidden_size=64,
        num_heads=8,
        mlp_size=mlp_size,
        layer_roles=(*roles, *EXPERT_ROLES, *(SHARED_ROLES if experts.shared_size else ())),
        experts=experts,
    )


def make_biased_spec() -> ModelSpec:
    """As gpt-oss: biases of experts and router, sinks, its activation."""
    spec = make_spec(ExpertSpec(6, 3, weights_sum_to_one=True))
    biases: tuple[Role, ...] = ("router_bias", "gate_bias", "up_bias", "down_bias", "sinks")
    return replace(spec, layer_roles=(*spec.layer_roles, *biases), activation="clamped_swish")


def make_parallel_spec() -> ModelSpec:
    """As Gemma 4: an MLP of all tokens beside the experts, each with norms of its own."""
    spec = make_spec(SHARING)
    roles = [role for role in spec.layer_roles if role != "shared_router"]
    return replace(
        spec, layer_roles=(*roles, *PARALLEL_ROLES, "post_mlp_norm"), activation="gelu_tanh"
    )


def make_weights(spec: ModelSpec) -> dict[WeightKey, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        key: torch.randn(spec.shape(key.role), generator=generator) * 0.12
        for key in spec.weight_keys
    }


def run_first(
    spec: ModelSpec,
    weights: dict[WeightKey, Tensor],
    kinds: Mapping[Role, MatrixType] | None = None,
) -> Tensor:
    """The logits after a few tokens, computed by the kernels."""
    model = NativeModel(spec, weights, kinds=kinds)
    return run_step(model, model.new_kv("fp32"), [Chunk(LONG[:9], 0, TABLE, needs_logits=True)])


def test_a_token_uses_the_likeliest_experts_by_their_probabilities() -> None:
    logits = torch.tensor([0.4, 0.1, 0.3, 0.2]).log().unsqueeze(0) + 5.0
    weights, chosen = choose_experts(logits, ExpertSpec(4, 2, weights_sum_to_one=False))
    assert chosen.tolist() == [[0, 2]]
    torch.testing.assert_close(weights, torch.tensor([[0.4, 0.3]]))
    weights, _ = choose_experts(logits, ExpertSpec(4, 2, weights_sum_to_one=True))
    torch.testing.assert_close(weights, torch.tensor([[4 / 7, 3 / 7]]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "experts",
    [
        MANY,
        ExpertSpec(6, 2, weights_sum_to_one=False),
        ExpertSpec(5, 5, True),
        ExpertSpec(1, 1, False),
        SHARING,
    ],
    ids=["many", "unscaled", "all", "one", "shared"],
)
def test_kernels_compute_what_torch_does(isa: str, experts: ExpertSpec) -> None:
    use_isa(isa)
    spec = make_spec(experts)
    weights = make_weights(spec)
    runner = make_decoder_runner(TorchDecoder(spec, weights), num_blocks=64)
    expected = run_torch(runner, LONG, TABLE, chunk_tokens=100)
    model = NativeModel(spec, weights)
    actual = run_chunked(model, model.new_kv("fp32"), LONG, TABLE, chunk_tokens=100)
    torch.testing.assert_close(actual[99::100], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_kernels_compute_biases_of_experts_as_torch_does(isa: str) -> None:
    use_isa(isa)
    spec = make_biased_spec()
    weights = make_weights(spec)
    for key, weight in weights.items():  # so that gate and up go over the activation's limits
        weight.mul_(40.0 if key.role in ("gate_bias", "up_bias", "sinks") else 1.0)
    runner = make_decoder_runner(TorchDecoder(spec, weights), num_blocks=64)
    expected = run_torch(runner, LONG, TABLE, chunk_tokens=100)
    model = NativeModel(spec, weights)
    actual = run_chunked(model, model.new_kv("fp32"), LONG, TABLE, chunk_tokens=100)
    torch.testing.assert_close(actual[99::100], expected, atol=1e-4, rtol=1e-4)
    for role in (
        "router_bias",
        "gate_bias",
        "up_bias",
        "down_bias",
        "sinks",
    ):  # each of them counts
        other = dict(weights)
        other[WeightKey(role, 1)] = weights[WeightKey(role, 1)].flip(0)
        assert (run_first(spec, other) - run_first(spec, weights)).abs().max() > 1e-3


@pytest.mark.parametrize("isa", ISAS)
def test_kernels_compute_an_mlp_beside_experts_as_torch_does(isa: str) -> None:
    use_isa(isa)
    spec = make_parallel_spec()
    weights = make_weights(spec)
    for key, weight in weights.items():
        if key.role == "router_norm":  # so that it decides who is chosen
            weight.mul_(200.0)
    runner = make_decoder_runner(TorchDecoder(spec, weights), num_blocks=64)
    expected = run_torch(runner, LONG, TABLE, chunk_tokens=100)
    model = NativeModel(spec, weights)
    actual = run_chunked(model, model.new_kv("fp32"), LONG, TABLE, chunk_tokens=100)
    torch.testing.assert_close(actual[99::100], expected, atol=1e-4, rtol=1e-4)
    for role in PARALLEL_ROLES:  # each of them counts
        other = dict(weights)
        other[WeightKey(role, 1)] = weights[WeightKey(role, 1)].flip(0)
        assert (run_first(spec, other) - run_first(spec, weights)).abs().max() > 1e-3


@pytest.mark.parametrize("field", ["expert_norm", "shared_router"])
def test_a_router_with_a_norm_of_its_own_leaves_what_others_read(field: str) -> None:
    spec = make_parallel_spec()
    model = NativeModel(spec, make_weights(spec))
    layers = ctypes.cast(model.structure.layers, ctypes.POINTER(Layer))
    other = None if field == "expert_norm" else layers[1].router_norm
    setattr(layers[1], field, other)
    with pytest.raises(KernelError):
        run_step(model, model.new_kv("fp16"), [Chunk([5], 0, [1], needs_logits=True)])


@pytest.mark.parametrize("role", PARALLEL_ROLES)
def test_what_is_no_number_beside_an_mlp_is_not_passed_over(role: Role) -> None:
    weights = make_weights(spec := make_parallel_spec())
    weights[WeightKey(role, 1)][:] = torch.nan
    assert torch.isnan(run_first(spec, weights)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "role", ["router_bias", "gate_bias", "up_bias", "down_bias", "query", "key", "sinks"]
)
def test_what_is_no_number_is_not_passed_over(isa: str, role: Role) -> None:
    use_isa(isa)
    spec = make_biased_spec()
    weights = make_weights(spec)
    weights[WeightKey(role, 1)][:] = torch.nan
    assert torch.isnan(run_first(spec, weights)).all()


def test_activation_of_gate_and_up_beyond_their_limits() -> None:
    gate, up = (
        torch.tensor([-100.0, 0.0, 1.0, 7.0, 50.0]),
        torch.tensor([3.0, 3.0, -9.0, 9.0, -1.0]),
    )
    swish = 1 / (1 + torch.tensor([-1.702, -1.702 * 7]).exp())
    expected = torch.tensor([0.0, 0.0, swish[0] * -6.0, 7.0 * swish[1] * 8.0, 0.0])
    torch.testing.assert_close(clamped_swish(gate, up), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", [MatrixType.F32, MatrixType.Q8_0])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("is_parallel", [False, True])
def test_a_token_gives_the_same_bits_whichever_tokens_share_its_experts(
    isa: str, kind: MatrixType, is_parallel: bool
) -> None:
    use_isa(isa)
    spec = make_parallel_spec() if is_parallel else make_spec(SHARING)  # many rows of each expert
    model = NativeModel(spec, make_weights(spec), kind)
    runs = [
        run_chunked(
            model, model.new_kv("fp16"), LONG, TABLE, chunk_tokens=size, num_threads=threads
        )
        for size, threads in ((300, 2), (1, 1), (7, 3), (130, 1))
    ]
    assert torch.isfinite(runs[0]).all()
    assert all(torch.equal(run, runs[0]) for run in runs[1:])


@pytest.mark.parametrize(
    "quantised", [("up",), ("down",), ("gate", "down"), ("router",), SHARED_MATRICES[1:]]
)
def test_matrices_of_a_layer_may_be_of_different_kinds(quantised: tuple[Role, ...]) -> None:
    weights = make_weights(spec := make_spec(SHARING))
    if "router" in quantised:  # nobody else is chosen for a rounded router
        for index in range(spec.num_layers):
            weights[WeightKey("router", index)] *= 20
    exact, mixed = (
        run_first(spec, weights, kinds) for kinds in ({}, dict.fromkeys(quantised, MatrixType.Q8_0))
    )
    share = float((mixed - exact).abs().max() / exact.abs().max())
    assert 1e-5 < share < 0.05


def test_norms_behind_experts_are_applied() -> None:
    spec = make_spec(SHARING)
    spec = replace(spec, layer_roles=(*spec.layer_roles, "post_mlp_norm"))
    weights = make_weights(spec)
    expected = run_torch(
        make_decoder_runner(TorchDecoder(spec, weights), num_blocks=64),
        LONG[:9],
        TABLE,
        chunk_tokens=9,
    )
    torch.testing.assert_close(run_first(spec, weights), expected, atol=1e-4, rtol=1e-4)


def test_choice_is_made_in_float32_whatever_is_computed_in() -> None:
    logits = torch.tensor(
        [[3.0, 2.984375, 1.0]], dtype=torch.bfloat16
    )  # bfloat16's softmax cannot tell them apart
    weights, _ = choose_experts(logits, ExpertSpec(3, 2, weights_sum_to_one=False))
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights[0], logits[0].float().softmax(0)[:2])


def test_rows_without_logits_change_nothing() -> None:
    spec = make_spec()
    model = NativeModel(spec, make_weights(spec))
    chunk = Chunk(LONG[:50], 0, TABLE, needs_logits=True, needs_all_logits=True)
    every = run_step(model, model.new_kv("fp16"), [chunk])
    last = run_step(model, model.new_kv("fp16"), [Chunk(LONG[:50], 0, TABLE, needs_logits=True)])
    assert torch.equal(last[0], every[-1])


@pytest.mark.parametrize("experts", [None, SHARING], ids=["dense", "experts"])
def test_a_step_is_told_to_be_broken_off_or_is_whole_whenever_it_is_cancelled(
    experts: ExpertSpec | None,
) -> None:
    """With one layer it is mostly in the last one."""
    spec = replace(spec_of(make_variant("llama")), hidden_size=64, num_heads=8)
    spec = make_spec(experts) if experts else spec
    spec = replace(spec, layers=spec.layers[:1], mlp_size=1024)
    model = NativeModel(spec, make_weights(spec))
    chunk = Chunk(LONG, 0, TABLE, needs_logits=True, needs_all_logits=True)
    began = time.perf_counter()
    whole = run_step(model, model.new_kv("fp16"), [chunk])
    took_s = time.perf_counter() - began
    outcomes = set()
    for part in range(40):
        cancel = c_int32(0)
        timer = threading.Timer(took_s * part / 40, lambda flag=cancel: setattr(flag, "value", 1))
        timer.start()
        logits = try_step(model, model.new_kv("fp16"), [chunk], cancel=cancel)
        timer.join()
        outcomes.add(logits is None)
        assert logits is None or torch.equal(logits, whole)
    assert True in outcomes


def test_of_equally_likely_experts_the_first_ones_are_used() -> None:
    spec = make_spec(ExpertSpec(4, 2, weights_sum_to_one=True))
    weights = make_weights(spec)
    for index in range(spec.num_layers):
        weights[WeightKey("router", index)].zero_()
    logits = run_first(spec, weights)
    for expert, is_used in enumerate((True, True, False, False)):
        others = {**weights}
        for index in range(spec.num_layers):
            down = weights[WeightKey("down", index)].clone()
            down[expert * 64 : (expert + 1) * 64] = 0.0
            others[WeightKey("down", index)] = down
        assert torch.equal(run_first(spec, others), logits) is not is_used


@pytest.mark.parametrize("rows", [slice(None), slice(3, 4)], ids=["all", "one"])
@pytest.mark.parametrize("experts", [SHARING, ExpertSpec(4, 2, weights_sum_to_one=False)])
def test_a_router_without_numbers_is_not_passed_over(experts: ExpertSpec, rows: slice) -> None:
    spec = make_spec(experts)
    weights = make_weights(spec)
    weights[WeightKey("router", 1)][rows] = torch.nan
    assert run_first(spec, weights).isnan().all()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts": 39},
        {"num_experts": -1},
        {"num_experts_used": 0},
        {"num_experts_used": 41},
        {"shared_size": 32},
        {"shared_size": -1},
        {"mlp_size": 48},  # another than the experts have
        {"num_experts": 0},  # then nothing may be used
        {"num_experts": 0, "num_experts_used": 0},  # and the matrices are too large
    ],
)
def test_numbers_of_experts_that_cannot_be_are_refused(changes: dict[str, int]) -> None:
    spec = make_spec()
    model = NativeModel(spec, make_weights(spec))
    for name, value in changes.items():
        setattr(model.structure, name, value)
    with pytest.raises(KernelError):
        run_step(model, model.new_kv("fp16"), [Chunk([5], 0, [1], needs_logits=True)])


@pytest.mark.parametrize("role", ["router", "gate", "up", "down", *SHARED_MATRICES])
def test_matrices_of_another_size_are_refused(role: str) -> None:
    spec = make_spec(SHARING)
    model = NativeModel(spec, make_weights(spec))
    layers = ctypes.cast(model.structure.layers, ctypes.POINTER(Layer))
    getattr(layers[1], role).num_rows -= 16 if role != "router" else 1
    with pytest.raises(KernelError):
        run_step(model, model.new_kv("fp16"), [Chunk([5], 0, [1], needs_logits=True)])


@pytest.mark.parametrize("sizes", [{"mlp_size": 24}, {"hidden_size": 72}])
def test_experts_that_are_no_whole_panels_are_refused_by_the_kernels(sizes: dict[str, int]) -> None:
    spec = replace(make_spec(), **sizes)  # type: ignore[arg-type]  # sizes are numbers
    model = NativeModel(spec, make_weights(spec))
    assert kernels().panel_rows == 16
    with pytest.raises(KernelError):
        run_step(model, model.new_kv("fp16"), [Chunk([5], 0, [1], needs_logits=True)])


def write_odd(path: Path, **sizes: object) -> tuple[Path, Tensor]:
    module = make_twin_module("qwen3moe", **sizes)
    return write_twin(module, path), eager_logits(module, make_tokens(20))


@needs_kernels
@pytest.mark.parametrize("sizes", [{"moe_intermediate_size": 24}, {"hidden_size": 72}])
def test_experts_that_are_no_whole_panels_are_computed_by_torch(
    tmp_path: Path, sizes: dict[str, object]
) -> None:
    path, expected = write_odd(tmp_path / "odd.gguf", **sizes)
    loaded = load_model(path, dtype="float32", backend="auto")
    assert isinstance(loaded.model, TorchDecoder)
    torch.testing.assert_close(
        logits_of(loaded.model, make_tokens(20)), expected, atol=1e-4, rtol=1e-4
    )
    with pytest.raises(UnsupportedModelError, match="multiples of 16"):
        load_model(path, backend="fast")


@needs_kernels
@pytest.mark.parametrize(
    "quantization", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "F16", "BF16"]
)
@pytest.mark.parametrize("family", ["mixtral", "qwen2moe", "qwen3moe", "gpt-oss", "gemma4-experts"])
def test_kernels_give_logits_of_quantised_experts(
    tmp_path: Path, family: str, quantization: str
) -> None:
    module = make_twin_module(family)
    path = tmp_path / "twin.gguf"
    write_twin(module, path, quantization=quantization, extra=EXTRA.get(family))
    tokens = make_tokens(30)
    loaded = load_model(path, backend="fast")
    assert isinstance(loaded.model, LoadedNative)
    expected = logits_of(load_model(path, backend="torch").model, tokens)
    actual = logits_of(loaded.model, tokens)
    # Where two experts are nearly as likely, rounded inputs may choose the other: most rows do not.
    share = (actual - expected).abs().amax(1) / expected.abs().max()
    assert share.median() < (0.05 if "F1" not in quantization else 1e-3)


@needs_kernels
@pytest.mark.parametrize(
    ("stored", "kept"), [("Q2_K", "Q8_0"), ("Q3_K", "Q6_K"), ("IQ3_S", "Q4_K")]
)
def test_experts_of_types_that_the_kernels_lack_become_others(
    tmp_path: Path, stored: str, kept: str
) -> None:
    module = make_twin_module("mixtral", hidden_size=256, intermediate_size=512)
    path = write_twin(module, tmp_path / "twin.gguf", quantization=stored)
    loaded = load_model(path, backend="fast")
    assert isinstance(loaded.model, LoadedNative)
    kinds = {key.role: m.structure.type for key, m in loaded.model._weights.matrices.items()}
    assert {kinds[role] for role in ("gate", "up", "down")} == {MatrixType[kept]}
    tokens = make_tokens(30)
    expected = logits_of(load_model(path, backend="torch").model, tokens)
    share = (logits_of(loaded.model, tokens) - expected).abs().amax(1) / expected.abs().max()
    assert share.median() < 0.06


@pytest.mark.parametrize(
    ("key", "value"),
    [("expert_group_count", 2), ("expert_gating_func", 2), ("expert_weights_scale", 2.5)],
)
def test_experts_that_are_chosen_otherwise_are_refused(
    tmp_path: Path, key: str, value: object
) -> None:
    module = make_twin_module("qwen3moe")
    path = write_twin(module, tmp_path / "twin.gguf", extra={f"qwen3moe.{key}": value})
    with pytest.raises(UnsupportedModelError, match=f"qwen3moe.{key}"):
        load_model(path)
    usual = {"expert_group_count": 1, "expert_gating_func": 1, "expert_weights_scale": 0.0}[key]
    load_model(write_twin(module, tmp_path / "usual.gguf", extra={f"qwen3moe.{key}": usual}))


def test_experts_count_as_such_where_costs_are_measured(tmp_path: Path) -> None:
    for family, has_experts in (("mixtral", True), ("llama", False)):
        path = write_twin(make_twin_module(family), tmp_path / f"{family}.gguf")
        assert load_model(path, backend="torch").has_experts is has_experts


@needs_kernels
def test_routers_keep_their_numbers_where_weights_are_rounded(tmp_path: Path) -> None:
    path = write_twin(make_twin_module("mixtral"), tmp_path / "twin.gguf")
    model = load_model(path, backend="auto", weights="Q8_0").model
    assert isinstance(model, LoadedNative)
    kinds = {key.role: MatrixType(m.structure.type) for key, m in model._weights.matrices.items()}
    assert kinds["router"] == MatrixType.F32
    assert {kinds[role] for role in ("gate", "up", "down", "query")} == {MatrixType.Q8_0}
    expected = logits_of(load_model(path, dtype="float32", backend="torch").model, make_tokens(30))
    share = (logits_of(model, make_tokens(30)) - expected).abs().amax(1) / expected.abs().max()
    assert share.median() < 0.05


def test_only_experts_that_are_used_count_as_read(tmp_path: Path) -> None:
    path = write_twin(make_twin_module("mixtral"), tmp_path / "twin.gguf")
    model = load_model(path, backend="fast").model
    assert isinstance(model, LoadedNative)
    sizes = {key: matrix.data.nbytes for key, matrix in model._weights.matrices.items()}
    read = sum(
        size / 3 if key.role in ("gate", "up", "down") else size  # two of six are used
        for key, size in sizes.items()
        if key.role != "embedding"
    )
    assert model.logits_share == pytest.approx(sizes[WeightKey("head")] / read)


@pytest.mark.parametrize(("backend", "is_refused"), [("auto", False), ("torch", True)])
def test_on_other_devices_experts_are_for_the_bridge(
    tmp_path: Path, backend: BackendName, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_twin(make_twin_module("mixtral"), tmp_path / "twin.gguf")
    seen: list[object] = []

    def make(*arguments: object) -> None:
        seen.append(arguments)
        raise InterruptedError

    monkeypatch.setattr(model_paths, "_make_module", make)
    error = UnsupportedModelError if is_refused else InterruptedError
    with pytest.raises(error, match="a mixture of experts on meta" if is_refused else None):
        load_model(path, device="meta", backend=backend)
    assert bool(seen) is not is_refused


@pytest.mark.parametrize("family", ["mixtral", "qwen3moe", "olmoe"])
def test_folders_of_experts_are_opened_though_rounded_keys_would_choose_others(
    tmp_path: Path, family: str
) -> None:
    folder = write_folder(make_twin_module(family), tmp_path / family)
    engine = Engine.load(folder, EngineConfig(device="cpu", kv_scheme="fp16"))
    assert engine.info.compute_path == "bridge"
    engine.close()


@needs_kernels
@pytest.mark.parametrize("family", ["gpt-oss", "gemma4-experts"])
def test_a_model_of_ours_alone_has_no_bridge(tmp_path: Path, family: str) -> None:
    make_twin(family, tmp_path / "twin.gguf")
    word = load_model(tmp_path / "twin.gguf", backend="auto").architecture
    assert word == family.removesuffix("-experts")
    with pytest.raises(UnsupportedModelError, match=f"'{word}' by its own decoder") as refused:
        load_model(tmp_path / "twin.gguf", backend="bridge")
    assert refused.value.hint == "Choose the backend auto."
    for backend in ("auto", "bridge"):
        with pytest.raises(CpuOnlyError, match=f"'{word}' on the CPU alone") as raised:
            load_model(tmp_path / "twin.gguf", device="cuda", backend=backend)
        assert "device cpu" in raised.value.hint
