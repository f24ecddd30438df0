"""One folder of safetensors, three ways to compute it: which is chosen, and that all say the same."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from inference.config import EngineConfig
from inference.engine import Engine
from inference.errors import ModelFileError, NotEnoughMemoryError, UnsupportedModelError
from inference.formats.safetensors_folder import check_folder
from inference.kernels.library import load_kernels
from inference.model import loader, native_weights
from inference.model.decoder import TorchDecoder
from inference.model.loader import load_model
from inference.model.native_model import NativeModel
from tests.inference.loaded_models import logits_of, needs_kernels
from tests.inference.model_folders import edit_config, write_folder
from tests.inference.tiny_decoders import VARIANTS, make_variant
from tests.inference.tiny_models import eager_logits, make_tokens

BEST = TorchDecoder if load_kernels() is None else NativeModel
OURS = [pytest.param("fast", marks=needs_kernels), "torch"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(make_variant("llama"), tmp_path / "tiny")


def change_tensors(folder: Path, change: Any) -> None:
    """Write the folder's tensors as `change` returns them."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_original(tmp_path: Path, variant: str, backend: Any) -> None:
    module = make_variant(variant)
    loaded = load_model(write_folder(module, tmp_path / "tiny"), backend=backend, num_threads=2)
    assert not isinstance(loaded.model, nn.Module)
    assert loaded.model.path_name == backend
    tokens = make_tokens(40)
    expected = eager_logits(module, tokens)
    for chunk_tokens in (40, 7):
        actual = logits_of(loaded.model, tokens, chunk_tokens=chunk_tokens)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-5)
    scales = [b for name, b in module.named_buffers() if name.endswith("layer_scalar")]  # Gemma 4's
    stored = [*module.parameters(), *scales]
    assert loaded.num_parameters == sum(weight.numel() for weight in stored)
    assert loaded.model_context_tokens == 512
    assert loaded.quantization == "F32"


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_floats_keep_every_bit(tmp_path: Path, dtype: torch.dtype, backend: Any) -> None:
    module = make_variant("phi3", dtype=dtype)
    path = write_folder(module, tmp_path / "tiny", max_shard_size="30KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    loaded = load_model(path, backend=backend, dtype="float32")
    tokens, same = make_tokens(30), make_variant("phi3")
    same.load_state_dict(module.state_dict())  # rotary frequencies stay as they are
    actual = logits_of(loaded.model, tokens)
    torch.testing.assert_close(actual, eager_logits(same, tokens), atol=1e-4, rtol=1e-5)
    if backend == "fast":
        assert loaded.weights_bytes < 2.1 * loaded.num_parameters


@needs_kernels
def test_kernels_give_the_same_bits_in_any_chunk_and_with_any_threads(folder: Path) -> None:
    tokens = make_tokens(60)
    models = [load_model(folder, backend="fast", num_threads=n).model for n in (1, 3)]
    whole = logits_of(models[0], tokens)
    for model, chunk_tokens in ((models[1], 1000), (models[0], 1), (models[1], 13)):
        assert torch.equal(logits_of(model, tokens, chunk_tokens=chunk_tokens), whole)


def test_the_best_way_is_taken_and_told(folder: Path) -> None:
    assert isinstance(load_model(folder, backend="auto").model, BEST)
    other = load_model(folder, backend="auto", dtype="bfloat16").model
    assert isinstance(other, TorchDecoder)
    assert other.dtype == torch.bfloat16
    found = {}
    backends: list[Any] = ["auto", "torch", "bridge"]
    for backend in backends:
        engine = Engine.load(folder, EngineConfig(device="cpu", backend=backend, num_threads=2))
        found[backend] = engine.info.compute_path
        engine.close()
    assert found == {"auto": BEST.path_name, "torch": "torch", "bridge": "bridge"}


def test_transformers_is_imported_only_for_the_bridge(folder: Path) -> None:
    code = (
        "import sys\n"
        "from inference.model.loader import load_model\n"
        f"load_model({str(folder)!r}, backend='auto')\n"
        f"load_model({str(folder)!r}, backend='torch')\n"
        "assert 'transformers' not in sys.modules\n"
        f"load_model({str(folder)!r}, backend='bridge')\n"
        "assert 'transformers' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_weights_of_each_arithmetic_have_a_name_of_their_own(folder: Path) -> None:
    backends: list[Any] = ["auto", "torch"]
    fingerprints = [load_model(folder, backend=backend).fingerprint for backend in backends]
    if BEST is NativeModel:
        assert fingerprints[0] != fingerprints[1]
    assert fingerprints[1] == load_model(folder, backend="bridge").fingerprint


@pytest.mark.skipif(sys.platform != "linux", reason="mappings are listed by Linux alone")
def test_no_file_stays_mapped(folder: Path) -> None:
    for backend in ("auto", "torch"):
        loaded = load_model(folder, backend=backend)
        assert str(folder) not in Path("/proc/self/maps").read_text("utf-8")
        assert loaded.num_parameters


@pytest.mark.parametrize("backend", ["auto", *OURS])
def test_tensor_that_is_missing_is_named(folder: Path, backend: Any) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        return tensors

    change_tensors(folder, drop)
    with pytest.raises(
        ModelFileError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' is missing"
    ):
        load_model(folder, backend=backend)


@pytest.mark.parametrize("backend", ["auto", *OURS])
def test_tensor_of_another_shape_is_named(folder: Path, backend: Any) -> None:
    edit_config(folder, intermediate_size=96)
    with pytest.raises(
        ModelFileError, match=r"gate_proj\.weight' has the shape \(80, 48\), but .* \(96, 48\)"
    ):
        load_model(folder, backend=backend)


def test_tensor_without_use_is_counted_and_left_out(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = make_variant("llama")
    change_tensors(folder, lambda tensors: {**tensors, "model.extra": torch.ones(3)})
    loaded = load_model(folder, backend="auto")
    assert "1 tensors of the folder have no use" in caplog.text
    assert loaded.num_parameters == sum(p.numel() for p in module.parameters())


def without_prefix(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def in_double(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.double() for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("change", "words"),
    [(without_prefix, "names do not begin with 'model.'"), (in_double, "of the type F64")],
)
def test_tensors_of_other_names_and_types_go_over_the_bridge(
    folder: Path, change: Any, words: str
) -> None:
    change_tensors(folder, change)
    loaded = load_model(folder, backend="auto", dtype="float32")
    tokens = make_tokens(20)
    expected = eager_logits(make_variant("llama"), tokens)
    torch.testing.assert_close(eager_logits(loaded.module, tokens), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(UnsupportedModelError, match=f"'torch' cannot compute it: .*{words}"):
        load_model(folder, backend="torch")


def test_model_beyond_our_decoder_goes_over_the_bridge(folder: Path) -> None:
    edit_config(folder, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    assert isinstance(load_model(folder, backend="auto").model, nn.Module)
    with pytest.raises(UnsupportedModelError, match="'fast' cannot compute it"):
        load_model(folder, backend="fast")


@needs_kernels
def test_weights_that_do_not_fit_are_refused_with_numbers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_weights, "free_bytes", lambda device: 1000)
    with pytest.raises(NotEnoughMemoryError):
        load_model(folder, backend="fast")


def test_file_that_shrinks_while_it_is_opened_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_then_cut(path: Path) -> Any:
        found = check_folder(path)
        with (path / "model.safetensors").open("r+b") as file:
            file.truncate(found.headers[0].size - 64)
        return found

    monkeypatch.setattr(loader, "check_folder", check_then_cut)
    with pytest.raises(ModelFileError, match="changed while it was opened"):
        load_model(folder, backend="auto")
