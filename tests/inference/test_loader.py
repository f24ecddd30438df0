import contextlib
import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from inference.errors import (
    EngineError,
    ModelFileError,
    NotEnoughMemoryError,
)
from inference.model import model_paths
from inference.model.loader import check_model, load_model
from inference.model.memory import choose_dtype
from inference.request import ChatMessage, LoadProgress
from tests.inference.gguf_files import write_twin
from tests.inference.loaded_models import num_mappings
from tests.inference.model_folders import write_folder
from tests.inference.tiny_models import eager_logits, make_module, make_tokens

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def twin(tmp_path_factory):
    path = tmp_path_factory.mktemp("twin") / "twin.gguf"
    return write_twin(make_module("llama"), path).read_bytes()


def test_load_model_gguf_describes_the_model(tmp_path):
    module = make_module("llama")
    path = write_twin(module, tmp_path / "my-model.gguf", quantization="Q8_0")
    loaded = load_model(path, dtype="float32")
    num_parameters = sum(p.numel() for p in module.parameters())
    assert (loaded.name, loaded.architecture) == ("my-model", "llama")
    assert loaded.num_parameters == num_parameters
    assert loaded.weights_bytes == 4 * num_parameters
    assert loaded.model_context_tokens == 512
    assert loaded.tokenizer.vocab_size == 260
    assert loaded.tokenizer.bos_id == 1
    assert loaded.chat_template is not None
    assert loaded.chat_template.render([ChatMessage("user", "Hi")]) == "<user>Hi</s><assistant>"


def test_load_model_gguf_and_folder_agree(tmp_path):
    module = make_module("qwen2")
    tokens = make_tokens(40)
    logits = []
    for path in (
        write_twin(module, tmp_path / "twin.gguf"),
        write_folder(module, tmp_path / "tiny"),
    ):
        loaded = load_model(path, dtype="float32")
        assert isinstance(loaded.module, PreTrainedModel)
        logits.append(eager_logits(loaded.module, tokens))
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=1e-5)


def test_load_model_in_bfloat16_has_weights_of_two_bytes(tmp_path):
    path = write_twin(make_module("llama"), tmp_path / "t.gguf")
    folder = write_folder(make_module("llama"), tmp_path / "tiny")
    for place in (path, folder):
        loaded = load_model(place, dtype="bfloat16")
        assert {p.dtype for p in loaded.module.parameters()} == {torch.bfloat16}
        assert loaded.weights_bytes == 2 * loaded.num_parameters


def test_load_model_gguf_leaves_no_mapping_and_file_can_go(tmp_path):
    path = write_twin(make_module("llama"), tmp_path / "t.gguf")
    loaded = load_model(path, dtype="float32")
    gc.collect()
    assert num_mappings(path) == 0
    path.write_bytes(b"")
    assert isinstance(loaded.module, PreTrainedModel)
    assert torch.isfinite(eager_logits(loaded.module, make_tokens(5))).all()


@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_load_model_dropped_model_is_freed(tmp_path, kind):
    module = make_module("llama")
    path = (
        write_twin(module, tmp_path / "t.gguf")
        if kind == "gguf"
        else write_folder(module, tmp_path / "tiny")
    )
    loaded = load_model(path)
    weight = weakref.ref(loaded.module.get_parameter("model.norm.weight"))
    del loaded
    gc.collect()
    assert weight() is None


def test_load_model_progress_never_falls_and_ends_at_one(tmp_path):
    for place in (
        write_twin(make_module("llama"), tmp_path / "t.gguf"),
        write_folder(make_module("llama"), tmp_path / "tiny"),
    ):
        seen: list[LoadProgress] = []
        load_model(place, on_progress=seen.append)
        fractions = [progress.fraction for progress in seen]
        assert fractions[0] == 0.0
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1.0
        assert len([p for p in seen if p.stage == "Loading weights"]) > 20


def test_load_model_fingerprint_depends_on_weights_and_type(tmp_path):
    first = write_twin(make_module("llama"), tmp_path / "a.gguf")
    other = write_twin(make_module("llama", seed=1), tmp_path / "b.gguf")
    fingerprints = [
        load_model(first, dtype="float32").fingerprint,
        load_model(first, dtype="float32").fingerprint,
        load_model(first, dtype="bfloat16").fingerprint,
        load_model(other, dtype="float32").fingerprint,
    ]
    assert fingerprints[0] == fingerprints[1]
    assert len(set(fingerprints)) == 3


