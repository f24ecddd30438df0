"""Reads the metadata entries of a GGUF file: keys, numbers, strings, arrays. Pure Python."""

import struct

from inference.formats.byte_cursor import ByteCursor
from inference.formats.gguf_types import GgufValue

MAX_ARRAY_ITEMS = 2**23  # all arrays together; the largest vocabularies need under 2^20
MAX_ARRAY_DEPTH = 3
MAX_KEY_BYTES = 2**16 - 1  # the specification's limit
MAX_STRING_BYTES = 2**26

_TYPE_BOOL, _TYPE_STRING, _TYPE_ARRAY = 7, 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}


class MetadataReader:
    """Reads the metadata; counts array items over the whole file, so that memory is bounded."""

    def __init__(self, cursor: ByteCursor) -> None:
        self._cursor = cursor
        self._items_left = MAX_ARRAY_ITEMS

    def read_all(self, num_entries: int) -> dict[str, GgufValue]:
        """Read all entries, which start at the cursor.

        Raises:
            ModelFileError: Names the key and where it lies.
        """
        metadata: dict[str, GgufValue] = {}
        cursor = self._cursor
        for index in range(num_entries):
            label = f"key of metadata entry {index}"
            key = cursor.string(label, max_bytes=MAX_KEY_BYTES)
            if not key:
                raise cursor.fail(label, "is empty")
            if key in metadata:
                raise cursor.fail(f"metadata {key!r:.60}", "is there twice")
            type_id = cursor.u32(f"type of {key!r:.60}")
            metadata[key] = self._read_value(type_id, f"metadata {key!r:.60}", depth=0)
        return metadata

    def _read_value(self, type_id: int, field: str, *, depth: int) -> GgufValue:
        if type_id == _TYPE_STRING:
            return self._cursor.string(field, max_bytes=MAX_STRING_BYTES)
        if type_id == _TYPE_ARRAY:
            return self._read_array(field, depth=depth + 1)
        if type_id == _TYPE_BOOL:
            return self._cursor.raw(1, field) != b"\0"
        return self._read_numbers(type_id, 1, field)[0]

    def _read_array(self, field: str, *, depth: int) -> list[GgufValue]:
        cursor = self._cursor
        if depth > MAX_ARRAY_DEPTH:
            raise cursor.fail(field, f"arrays are nested deeper than {MAX_ARRAY_DEPTH}")
        type_id = cursor.u32(f"item type of {field}")
        count = cursor.u64(f"length of {field}")
        cursor.need(count, f"{field}, an array of {count:,} items")
        if count > self._items_left:
            raise cursor.fail(field, f"has {count:,} items; more than {MAX_ARRAY_ITEMS:,} in all")
        self._items_left -= count
        if type_id == _TYPE_STRING:
            return list[GgufValue](cursor.strings(count, field))
        if type_id == _TYPE_BOOL:
            return [value != 0 for value in cursor.raw(count, field)]
        if type_id == _TYPE_ARRAY:
            return [self._read_array(field, depth=depth + 1) for _ in range(count)]
        return self._read_numbers(type_id, count, field)

    def _read_numbers(self, type_id: int, count: int, field: str) -> list[GgufValue]:
        code = _NUMBERS.get(type_id)
        if code is None:
            raise self._cursor.fail(field, f"has the unknown value type {type_id}")
        raw = self._cursor.raw(count * struct.calcsize(f"<{code}"), field)
        return list(struct.unpack(f"<{count}{code}", raw))
