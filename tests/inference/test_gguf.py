import struct

import pytest
import torch

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.gguf import GgufFile
from tests.inference.gguf_files import (
    raw_array,
    raw_entry,
    raw_failure,
    raw_gguf,
    raw_string,
    raw_tensor,
    read_raw,
)

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
ARCHITECTURE = raw_entry("general.architecture", STRING, raw_string("llama"))


def test_read_all_value_types_gives_python_values(tmp_path):
    entries = [
        raw_entry("u8", 0, b"\xff"),
        raw_entry("i8", 1, b"\xff"),
        raw_entry("u16", 2, b"\xfe\xff"),
        raw_entry("i16", 3, b"\xfe\xff"),
        raw_entry("u32", U32, b"\xff" * 4),
        raw_entry("i32", 5, b"\xff" * 4),
        raw_entry("f32", F32, struct.pack("<f", 0.5)),
        raw_entry("bool", BOOL, b"\x01"),
        raw_entry("text", STRING, raw_string("grün \N{GRINNING FACE}")),
        raw_entry("u64", 10, b"\xff" * 8),
        raw_entry("i64", 11, b"\xff" * 8),
        raw_entry("f64", 12, struct.pack("<d", -0.25)),
        raw_entry("words", ARRAY, raw_array(STRING, 2, raw_string("a") + raw_string(""))),
        raw_entry("bools", ARRAY, raw_array(BOOL, 3, b"\x00\x01\x02")),
        raw_entry("ints", ARRAY, raw_array(3, 2, struct.pack("<2h", -1, 2))),
        raw_entry("none", ARRAY, raw_array(U32, 0, b"")),
        raw_entry("nested", ARRAY, raw_array(ARRAY, 1, raw_array(0, 2, b"\x01\x02"))),
    ]
    assert read_raw(tmp_path, raw_gguf(entries, [])).metadata == {
        "u8": 255,
        "i8": -1,
        "u16": 65534,
        "i16": -2,
        "u32": 2**32 - 1,
        "i32": -1,
        "f32": 0.5,
        "bool": True,
        "text": "grün \N{GRINNING FACE}",
        "u64": 2**64 - 1,
        "i64": -1,
        "f64": -0.25,
        "words": ["a", ""],
        "bools": [False, True, True],
        "ints": [-1, 2],
        "none": [],
        "nested": [[1, 2]],
    }


def test_read_string_that_is_not_utf8_gets_replacement_characters(tmp_path):
    file = read_raw(tmp_path, raw_gguf([raw_entry("k", STRING, raw_string(b"a\xff"))], []))
    assert file.metadata == {"k": "a\ufffd"}


@pytest.mark.parametrize("version", [2, 3])
def test_read_tensor_gives_shape_rows_first_and_mapped_bytes(tmp_path, version):
    tensors = [
        raw_tensor("a", (2, 3), offset=0),
        raw_tensor("b", (32, 1), type_id=8, offset=32),
    ]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw_gguf([ARCHITECTURE], tensors, bytes(range(32 + 34)), version=version))
    with GgufFile.read(path) as file:
        a, b = file.tensors["a"], file.tensors["b"]
        assert (a.shape, a.type_name, a.num_bytes, a.num_elements) == ((3, 2), "F32", 24, 6)
        assert (b.shape, b.type_name, b.num_bytes, b.offset - a.offset) == ((1, 32), "Q8_0", 34, 32)
        assert file.tensor_data("b").tolist() == list(range(32, 66))


def test_read_alignment_of_file_is_used(tmp_path):
    entries = [raw_entry("general.alignment", U32, struct.pack("<I", 1))]
    table = raw_gguf(entries, [raw_tensor("a", (1,), offset=3)])
    path = tmp_path / "model.gguf"
    path.write_bytes(table.rstrip(b"\0")[:-1] + struct.pack("<Q", 3) + b"xyz" + b"\1\2\3\4")
    with GgufFile.read(path) as file:
        assert file.tensor_data("a").tolist() == [1, 2, 3, 4]