def test_load_model_broken_template_loads_without_it(tmp_path):
    path = write_twin(
        make_module("llama"), tmp_path / "t.gguf", extra={"tokenizer.chat_template": "{% if %}"}
    )
    assert load_model(path).chat_template is None


def test_load_model_without_template_has_none(tmp_path):
    path = write_twin(
        make_module("llama"), tmp_path / "t.gguf", drop_keys=("tokenizer.chat_template",)
    )
    assert load_model(path).chat_template is None


@pytest.mark.parametrize(
    ("file_name", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("qwen2.5-0.5b-q4_k_m.gguf", "qwen2.5-0.5b"),
        ("thing-IQ4_XS.gguf", "thing"),
        ("thing.bf16.gguf", "thing"),
        ("gemma-3-1b-it.gguf", "gemma-3-1b-it"),
        ("model-Q8_0.gguf", "Twin"),
        ("Q8_0.gguf", "Q8_0"),
    ],
)
def test_load_model_name_comes_from_the_file_name(tmp_path, file_name, name):
    path = write_twin(make_module("llama"), tmp_path / file_name)
    assert load_model(path).name == name


def test_load_model_generic_file_without_title_keeps_its_name(tmp_path):
    path = write_twin(make_module("llama"), tmp_path / "model.gguf", drop_keys=("general.name",))
    assert load_model(path).name == "model"


def test_load_model_too_large_fails_before_weights_are_read(tmp_path, monkeypatch):
    path = write_twin(make_module("llama"), tmp_path / "t.gguf")

    def choose(dtype_name, device, num_parameters):
        return choose_dtype(dtype_name, device, num_parameters, free=1000)

    monkeypatch.setattr(model_paths, "choose_dtype", choose)
    with pytest.raises(NotEnoughMemoryError) as caught:
        load_model(path)
    assert caught.value.free_bytes == 1000


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_load_model_file_with_changed_bytes_raises_only_engine_errors(tmp_path, twin, data):
    changed = bytearray(twin)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(4, 8000))
        changed[position] = data.draw(st.integers(0, 255))
    path = tmp_path / "changed.gguf"
    path.write_bytes(changed)
    with contextlib.suppress(EngineError):
        load_model(path, dtype="float32")


@pytest.mark.slow
def test_load_model_starter_model_says_paris(starter_model_path):
    loaded = load_model(starter_model_path, dtype="float32")
    assert (loaded.quantization, loaded.num_parameters) == ("Q4_1", 134_515_008)
    ids = loaded.tokenizer.encode_text("The capital of France is")
    with torch.inference_mode():
        logits = loaded.module(input_ids=torch.tensor([ids])).logits[0, -1]
    assert loaded.tokenizer.decode([int(logits.argmax())]) == " Paris"


@pytest.mark.slow
def test_load_model_cold_process_leaves_collector_on_and_its_work_small(starter_model_path):
    code = (
        "import gc\n"
        "from inference.model.loader import load_model\n"
        f"load_model({str(starter_model_path)!r})\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 100_000, len(gc.get_objects()) < 100_000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True"] * 3


@pytest.mark.gpu
def test_load_model_on_cuda_gives_logits_of_the_original(tmp_path):
    module = make_module("llama")
    path = write_twin(module, tmp_path / "t.gguf")
    loaded = load_model(path, device="cuda", dtype="float32")
    assert {p.device.type for p in loaded.module.parameters()} == {"cuda"}
    assert {b.device.type for b in loaded.module.buffers()} == {"cuda"}
    tokens = make_tokens(40)
    with torch.inference_mode():
        logits = loaded.module(input_ids=torch.tensor([tokens], device="cuda")).logits[0]
    torch.testing.assert_close(logits.cpu(), eager_logits(module, tokens), atol=1e-3, rtol=1e-3)


def test_check_model_takes_what_can_be_loaded_and_names_what_cannot(tmp_path):
    sound = write_twin(make_module("llama"), tmp_path / "sound.gguf")
    check_model(sound)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(sound.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match=r"cut\.gguf"):
        check_model(cut)
    folder = write_folder(make_module("llama"), tmp_path / "folder")
    check_model(folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match="model_type"):
        check_model(folder)
    with pytest.raises(ModelFileError, match="nowhere"):
        check_model(tmp_path / "nowhere.gguf")
