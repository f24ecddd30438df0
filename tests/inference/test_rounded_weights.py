"""Folders whose floats are rounded at load: how well, whether on disk, and what if that goes wrong."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Phi3Config, PretrainedConfig

from inference.config import EngineConfig
from inference.engine import Engine
from inference.errors import (
    InvalidRequestError,
    ModelFileError,
    NotEnoughMemoryError,
    UnsupportedModelError,
)
from inference.formats.gguf import GgufFile
from inference.formats.quantize import QUANTIZERS
from inference.formats.safetensors_header import read_header
from inference.formats.whole_digest import WeightFiles
from inference.model import native_weights, weight_cache
from inference.model.loader import LoadedModel, load_model
from inference.model.native_model import NativeModel
from inference.request import LoadProgress
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import remake, wide_config
from tests.inference.loaded_models import logits_of, needs_kernels
from tests.inference.model_folders import write_folder
from tests.inference.tiny_models import VOCAB_SIZE, eager_logits, make_tokens

pytestmark = needs_kernels
TOKENS = make_tokens(30)
TYPES: list[Any] = ["Q8_0", "Q4_1"]
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": None,
}  # fmt: skip
CONFIGS: dict[str, PretrainedConfig] = {
    "biases": wide_config(attention_bias=True, mlp_bias=True),
    "tied": wide_config(tie_word_embeddings=True),
    "fused": Phi3Config(**SHAPE),
    "gemma2": Gemma2Config(**SHAPE, head_dim=16),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    module = remake(wide_config(tie_word_embeddings=True)).to(torch.bfloat16)
    return write_folder(module, tmp_path / "tiny")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def kept(cache: Path) -> list[Path]:
    return sorted((cache / weight_cache.FOLDER).iterdir())


def same(one: LoadedModel, other: LoadedModel) -> bool:
    assert isinstance(one.model, NativeModel)
    assert isinstance(other.model, NativeModel)
    return torch.equal(logits_of(one.model, TOKENS), logits_of(other.model, TOKENS))


def never(*_arguments: object) -> Any:
    raise AssertionError("it was rounded again")


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("weights", TYPES)
def test_rounded_weights_give_logits_near_the_original(
    tmp_path: Path, config: PretrainedConfig, weights: Any
) -> None:
    module = remake(config)
    path = write_folder(module, tmp_path / "tiny")
    loaded = load_model(path, backend="auto", weights=weights, num_threads=2)
    assert loaded.quantization == f"{weights} of F32"
    whole = load_model(path, backend="auto")
    assert loaded.weights_bytes < 0.5 * whole.weights_bytes
    assert loaded.fingerprint != whole.fingerprint
    expected = eager_logits(module, TOKENS)
    error = (logits_of(loaded.model, TOKENS) - expected).norm() / expected.norm()
    assert error < {"Q8_0": 0.04, "Q4_1": 0.25}[weights]


def test_embedding_and_head_keep_eight_bits_and_vectors_all(folder: Path, cache: Path) -> None:
    load_model(folder, backend="auto", weights="Q4_1", cache_dir=cache)
    with GgufFile.read(kept(cache)[0]) as file:
        types = {name: tensor.type_name for name, tensor in file.tensors.items()}
    assert types.pop("model.embed_tokens.weight") == "Q8_0"
    assert {kind for name, kind in types.items() if "norm" in name} == {"BF16"}
    assert {kind for name, kind in types.items() if "norm" not in name} == {"Q4_1"}


@pytest.mark.parametrize("weights", TYPES)
def test_model_is_rounded_once_and_gives_the_same_bits(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, weights: Any
) -> None:
    alone = load_model(folder, backend="auto", weights=weights)
    first = load_model(folder, backend="auto", weights=weights, cache_dir=cache)
    assert len(kept(cache)) == 1
    monkeypatch.setitem(QUANTIZERS, weights, never)
    second = load_model(folder, backend="auto", weights=weights, cache_dir=cache, num_threads=3)
    assert same(alone, first)
    assert same(first, second)
    assert first.fingerprint == second.fingerprint
    assert first.quantization == second.quantization == f"{weights} of BF16"


def test_each_model_and_type_has_a_file_of_its_own(
    folder: Path, cache: Path, tmp_path: Path
) -> None:
    other = write_folder(remake(wide_config()), tmp_path / "other")
    for path in (folder, other):
        for weights in TYPES:
            load_model(path, backend="auto", weights=weights, cache_dir=cache)
    assert len(kept(cache)) == 4
    if os.name == "posix":
        assert all(path.stat().st_mode & 0o077 == 0 for path in kept(cache))


def edit_unsampled(path: Path) -> None:
    """Change numbers that no fingerprint looks at; other weights and the same fingerprint."""
    file = path / "model.safetensors" if path.is_dir() else path
    data = bytearray(file.read_bytes())
    if path.is_dir():
        header = read_header(file)
        tensor = header.tensors["model.layers.0.mlp.up_proj.weight"]
        start, size = tensor.offset, tensor.num_bytes
    else:
        with GgufFile.read(file) as gguf:
            up = gguf.tensors["blk.0.ffn_up.weight"]
            start, size = up.offset, up.num_bytes
    assert size > 8 * 256
    first, end = start + size // 8, start + size // 4
    data[first:end] = bytes(end - first)
    file.write_bytes(data)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_model_that_was_edited_is_rounded_anew(folder: Path, cache: Path, kind: str) -> None:
    path = folder
    if kind == "file":
        path = write_twin(remake(wide_config()), cache.with_name("t.gguf"), quantization="F16")
    first = load_model(path, backend="auto", weights="Q8_0", cache_dir=cache)
    edit_unsampled(path)
    second = load_model(path, backend="auto", weights="Q8_0", cache_dir=cache)
    assert second.fingerprint == first.fingerprint
    assert not same(first, second)
    assert same(second, load_model(path, backend="auto", weights="Q8_0"))
    assert len(kept(cache)) == 2


def test_model_that_changes_while_it_is_rounded_keeps_nothing(folder: Path, cache: Path) -> None:
    def touch(progress: LoadProgress) -> None:
        if progress.stage == "Rounding weights, once":
            os.utime(folder / "model.safetensors", (1, 1))

    with pytest.raises(ModelFileError, match="changed while it was opened"):
        load_model(folder, backend="auto", weights="Q8_0", cache_dir=cache, on_progress=touch)
    assert kept(cache) == []


def test_model_is_read_whole_only_where_rounded_weights_are_kept(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    digest = WeightFiles.digest

    def note(files: WeightFiles, *arguments: Any) -> bytes:
        read.append(files.path)
        return digest(files, *arguments)

    monkeypatch.setattr(WeightFiles, "digest", note)
    load_model(folder, backend="auto", weights="auto", cache_dir=cache)
    load_model(folder, backend="torch", cache_dir=cache)
    load_model(folder, backend="auto", weights="Q8_0")
    assert read == []
    load_model(folder, backend="auto", weights="Q8_0", cache_dir=cache)
    assert read == [folder]


@pytest.mark.parametrize("place", ["start", "table", "data", "cut", "empty"])
def test_damaged_file_is_made_anew(
    folder: Path, cache: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = load_model(folder, backend="auto", weights="Q8_0", cache_dir=cache)
    path = kept(cache)[0]
    whole = path.read_bytes()
    changed = bytearray(whole)
    if place in ("cut", "empty"):
        changed = changed[: len(whole) // 2 if place == "cut" else 0]
    else:
        position = {"start": 1, "table": whole.index(b"model.norm") + 2, "data": len(whole) // 2}
        changed[position[place]] ^= 1
    path.write_bytes(changed)
    second = load_model(folder, backend="auto", weights="Q8_0", cache_dir=cache)
    assert "kept weights" in caplog.text
    assert same(first, second)
    assert kept(cache) == [path]
    assert path.read_bytes() == whole


def test_what_cannot_be_kept_is_rounded_each_time(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone = load_model(folder, backend="auto", weights="Q8_0")
    cache.write_text("this is no folder", "utf-8")
    assert same(load_model(folder, backend="auto", weights="Q8_0", cache_dir=cache), alone)
    assert "weights are not kept" in caplog.text
    cache.unlink()

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert same(load_model(folder, backend="auto", weights="Q8_0", cache_dir=cache), alone)
    assert "No space left on device" in caplog.text
    assert kept(cache) == []
    monkeypatch.setattr(weight_cache, "_FREE_SHARE", 1e-12)
    assert same(load_model(folder, backend="auto", weights="Q8_0", cache_dir=cache), alone)
    assert "the disk has no room" in caplog.text


def test_old_files_are_removed_when_another_is_written(folder: Path, cache: Path) -> None:
    place = cache / weight_cache.FOLDER
    place.mkdir(parents=True)
    ages = {"a.part": 2, "b.part": 0, "c.gguf": 24 * 61, "d.gguf": 24 * 59}  # hours
    for name, hours in ages.items():
        (place / name).write_bytes(b"x")
        used = time.time() - 3600 * hours
        os.utime(place / name, (used, used))
    load_model(folder, backend="auto", weights="Q8_0", cache_dir=cache)
    assert {path.name for path in kept(cache)} & set(ages) == {"b.part", "d.gguf"}


def test_use_makes_a_file_young_again(folder: Path, cache: Path) -> None:
    load_model(folder, backend="auto", weights="Q8_0", cache_dir=cache)
    os.utime(kept(cache)[0], (0, 0))
    load_model(folder, backend="auto", weights="Q8_0", cache_dir=cache)
    assert kept(cache)[0].stat().st_mtime > time.time() - 3600


def test_floats_of_a_gguf_file_are_rounded_too(tmp_path: Path) -> None:
    module = remake(wide_config())
    path = write_twin(module, tmp_path / "twin.gguf", quantization="F16")
    loaded = load_model(path, backend="auto", weights="Q8_0")
    assert loaded.quantization == "Q8_0 of F16"
    expected = eager_logits(module, TOKENS)
    assert (logits_of(loaded.model, TOKENS) - expected).norm() < 0.04 * expected.norm()


def test_auto_takes_the_least_loss_that_fits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"bytes": 2**40}
    monkeypatch.setattr(native_weights, "free_bytes", lambda device: free["bytes"])
    bytes_of = {
        weights: load_model(folder, backend="auto", weights=weights).weights_bytes
        for weights in ("auto", *TYPES)
    }
    found = {}
    for weights, size in bytes_of.items():
        free["bytes"] = round(1.12 * size)
        loaded = load_model(folder, backend="auto")
        found[weights] = loaded.quantization
        assert loaded.weights_bytes == size
    assert found == {"auto": "BF16", "Q8_0": "Q8_0 of BF16", "Q4_1": "Q4_1 of BF16"}
    free["bytes"] = 1000
    with pytest.raises(NotEnoughMemoryError):
        load_model(folder, backend="auto")


def test_file_that_is_rounded_already_stays(tmp_path: Path, cache: Path) -> None:
    path = write_twin(remake(wide_config()), tmp_path / "twin.gguf", quantization="Q4_0")
    loaded = load_model(path, backend="auto", weights="Q8_0", cache_dir=cache)
    assert same(loaded, load_model(path, backend="auto"))
    assert loaded.quantization == "Q4_0"


def test_rounding_where_no_kernels_compute_is_refused(folder: Path) -> None:
    backends: list[Any] = ["torch", "bridge"]
    for backend in backends:
        with pytest.raises(UnsupportedModelError, match="Here neither computes: the "):
            load_model(folder, backend=backend, weights="Q8_0")
    with pytest.raises(UnsupportedModelError, match="not in bfloat16"):
        load_model(folder, backend="auto", dtype="bfloat16", weights="Q8_0")


def test_engine_rounds_as_configured_and_says_so(folder: Path, cache: Path) -> None:
    config = EngineConfig(device="cpu", weights="Q4_1", cache_dir=str(cache), num_threads=2)
    engine = Engine.load(folder, config)
    info = engine.info
    engine.close()
    assert (info.compute_path, info.quantization) == ("fast", "Q4_1 of BF16")
    assert len(kept(cache)) == 1
    with pytest.raises(InvalidRequestError, match="weights"):
        EngineConfig(weights="Q2_K")  # type: ignore[arg-type]  # that is what is tested
