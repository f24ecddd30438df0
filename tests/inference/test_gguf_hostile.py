import contextlib
import re
import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.errors import ModelFileError
from inference.formats import gguf_values
from inference.formats.gguf import GgufFile
from tests.inference.gguf_files import (
    raw_array,
    raw_entry,
    raw_failure,
    raw_gguf,
    raw_string,
    raw_tensor,
    write_twin,
)
from tests.inference.tiny_models import make_module

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
ARCHITECTURE = raw_entry("general.architecture", STRING, raw_string("llama"))


@pytest.fixture(scope="session")
def twin_path(tmp_path_factory):
    return write_twin(make_module("llama"), tmp_path_factory.mktemp("twin") / "twin.gguf")


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
        "an array of 1,152,921,504,606,846,976 items, at byte",
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
    "tensor with a broken block of a rare type": (
        raw_gguf([], [raw_tensor("a", (384, 2), type_id=23)], bytes(999)),
        "tensor 'a', at byte 65: has the shape 2 x 384, impossible for type IQ4_XS",
    ),
    "tensor that is cut": (
        raw_gguf([], [raw_tensor("a", (512, 2), type_id=21)], bytes(439)),
        "The file ends after 535 of 536 bytes, inside or before tensor 'a' of type IQ3_S",
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
        reason = raw_failure(tmp_path, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words in reason
    assert peak < 2**20


@pytest.mark.parametrize(
    "data",
    [
        raw_gguf([raw_string(chr(0xFFFD) * 500) + struct.pack("<I", 99) + bytes(9)], []),
        raw_gguf([raw_entry("k" * 60_000, BOOL, b"\1")] * 2, []),
        raw_gguf([], [raw_tensor("t" * 60_000, (32,), type_id=77)], bytes(99)),
    ],
    ids=["key of other bytes", "key twice", "tensor"],
)
def test_long_name_in_a_damaged_file_is_quoted_in_part(tmp_path, data):
    assert 60 < len(raw_failure(tmp_path, data)) < 150


def test_read_more_array_items_than_allowed_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_values, "MAX_ARRAY_ITEMS", 10)
    array = raw_array(BOOL, 6, bytes(6))
    data = raw_gguf([raw_entry("a", ARRAY, array), raw_entry("b", ARRAY, array)], [])
    assert "'b'" in raw_failure(tmp_path, data)


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
