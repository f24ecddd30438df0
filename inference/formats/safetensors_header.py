"""Reads and checks the header of one safetensors file. Pure Python.

    length of the header u64 | header: JSON | data

    {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {...}}

Source: the format description of safetensors (huggingface/safetensors, README).
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.byte_cursor import DAMAGED_HINT, INCOMPLETE_HINT
from inference.formats.file_kind import describe_foreign_file
from inference.regular_file import open_regular

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_DIMENSIONS = 16
_TYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """Where one tensor lies.

    Attributes:
        shape: As in torch; () is one number.
        type_name: "F32", "BF16", ...
        offset: First byte, from the start of the file.
        num_bytes: Length.
    """

    shape: tuple[int, ...]
    type_name: str
    offset: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        """Count of weights."""
        return self.num_bytes // _TYPE_BYTES[self.type_name]


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What one file holds.

    Attributes:
        path: The file.
        size: Its length in bytes.
        data_start: First byte after the header.
        tensors: By name.
    """

    path: Path
    size: int
    data_start: int
    tensors: dict[str, SafetensorsTensor]


def read_header(path: Path) -> SafetensorsHeader:
    """Read the header of a file and check that all its tensors lie inside the file.

    Raises:
        ModelFileError: Names the file and what is wrong.
        UnsupportedModelError: A tensor has a type that is not known here.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(512)
            length = _header_length(path, start, size)
            file.seek(8)
            text = file.read(length)
    except OSError as error:
        raise ModelFileError(
            path, f"The file cannot be read: {error.strerror or error}."
        ) from error
    data_start = 8 + length
    tensors = {
        name: _check_tensor(path, name, entry, data_start, size)
        for name, entry in _parse(path, text).items()
        if name != "__metadata__"
    }
    _check_coverage(path, tensors, data_start, size)
    return SafetensorsHeader(path, size, data_start, tensors)


def _header_length(path: Path, start: bytes, size: int) -> int:
    foreign = describe_foreign_file(start, size)
    if foreign is not None:
        raise ModelFileError(path, foreign.reason, hint=foreign.hint)
    if size < 8:
        raise ModelFileError(path, f"The file ends after {size} bytes.", hint=INCOMPLETE_HINT)
    length = int.from_bytes(start[:8], "little")
    if length > MAX_HEADER_BYTES or (size > 8 and start[8:9] != b"{"):
        raise ModelFileError(
            path,
            f"This is not a safetensors file: it starts with {start[:8].hex(' ')}.",
            hint="Download the file again.",
        )
    if 8 + length > size:
        raise ModelFileError(
            path,
            f"The file ends after {size:,} bytes, inside its header of {length:,} bytes.",
            hint=INCOMPLETE_HINT,
        )
    return length


def _parse(path: Path, text: bytes) -> dict[str, object]:
    def refuse_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
        values = dict(pairs)
        if len(values) < len(pairs):
            raise ValueError("a name is there twice")
        return values

    try:
        # It starts with a brace, so it is an object or no JSON.
        header: dict[str, object] = json.loads(text, object_pairs_hook=refuse_twins)
    except (ValueError, RecursionError) as error:
        reason = str(error)[:100] or "nested too deeply"
        raise ModelFileError(
            path, f"The header is not valid JSON: {reason}.", hint=DAMAGED_HINT
        ) from error
    return header


def _check_tensor(
    path: Path, name: str, entry: object, data_start: int, size: int
) -> SafetensorsTensor:
    if not isinstance(entry, dict):
        raise _damaged(path, name, "has no description")
    type_name, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(type_name, str) or not _is_counts(shape) or not _is_counts(offsets):
        raise _damaged(path, name, "has no sound type, shape and offsets")
    if type_name not in _TYPE_BYTES:
        raise UnsupportedModelError(
            path, f"The tensor {name!r:.60} has the type {type_name[:20]!r}, which is not known.",
            hint="Choose another model.",
        )  # fmt: skip
    if len(offsets) != 2 or offsets[0] > offsets[1] or len(shape) > _MAX_DIMENSIONS:
        raise _damaged(path, name, "has impossible offsets")
    num_bytes = _TYPE_BYTES[type_name]
    for count in shape:
        num_bytes *= count
    if num_bytes != offsets[1] - offsets[0]:
        raise _damaged(
            path, name,
            f"has {offsets[1] - offsets[0]:,} bytes, but its shape needs {num_bytes:,}",
        )  # fmt: skip
    return SafetensorsTensor(tuple(shape), type_name, data_start + offsets[0], num_bytes)


def _check_coverage(
    path: Path, tensors: dict[str, SafetensorsTensor], data_start: int, size: int
) -> None:
    """Tensors follow each other without gap or overlap, and end where the file ends."""
    position = data_start
    for name, tensor in sorted(
        tensors.items(), key=lambda item: (item[1].offset, item[1].num_bytes)
    ):
        if tensor.offset != position:
            raise _damaged(path, name, "overlaps another one or leaves a gap before it")
        position += tensor.num_bytes
        if position > size:
            end = max(t.offset + t.num_bytes for t in tensors.values())
            raise ModelFileError(
                path,
                f"The file ends after {size:,} of {end:,} bytes, inside or before tensor "
                f"{name!r:.60}.",
                hint=INCOMPLETE_HINT,
            )
    if position < size:
        raise ModelFileError(
            path, f"{size - position:,} bytes follow after the last tensor.", hint=DAMAGED_HINT
        )


def _is_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value
    )


def _damaged(path: Path, name: str, problem: str) -> ModelFileError:
    return ModelFileError(path, f"The tensor {name!r:.60} {problem}.", hint=DAMAGED_HINT)