def test_close_while_tensor_lives_keeps_its_bytes(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(raw_gguf([], [raw_tensor("a", (1,))], b"\1\2\3\4"))
    file = GgufFile.read(path)
    data = file.tensor_data("a")
    file.close()
    file.close()
    assert data.tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="closed"):
        file.tensor_data("a")


def test_release_tensor_can_be_read_again(tmp_path):
    path = tmp_path / "model.gguf"
    content = bytes(range(256)) * 256
    path.write_bytes(raw_gguf([], [raw_tensor("a", (len(content) // 4,))], content))
    with GgufFile.read(path) as file:
        before = file.tensor_data("a")
        first_sum = int(before.sum())
        file.release("a")
        assert int(before.sum()) == first_sum
        assert bytes(file.tensor_data("a").numpy()) == content


def test_fingerprint_of_equal_files_is_equal_and_changes_with_any_part(tmp_path):
    def fingerprint(entry: bytes, data: bytes, name: str) -> bytes:
        path = tmp_path / name
        path.write_bytes(raw_gguf([entry], [raw_tensor("a", (300,))], data))
        with GgufFile.read(path) as file:
            return file.fingerprint()

    zeros = bytes(1200)
    entry = raw_entry("k", BOOL, b"\x00")
    first = fingerprint(entry, zeros, "a.gguf")
    assert len(first) == 32
    assert fingerprint(entry, zeros, "b.gguf") == first
    assert fingerprint(raw_entry("k", BOOL, b"\x01"), zeros, "c.gguf") != first
    for position in (0, 600, 1199):
        changed = bytes(position) + b"\1" + bytes(1199 - position)
        assert fingerprint(entry, changed, "d.gguf") != first


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "The file is empty (0 bytes)."),
        (b"GG", "The file ends after 2 bytes."),
        (b"<!DOCTYPE html><html>", "This is a web page (HTML), not a model file."),
        (b"\n <HTML lang=en>", "This is a web page (HTML), not a model file."),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "This is a git-lfs pointer, a small text file in place of the model.",
        ),
        (b"PK\x03\x04rest", "This is a ZIP archive, not a model file."),
        (b"ggml0123", "This is not a GGUF file: it starts with 67 67 6d 6c."),
        (bytes(64), "The file starts with zeros only."),
    ],
)
def test_read_foreign_file_says_what_it_is(tmp_path, data, reason):
    assert raw_failure(tmp_path, data) == reason


def test_read_missing_file_and_folder_say_so(tmp_path):
    with pytest.raises(ModelFileError, match=r"absent\.gguf: The file cannot be read: No such"):
        GgufFile.read(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="The file cannot be read"):
        GgufFile.read(tmp_path)


@pytest.mark.parametrize(
    ("version", "words"),
    [(1, "has GGUF version 1;"), (4, "has GGUF version 4;"), (3 << 24, "big-endian byte order;")],
)
def test_read_other_version_is_unsupported(tmp_path, version, words):
    data = raw_gguf([ARCHITECTURE], [], version=version)
    assert words in raw_failure(tmp_path, data, UnsupportedModelError)


def test_read_split_file_is_unsupported(tmp_path):
    data = raw_gguf([raw_entry("split.count", 2, struct.pack("<H", 3))], [])
    assert "split into 3 files" in raw_failure(tmp_path, data, UnsupportedModelError)


def test_read_starter_model_gives_its_metadata_and_tensors(starter_model_path):
    with GgufFile.read(starter_model_path) as file:
        assert file.metadata["general.architecture"] == "llama"
        assert len(file.tensors) == 272
        tokens = file.metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        assert (len(tokens), tokens[1]) == (49152, "<|im_start|>")
        embedding = file.tensors["token_embd.weight"]
        assert (embedding.shape, embedding.type_name) == ((49152, 576), "Q8_0")
        assert file.tensor_data("token_embd.weight").dtype == torch.uint8
