import pytest
import torch
from transformers import PreTrainedModel

from inference.errors import (
    ModelFileError,
    UnsupportedModelError,
)
from inference.model.loader import load_model
from tests.inference.model_folders import edit_config, write_folder
from tests.inference.tiny_models import eager_logits, make_module, make_tokens

FAMILIES = ["llama", "qwen2", "gemma3"]


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
        (
            {"num_attention_heads": 0},
            ModelFileError,
            r"config\.json: 'num_attention_heads' must be",
        ),
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
