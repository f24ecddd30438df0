import contextlib
import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from inference.errors import (
    EngineError,
    ModelFileError,
    NotEnoughMemoryError,
    UnsupportedModelError,
)
from inference.model import loader
from inference.model.loader import load_model
from inference.model.memory import choose_dtype
from inference.model.progress import LoadReporter
from inference.request import ChatMessage, LoadProgress
from tests.inference.gguf_files import write_twin
from tests.inference.model_folders import write_folder
from tests.inference.tiny_models import eager_logits, make_module, make_tokens

ROOT = Path(__file__).parents[2]
FAMILIES = ["llama", "qwen2", "gemma3"]


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text("utf-8")), **changes}
    path.write_text(json.dumps(config), "utf-8")


def num_mappings(path: Path) -> int:
    return sum(1 for item in psutil.Process().memory_maps() if Path(item.path) == path)


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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_shard_size", ["5GB", "100KB"], ids=["one file", "parts"])
def test_load_model_folder_gives_logits_of_the_original(tmp_path, family, max_shard_size):
    module = make_module(family)
    path = write_folder(module, tmp_path / "tiny", max_shard_size=max_shard_size)
    loaded = load_model(path, dtype="float32")
    assert isinstance(loaded.module, PreTrainedModel)
    tokens = make_tokens(40)
    torch.testing.assert_close(
        eager_logits(loaded.module, tokens), eager_logits(module, tokens), atol=1e-5, rtol=1e-5
    )
    assert (loaded.name, loaded.quantization) == ("tiny", "F32")
    assert loaded.num_parameters == sum(p.numel() for p in module.parameters())
    assert loaded.model_context_tokens == 512
    assert loaded.tokenizer.eos_ids == {2}
    assert loaded.chat_template is not None
    assert not loaded.module.training
    assert not any(p.requires_grad for p in loaded.module.parameters())


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


def test_load_model_folder_in_cache_takes_name_of_model(tmp_path):
    path = tmp_path / "models--someone--tiny-chat" / "snapshots" / "0123abc"
    path.parent.mkdir(parents=True)
    assert load_model(write_folder(make_module("llama"), path)).name == "tiny-chat"


def test_load_model_missing_tensor_in_folder_names_it(tmp_path):
    from safetensors.torch import load_file, save_file

    path = write_folder(make_module("llama"), tmp_path / "tiny")
    weights = load_file(path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path / "model.safetensors")
    with pytest.raises(
        ModelFileError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' is missing"
    ):
        load_model(path)


def test_load_model_folder_with_other_shape_is_refused(tmp_path):
    path = write_folder(make_module("llama"), tmp_path / "tiny")
    edit_config(path, intermediate_size=81)
    with pytest.raises(ModelFileError, match=r"tiny: .*(shape|size)"):
        load_model(path)


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"model_type": None}, ModelFileError, r"config\.json: It names no 'model_type'"),
        ({"model_type": "warp9"}, ModelFileError, "warp9"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            UnsupportedModelError,
            "quantised with 'gptq'",
        ),
        ({"is_encoder_decoder": True}, UnsupportedModelError, "encoder-decoder"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            UnsupportedModelError,
            "'LlamaForSequenceClassification' is not a language model",
        ),
        ({"hidden_size": "wide"}, ModelFileError, "transformers cannot load it"),
        ({"num_attention_heads": 0}, ModelFileError, "transformers cannot load it"),
    ],
)
def test_load_model_folder_with_wrong_config_is_refused(tmp_path, changes, kind, words):
    path = write_folder(make_module("llama"), tmp_path / "tiny")
    edit_config(path, **changes)
    with pytest.raises(kind, match=words):
        load_model(path)


def test_load_model_folder_with_own_code_never_runs_it(tmp_path):
    path = write_folder(make_module("llama"), tmp_path / "tiny")
    (path / "modeling_own.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Own: pass\n", "utf-8"
    )
    edit_config(path, model_type="own", auto_map={
        "AutoConfig": "modeling_own.Own", "AutoModelForCausalLM": "modeling_own.Own",
    })  # fmt: skip
    with pytest.raises(ModelFileError):
        load_model(path)
    assert not (tmp_path / "ran").exists()


def test_load_model_too_large_fails_before_weights_are_read(tmp_path, monkeypatch):
    path = write_twin(make_module("llama"), tmp_path / "t.gguf")

    def choose(dtype_name, device, num_parameters):
        return choose_dtype(dtype_name, device, num_parameters, free=1000)

    monkeypatch.setattr(loader, "choose_dtype", choose)
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


@pytest.mark.parametrize(
    ("dtype_name", "free", "dtype"),
    [
        ("auto", 5334, torch.float32),
        ("auto", 5333, torch.bfloat16),
        ("auto", 2223, torch.bfloat16),
        ("float32", 4445, torch.float32),
        ("float16", 2223, torch.float16),
    ],
)
def test_choose_dtype_on_cpu_takes_what_fits(dtype_name, free, dtype):
    assert choose_dtype(dtype_name, "cpu", 1000, free=free) == dtype


@pytest.mark.parametrize(
    ("dtype_name", "free", "needed"), [("auto", 2222, 2000), ("float32", 4444, 4000)]
)
def test_choose_dtype_that_does_not_fit_says_both_numbers(dtype_name, free, needed):
    with pytest.raises(NotEnoughMemoryError) as caught:
        choose_dtype(dtype_name, "cpu", 1000, free=free)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (needed, free)


def test_choose_dtype_asks_the_machine_when_not_told():
    assert choose_dtype("auto", "cpu", 10) == torch.float32


def test_reporter_small_steps_are_joined():
    seen: list[LoadProgress] = []
    reporter = LoadReporter(seen.append)
    reporter.begin("A", until=0.5)
    for step in range(1001):
        reporter.advance(step, 1000)
    reporter.begin("B", until=0.4)
    reporter.advance(1, 0)
    reporter.finish()
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert 40 < len(seen) <= 54
    assert (seen[-1].stage, seen[-1].fraction) == ("Ready", 1.0)


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
