import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.safetensors_folder import INDEX_FILE, SINGLE_FILE, check_folder
from tests.inference.model_folders import write_folder
from tests.inference.tiny_models import make_module


@pytest.fixture
def folder(tmp_path):
    return write_folder(make_module("llama"), tmp_path / "tiny")


@pytest.fixture
def parts_folder(tmp_path):
    path = write_folder(make_module("llama"), tmp_path / "parts", max_shard_size="100KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    return path


def fail(path: Path, kind: type[ModelFileError] = ModelFileError) -> tuple[str, str]:
    with pytest.raises(kind) as caught:
        check_folder(path)
    return caught.value.path.name, caught.value.reason


def rewrite_header(path: Path, change: Callable[[Any], Any]) -> None:
    """Let `change` edit the parsed header (or return a new one); the data stays."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    text = json.dumps(change(header) or header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_check_folder_whole_model_gives_sizes(folder):
    checked = check_folder(folder)
    module = make_module("llama")
    assert checked.num_parameters == sum(p.numel() for p in module.parameters())
    assert checked.weight_type == "F32"
    tensor = checked.headers[0].tensors["model.norm.weight"]
    assert (tensor.shape, tensor.num_bytes, tensor.num_elements) == ((48,), 192, 48)


def test_check_folder_in_parts_gives_the_same_sizes(folder, parts_folder):
    assert check_folder(parts_folder).num_parameters == check_folder(folder).num_parameters


def test_fingerprint_is_stable_and_changes_with_weights(folder, tmp_path):
    first = check_folder(folder).fingerprint()
    again = write_folder(make_module("llama"), tmp_path / "again")
    other = write_folder(make_module("llama", seed=1), tmp_path / "other")
    assert check_folder(again).fingerprint() == first
    assert check_folder(other).fingerprint() != first
    assert len(first) == 32


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", SINGLE_FILE])
def test_check_folder_missing_file_names_it(folder, name):
    (folder / name).unlink()
    assert fail(folder) == (name, "The file is missing from the folder 'tiny'.")


def test_folder_without_a_model_says_what_to_choose(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    name, reason = fail(tmp_path)
    assert (name, reason) == (
        tmp_path.name,
        "The folder holds no model: there is no config.json in it, and no weights.",
    )


def test_folder_with_gguf_files_alone_names_one(tmp_path):
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(UnsupportedModelError, match="holds a GGUF file") as caught:
        check_folder(tmp_path)
    assert caught.value.hint == "Open the file a.gguf itself."


def test_folder_with_weights_but_no_config_names_the_config(folder):
    (folder / "config.json").unlink()
    (folder / "b.gguf").write_bytes(b"GGUF")
    assert fail(folder) == ("config.json", "The file is missing from the folder 'tiny'.")


def test_check_folder_missing_folder_says_so(tmp_path):
    assert fail(tmp_path / "absent") == ("absent", "The folder does not exist.")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "The file is empty (0 bytes)."),
        (b"\1\2\3", "The file ends after 3 bytes."),
        (b"<!doctype html><title>404</title>", "This is a web page (HTML), not a model file."),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "This is a git-lfs pointer, a small text file in place of the model.",
        ),
        (
            struct.pack("<Q", 2**60) + b"{}",
            "This is not a safetensors file: it starts with 00 00 00 00 00 00 00 10.",
        ),
        (
            struct.pack("<Q", 99_000_000) + b"{}",
            "The file ends after 10 bytes, inside its header of 99,000,000 bytes.",
        ),
        (struct.pack("<Q", 9) + b"{not json", "The header is not valid JSON: "),
        (struct.pack("<Q", 2) + b"{}rest", "4 bytes follow after the last tensor."),
        (struct.pack("<Q", 100_000) + b'{"a":' * 20_000, "The header is not valid JSON: "),
        (struct.pack("<Q", 14) + b'{"a":1,"a":22}', "The header is not valid JSON: a name"),
    ],
)
def test_check_folder_bad_weights_file_fails_with_reason_and_little_memory(folder, data, reason):
    (folder / SINGLE_FILE).write_bytes(data)
    tracemalloc.start()
    try:
        name, actual = fail(folder)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert name == SINGLE_FILE
    assert actual.startswith(reason)
    assert peak < 2**22


def test_check_folder_weights_cut_anywhere_fails(folder):
    path = folder / SINGLE_FILE
    whole = path.read_bytes()
    for size in [*range(64), *range(64, len(whole), 4096), len(whole) - 1]:
        path.write_bytes(whole[:size])
        name, reason = fail(folder)
        assert name == SINGLE_FILE
        assert "ends after" in reason or "is empty" in reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda h: h["model.norm.weight"].update(data_offsets=[10**12, 10**12 + 192]),
            "'model.norm.weight' overlaps another one or leaves a gap",
        ),
        (lambda h: h["model.norm.weight"].update(data_offsets=[192, 0]), "impossible offsets"),
        (lambda h: h["model.norm.weight"].update(data_offsets=[0]), "impossible offsets"),
        (lambda h: h["model.norm.weight"].update(data_offsets=[-192, 0]), "no sound type, shape"),
        (lambda h: h["model.norm.weight"].update(shape=[49]), "its shape needs 196"),
        (lambda h: h["model.norm.weight"].update(shape=[2**62, 2**62]), "its shape needs"),
        (lambda h: h["model.norm.weight"].update(shape="48"), "no sound type, shape"),
        (lambda h: h.update({"model.norm.weight": 5}), "has no description"),
        (lambda h: h.pop("model.norm.weight") and None, "gap|follow after the last tensor"),
        (lambda h: [h], "This is not a safetensors file"),
    ],
)
def test_check_folder_wrong_header_names_the_tensor(folder, change, reason):
    rewrite_header(folder / SINGLE_FILE, change)
    with pytest.raises(ModelFileError, match=reason):
        check_folder(folder)


def test_check_folder_unknown_type_is_unsupported(folder):
    rewrite_header(folder / SINGLE_FILE, lambda h: h["model.norm.weight"].update(dtype="F4"))
    assert "the type 'F4'" in fail(folder, UnsupportedModelError)[1]


def test_check_folder_missing_part_names_it_and_its_number(parts_folder):
    part = sorted(parts_folder.glob("*.safetensors"))[1]
    total = len(list(parts_folder.glob("*.safetensors")))
    part.unlink()
    assert fail(parts_folder) == (part.name, f"This part of the model (2 of {total}) is missing.")


def test_check_folder_part_of_another_model_names_the_missing_tensor(parts_folder):
    first, second, *_ = sorted(parts_folder.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    name, reason = fail(parts_folder)
    assert name == second.name
    assert "should be in this file and is not" in reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "The file is empty (0 bytes)."),
        ("<html>", "This is a web page (HTML), not a model file."),
        ("{", "The file is not valid JSON."),
        ("[" * 100_000, "The file is not valid JSON."),
        ("[]", "It lists no parts of the model ('weight_map')."),
        ('{"weight_map": {}}', "It lists no parts of the model ('weight_map')."),
        ('{"weight_map": {"a": 5}}', "It names an impossible part: '5'."),
        (
            '{"weight_map": {"a": "../other/model.safetensors"}}',
            "It names an impossible part: '../other/model.safetensors'.",
        ),
    ],
)
def test_check_folder_bad_index_fails_with_reason(parts_folder, text, reason):
    (parts_folder / INDEX_FILE).write_text(text, "utf-8")
    assert fail(parts_folder) == (INDEX_FILE, reason)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pytorch_model.bin", "only as a pickle (pytorch_model.bin), which can run code"),
        ("adapter_model.safetensors", "an adapter (adapter_model.safetensors), not a whole model"),
        ("model.Q4_0.gguf", "holds a GGUF file, not safetensors"),
    ],
)
def test_check_folder_other_weights_are_unsupported(folder, name, reason):
    (folder / SINGLE_FILE).rename(folder / name)
    assert reason in fail(folder, UnsupportedModelError)[1]


def test_check_folder_index_missing_beside_parts_names_it(parts_folder):
    (parts_folder / INDEX_FILE).unlink()
    name, reason = fail(parts_folder)
    assert name == INDEX_FILE
    assert "neither model.safetensors nor the list of parts" in reason
