import contextlib
import re
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats import gguf_values
from inference.formats.gguf import GgufFile
from tests.inference.gguf_files import (
    raw_array,
    raw_entry,
    raw_gguf,
    raw_string,
    raw_tensor,
    write_twin,
)
from tests.inference.tiny_models import make_module

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
ARCHITECTURE = raw_entry("general.architecture", STRING, raw_string("llama"))


def read_bytes(tmp_path: Path, data: bytes) -> GgufFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with GgufFile.read(path) as file:
        return file


def fail_reason(tmp_path: Path, data: bytes, kind: type[ModelFileError] = ModelFileError) -> str:
    with pytest.raises(kind) as caught:
        read_bytes(tmp_path, data)
    assert caught.value.path.name == "model.gguf"
    return caught.value.reason


@pytest.fixture(scope="session")
def twin_path(tmp_path_factory):
    return write_twin(make_module("llama"), tmp_path_factory.mktemp("twin") / "twin.gguf")


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
    assert read_bytes(tmp_path, raw_gguf(entries, [])).metadata == {
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
    file = read_bytes(tmp_path, raw_gguf([raw_entry("k", STRING, raw_string(b"a\xff"))], []))
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
    assert fail_reason(tmp_path, data) == reason


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
    assert words in fail_reason(tmp_path, data, UnsupportedModelError)


def test_read_split_file_is_unsupported(tmp_path):
    data = raw_gguf([raw_entry("split.count", 2, struct.pack("<H", 3))], [])
    assert "split into 3 files" in fail_reason(tmp_path, data, UnsupportedModelError)


HUGE = 2**60
HOSTILE = {
    "key of length 0": (raw_gguf([raw_entry("", BOOL, b"\1")], []), "key of metadata entry 0"),
    "key of length 2^60": (
        raw_gguf([raw_string("k", length=HUGE) + bytes(32)], []),
        "key of metadata entry 0, at byte 32: needs 1,152,921,504,606,846,976 bytes",
    ),
    "key longer than allowed": (
        raw_gguf([raw_entry("k" * 70_000, BOOL, b"\1")], []),
        "70,000 bytes long",
    ),
    "string of length 2^60": (
        raw_gguf([raw_entry("k", STRING, raw_string("x", length=HUGE))], []),
        "metadata 'k', at byte 45: needs 1,152,921,504,606,846,976 bytes",
    ),
    "string in array of length 2^60": (
        raw_gguf([raw_entry("k", ARRAY, raw_array(STRING, 1, raw_string("x", length=HUGE)))], []),
        "item 0 of metadata 'k'",
    ),
    "array of 2^60 items": (
        raw_gguf([raw_entry("k", ARRAY, raw_array(U32, HUGE, b""))], []),
        "an array of 1,152,921,504,606,846,976 items",
    ),
    "array of 2^64-1 bools": (
        raw_gguf([raw_entry("k", ARRAY, raw_array(BOOL, 2**64 - 1, b""))], []),
        "an array of 18,446,744,073,709,551,615 items",
    ),
    "array of 2^60 strings": (
        raw_gguf([raw_entry("k", ARRAY, raw_array(STRING, HUGE, b""))], []),
        "an array of 1,152,921,504,606,846,976 items",
    ),
    "arrays nested deeply": (
        raw_gguf([raw_entry("k", ARRAY, raw_array(ARRAY, 1, b"") * 200 + bytes(99))], []),
        "arrays are nested deeper than 3",
    ),
    "unknown value type": (raw_gguf([raw_entry("k", 13, bytes(8))], []), "unknown value type 13"),
    "unknown item type": (
        raw_gguf([raw_entry("k", ARRAY, raw_array(99, 1, bytes(8)))], []),
        "unknown value type 99",
    ),
    "key twice": (
        raw_gguf([raw_entry("k", BOOL, b"\1")] * 2, []),
        "'k', at byte 47: is there twice",
    ),
    "entries beyond the end": (
        raw_gguf([], [], num_entries=60_000),
        "a table for 60,000 entries, at byte 24: needs 780,000 bytes",
    ),
    "2^60 entries": (raw_gguf([], [], num_entries=HUGE), "at most 65,536 are possible"),
    "2^60 tensors": (raw_gguf([], [], num_tensors=HUGE), "at most 131,072 are possible"),
    "alignment 0": (
        raw_gguf([raw_entry("general.alignment", U32, bytes(4))], []),
        "'general.alignment', at byte 57: must be a power of two",
    ),
    "alignment 3": (
        raw_gguf([raw_entry("general.alignment", U32, struct.pack("<I", 3))], []),
        "must be a power of two up to 1,048,576, not 3",
    ),
    "alignment as text": (
        raw_gguf([raw_entry("general.alignment", STRING, raw_string("32"))], []),
        "must be a power of two",
    ),
    "tensor twice": (
        raw_gguf([], [raw_tensor("a", (1,))] * 2, bytes(4)),
        "tensor 'a', at byte 90: is there twice",
    ),
    "tensor without name": (raw_gguf([], [raw_tensor("", (1,))], bytes(4)), "name of tensor 0"),
    "tensor of 0 dimensions": (raw_gguf([], [raw_tensor("a", (), dims=0)]), "has 0 dimensions"),
    "tensor of 2^31 dimensions": (
        raw_gguf([], [raw_tensor("a", (1,), dims=2**31)]),
        "has 2,147,483,648 dimensions",
    ),
    "tensor with an empty side": (
        raw_gguf([], [raw_tensor("a", (4, 0))]),
        "has the shape 0 x 4, impossible",
    ),
    "tensor with a broken block": (
        raw_gguf([], [raw_tensor("a", (33, 2), type_id=2)], bytes(99)),
        "has the shape 2 x 33, impossible for type Q4_0",
    ),
    "tensor size overflowing 64 bits": (
        raw_gguf([], [raw_tensor("a", (2**33, 2**33))], bytes(99)),
        "The data of tensor 'a' should reach to byte 295,147,905,179,352,825,952, far behind the end",
    ),
    "tensor offset past the end": (
        raw_gguf([], [raw_tensor("a", (4,), offset=2**20)], bytes(99)),
        "The file ends after 163 of 1,048,656 bytes, inside or before tensor 'a'",
    ),
    "tensor offset 2^63": (
        raw_gguf([], [raw_tensor("a", (4,), offset=2**63)], bytes(99)),
        "far behind the end",
    ),
    "tensor offset not aligned": (
        raw_gguf([], [raw_tensor("a", (4,), offset=8)], bytes(99)),
        "its offset 8 is not a multiple of 32",
    ),
    "unknown weight type": (
        raw_gguf([], [raw_tensor("a", (32,), type_id=77)], bytes(99)),
        "Tensor 'a' has the weight type 77",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_read_hostile_file_fails_with_field_and_little_memory(tmp_path, name):
    data, words = HOSTILE[name]
    tracemalloc.start()
    try:
        reason = fail_reason(tmp_path, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words in reason
    assert peak < 2**20


def test_read_more_array_items_than_allowed_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_values, "MAX_ARRAY_ITEMS", 10)
    array = raw_array(BOOL, 6, bytes(6))
    data = raw_gguf([raw_entry("a", ARRAY, array), raw_entry("b", ARRAY, array)], [])
    assert "'b'" in fail_reason(tmp_path, data)


def test_read_file_cut_at_every_kib_fails_and_names_the_end(tmp_path, twin_path):
    whole = twin_path.read_bytes()
    assert len(whole) > 100 * 1024
    path = tmp_path / "cut.gguf"
    for size in range(0, len(whole), 1024):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError) as caught:
            GgufFile.read(path)
        assert re.search(r"\bends?\b|is empty", caught.value.reason), caught.value.reason


def test_read_starter_model_cut_in_its_tables_fails(tmp_path, starter_model_path):
    with starter_model_path.open("rb") as file:
        start = file.read(2 * 2**20)
    path = tmp_path / "cut.gguf"
    for size in range(1024, len(start), 64 * 1024):
        path.write_bytes(start[:size])
        with pytest.raises(ModelFileError, match="ends"):
            GgufFile.read(path)


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


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_read_file_with_changed_header_bytes_raises_only_model_file_error(
    tmp_path, twin_path, data
):
    changed = bytearray(twin_path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(4, 6000))
        value = data.draw(st.binary(min_size=1, max_size=8))
        changed[position : position + len(value)] = value
    path = tmp_path / "changed.gguf"
    path.write_bytes(changed)
    with contextlib.suppress(ModelFileError):
        GgufFile.read(path).close()
