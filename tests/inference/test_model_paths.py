"""One GGUF file, three ways to compute it: which is chosen, and that all say the same."""

import gc
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from inference import engine_loading
from inference.config import BackendName, EngineConfig
from inference.engine import Engine
from inference.errors import ModelFileError, NotEnoughMemoryError, UnsupportedModelError
from inference.kernels.library import MAX_HEAD_DIM, KernelError, load_kernels
from inference.kernels.structures import MatrixType
from inference.model import loader, memory, model_paths, native_weights, quantised_weights
from inference.model.decoder import TorchDecoder
from inference.model.loader import load_model
from inference.model.memory_ahead import held_bytes, memory_ahead
from inference.model.native_model import NativeModel
from inference.model.spec import UnsupportedSpecError
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import EXTRA, TWINS, make_twin_module, remake, wide_config
from tests.inference.loaded_models import logits_of, needs_kernels, num_mappings
from tests.inference.model_folders import write_folder
from tests.inference.tiny_models import eager_logits, make_tokens

ORDERED: tuple[BackendName, ...] = ("torch", "bridge")


@pytest.fixture
def twin(tmp_path: Path) -> Path:
    return write_twin(make_twin_module("llama"), tmp_path / "twin.gguf")


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_paths, "load_kernels", lambda: None)
    monkeypatch.setattr(model_paths, "why_no_kernels", lambda: "there was no compiler")


@needs_kernels
@pytest.mark.parametrize("family", TWINS)
def test_kernels_give_logits_of_the_original(tmp_path: Path, family: str) -> None:
    module = make_twin_module(family)
    path = write_twin(module, tmp_path / "twin.gguf", extra=EXTRA.get(family))
    loaded = load_model(path, backend="fast", num_threads=2)
    assert isinstance(loaded.model, NativeModel)
    tokens = make_tokens(40)
    expected = eager_logits(module, tokens)
    for chunk_tokens in (40, 7, 1):
        actual = logits_of(loaded.model, tokens, chunk_tokens=chunk_tokens)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-5)


@needs_kernels
@pytest.mark.parametrize("quantization", ["F32", "F16", "BF16", "Q4_0", "Q8_0"])
def test_weights_that_kernels_have_packed_are_not_mapped_too(
    tmp_path: Path, quantization: str
) -> None:
    path = write_twin(remake(wide_config()), tmp_path / "twin.gguf", quantization=quantization)
    loaded = load_model(path, backend="fast")
    gc.collect()
    assert isinstance(loaded.model, NativeModel)
    assert num_mappings(path) == 0


