"""Sizes in a folder's config.json that no model has are refused before anything is built."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from inference.errors import ModelFileError
from inference.formats.safetensors_folder import check_folder
from inference.model.folder_loading import check_config
from inference.model.loader import load_model
from tests.inference.model_folders import edit_config, write_folder
from tests.inference.tiny_decoders import make_variant
from tests.inference.tiny_models import VOCAB_SIZE

BACKENDS: list[Any] = ["auto", "bridge"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(make_variant("llama"), tmp_path / "tiny")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_hidden_layers": 100_000}, "num_hidden_layers"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 1e300}, "num_hidden_layers"),
        ({"num_attention_heads": 1025}, "num_attention_heads"),
        ({"num_key_value_heads": -1}, "num_key_value_heads"),
        ({"head_dim": 2**31}, "head_dim"),
        ({"head_dim": 2**63}, "head_dim"),
        ({"head_dim": 4098}, "head_dim"),
        ({"head_dim": float("nan")}, "head_dim"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
        ({"max_position_embeddings": 2**31}, "max_position_embeddings"),
        ({"hidden_size": 2**63}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"vocab_size": 2**31}, "vocab_size"),
        ({"num_local_experts": 2**16 + 1}, "num_local_experts"),
        ({"num_local_experts": float("inf")}, "num_local_experts"),
        ({"num_local_experts": -1, "num_experts_per_tok": 2}, "num_local_experts"),
        ({"num_experts": 6, "num_experts_per_tok": 7}, "num_experts_per_tok"),
        ({"num_local_experts": 6, "num_experts_per_tok": 0}, "num_experts_per_tok"),
        ({"text_config": {"n_routed_experts": 4, "moe_k": -1}}, "text_config.moe_k"),
        ({"num_experts": 6, "decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"sliding_window": 2**63}, "sliding_window"),
        ({"partial_rotary_factor": 1e18}, "partial_rotary_factor"),
        ({"text_config": {"num_hidden_layers": 10**5}}, "text_config.num_hidden_layers"),
        (
            {"rope_parameters": {"full_attention": {"partial_rotary_factor": 2**40}}},
            "rope_parameters.full_attention.partial_rotary_factor",
        ),
    ],
    ids=str,
)
def test_size_that_cannot_be_is_named(
    folder: Path, changes: dict[str, object], field: str, backend: Any
) -> None:
    edit_config(folder, **changes)
    with pytest.raises(ModelFileError) as raised:
        load_model(folder, backend=backend)
    assert raised.value.path == folder / "config.json"
    assert raised.value.reason.startswith(f"{field!r} must be from ")


@pytest.mark.parametrize("backend", BACKENDS)
def test_folder_without_tensors_is_refused_for_that_and_not_for_its_sizes(
    folder: Path, backend: Any
) -> None:
    edit_config(folder, hidden_size=-5)
    save_file({}, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match="hold no tensors") as raised:
        load_model(folder, backend=backend)
    assert raised.value.path == folder


def test_refusal_says_what_would_be_right(folder: Path) -> None:
    num_tensors = len(check_folder(folder).headers[0].tensors)
    edit_config(folder, num_hidden_layers=num_tensors + 1)
    with pytest.raises(ModelFileError) as raised:
        load_model(folder)
    assert raised.value.reason == (
        f"'num_hidden_layers' must be from 1 to {num_tensors}, as the folder holds {num_tensors} "
        f"tensors, not {num_tensors + 1}."
    )


def test_largest_sizes_and_what_is_no_number_are_left_to_the_tensors(folder: Path) -> None:
    checked = check_folder(folder)
    tensors = checked.headers[0].tensors.values()
    changes: dict[str, object] = {
        "num_hidden_layers": len(tensors),
        "num_attention_heads": 1024,
        "num_key_value_heads": None,
        "head_dim": 4096,
        "max_position_embeddings": 2**31 - 1,
        "vocab_size": max(tensor.num_elements for tensor in tensors),
        "hidden_size": "wide",
        "intermediate_size": [VOCAB_SIZE] * 4,
        "sliding_window": -1,
        "partial_rotary_factor": 1.0,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "decoder_sparse_step": 0,
    }
    edit_config(folder, **changes)
    config = check_config(checked)
    assert {key: config[key] for key in changes} == changes