@needs_kernels
@pytest.mark.parametrize("quantization", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_kernels_give_logits_of_quantised_weights(tmp_path: Path, quantization: str) -> None:
    module = remake(wide_config(tie_word_embeddings=True))
    path = write_twin(module, tmp_path / "twin.gguf", quantization=quantization)
    tokens = make_tokens(30)
    expected = logits_of(load_model(path, backend="torch").model, tokens)
    actual = logits_of(load_model(path, backend="fast").model, tokens)
    # Inputs are rounded to 8 bits where weights are quantised.
    bound = 0.05 if quantization.startswith("Q") else 1e-3
    assert (actual - expected).abs().max() < bound * expected.abs().max()


@pytest.mark.parametrize("backend", ORDERED)
def test_memory_for_packed_weights_is_given_back_where_none_are_packed(
    twin: Path, backend: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    choose = memory.choose_dtype

    def note(*arguments: Any) -> torch.dtype:
        held.append(held_bytes())
        return choose(*arguments)

    monkeypatch.setattr(model_paths, "choose_dtype", note)
    with memory_ahead(2**24):
        load_model(twin, backend=backend)
    assert held == [0]


@needs_kernels
def test_kernels_give_the_same_bits_in_any_chunk_and_with_any_threads(twin: Path) -> None:
    tokens = make_tokens(90)
    models = [load_model(twin, backend="fast", num_threads=n).model for n in (1, 3)]
    whole = logits_of(models[0], tokens)
    for model, chunk_tokens in ((models[1], 1000), (models[0], 1), (models[1], 13)):
        assert torch.equal(logits_of(model, tokens, chunk_tokens=chunk_tokens), whole)


@needs_kernels
def test_each_instruction_set_has_blocks_of_its_own(twin: Path) -> None:
    kernels = load_kernels()
    assert kernels is not None
    best = kernels.isa
    texts = []
    try:
        for name in (best, "portable", best):
            assert kernels.set_isa(name)
            model = load_model(twin, backend="fast").model
            assert isinstance(model, NativeModel)
            texts.append(model.config_text)
    finally:
        kernels.set_isa(best)
    assert texts[0] == texts[2]
    assert (texts[0] != texts[1]) is (best != "portable")


@needs_kernels
def test_cpu_gets_kernels_unless_another_type_is_wished_for(twin: Path) -> None:
    assert isinstance(load_model(twin, backend="auto").model, NativeModel)
    assert isinstance(load_model(twin, backend="auto", dtype="float32").model, NativeModel)
    other = load_model(twin, backend="auto", dtype="bfloat16").model
    assert isinstance(other, TorchDecoder)
    assert other.dtype == torch.bfloat16


def write_wide(tmp_path: Path, kind: str, head_dim: int) -> tuple[nn.Module, Path]:
    """A model with heads of so many numbers, as a file or a folder."""
    module = remake(wide_config(head_dim=head_dim, num_attention_heads=2, num_key_value_heads=1))
    if kind == "file":
        return module, write_twin(module, tmp_path / "twin.gguf")
    return module, write_folder(module, tmp_path / "tiny")


@needs_kernels
@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize(
    ("head_dim", "path_name"),
    [(MAX_HEAD_DIM, "fast"), (MAX_HEAD_DIM + 2, "torch"), (4096, "torch")],
)
def test_heads_that_are_too_large_for_the_kernels_are_computed_by_torch(
    tmp_path: Path, kind: str, head_dim: int, path_name: str
) -> None:
    module, path = write_wide(tmp_path, kind, head_dim)
    loaded = load_model(path, backend="auto")
    assert not isinstance(loaded.model, nn.Module)
    assert loaded.model.path_name == path_name
    tokens = make_tokens(12)
    expected = eager_logits(module, tokens)
    actual = logits_of(loaded.model, tokens, chunk_tokens=5)
    assert (actual - expected).abs().max() < 1e-3 * expected.abs().max()


@needs_kernels
def test_heads_that_are_too_large_for_the_kernels_are_the_reason_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = write_wide(tmp_path, "folder", MAX_HEAD_DIM + 2)
    words = "heads of up to 1,024 numbers, not 1,026"
    with pytest.raises(UnsupportedModelError, match=f"'fast' cannot compute it: .*{words}"):
        load_model(path, backend="fast")
    with pytest.raises(UnsupportedModelError, match=f"Here neither computes: .*{words}"):
        load_model(path, backend="auto", weights="Q8_0")
    # And it is true: the kernels themselves refuse such a step.
    monkeypatch.setattr(model_paths, "MAX_HEAD_DIM", MAX_HEAD_DIM + 2)
    model = load_model(path, backend="fast").model
    with pytest.raises(KernelError, match="refused a size"):
        logits_of(model, make_tokens(3))


@pytest.mark.usefixtures("no_kernels")
def test_without_kernels_torch_computes_and_says_so(twin: Path) -> None:
    assert isinstance(load_model(twin, backend="auto").model, TorchDecoder)
    engine = Engine.load(twin, EngineConfig(device="cpu"))
    info = engine.info
    engine.close()
    assert (info.compute_path, info.kernels) == ("torch", "compatibility kernels")
    with pytest.raises(UnsupportedModelError, match="'fast' cannot compute it: there was no comp"):
        load_model(twin, backend="fast")


@needs_kernels
def test_torch_keeps_its_threads_away_from_those_of_the_kernels(
    twin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    before = torch.get_num_threads()
    found: dict[str, tuple[int, int]] = {}
    try:
        for backend in ("auto", "torch", "auto"):
            engine = Engine.load(twin, EngineConfig(device="cpu", backend=backend))
            found[engine.info.compute_path] = (engine.info.num_threads, torch.get_num_threads())
            engine.close()
    finally:
        torch.set_num_threads(before)
    assert found == {"fast": (3, 1), "torch": (3, 3)}


@pytest.mark.parametrize(("variable", "threads"), [("4", 4), ("2,1", 2), ("0", 7), ("", 7)])
def test_threads_without_a_wish_are_the_variables_or_the_cores(
    monkeypatch: pytest.MonkeyPatch, variable: str, threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 7)
    assert engine_loading._default_threads() == threads


@pytest.mark.parametrize(("wish", "threads"), [(1, 1), (2, 2), (3, 2), (1024, 2)])
def test_no_more_threads_compute_than_the_computer_runs(
    twin: Path, wish: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    engine = Engine.load(twin, EngineConfig(device="cpu", num_threads=wish))
    assert engine.info.num_threads == threads
    engine.close()


def test_each_backend_can_be_ordered_and_is_told(twin: Path) -> None:
    found = {}
    for backend in ORDERED:
        engine = Engine.load(twin, EngineConfig(device="cpu", backend=backend, num_threads=2))
        found[backend] = (engine.info.compute_path, engine.info.kernels, engine.info.num_threads)
        engine.close()
    assert found == {
        "torch": ("torch", "compatibility kernels", 2),
        "bridge": ("bridge", "transformers", 2),
    }


def test_model_beyond_our_decoder_goes_over_the_bridge(
    twin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any) -> None:
        raise UnsupportedSpecError("a rotary embedding of part of each head")

    monkeypatch.setattr(loader, "describe_gguf", refuse)
    assert isinstance(load_model(twin, backend="auto").model, nn.Module)
    with pytest.raises(UnsupportedModelError, match="a rotary embedding of part of each head"):
        load_model(twin, backend="torch")


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_tensor_that_is_missing_is_named(tmp_path: Path, backend: Any) -> None:
    module = make_twin_module("qwen2")
    path = write_twin(module, tmp_path / "t.gguf", drop_tensors=("blk.1.attn_k.bias",))
    with pytest.raises(ModelFileError, match=r"'blk\.1\.attn_k\.bias' is missing"):
        load_model(path, backend=backend)


@needs_kernels
def test_weights_that_do_not_fit_are_refused_with_numbers(
    twin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_weights, "free_bytes", lambda device: 1000)
    with pytest.raises(NotEnoughMemoryError):
        load_model(twin, backend="fast")


@needs_kernels
def test_type_that_kernels_do_not_know_is_rounded_to_q8_0_with_a_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = remake(wide_config())
    path = write_twin(module, tmp_path / "twin.gguf", quantization="Q4_1")
    tokens = make_tokens(20)
    expected = logits_of(load_model(path, backend="fast").model, tokens)
    known = {name: kind for name, kind in MatrixType.__members__.items() if name != "Q4_1"}
    monkeypatch.setattr(quantised_weights, "_KNOWN", known)
    loaded = load_model(path, backend="fast")
    actual = logits_of(loaded.model, tokens)
    assert "Q4_1 becomes Q8_0" in caplog.text
    assert loaded.placement == "Q4_1 weights kept as Q8_0"
    assert not torch.equal(actual, expected)
    assert (actual - expected).abs().max() < 0.05 * expected.abs().max()
