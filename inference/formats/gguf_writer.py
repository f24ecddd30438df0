"""Writes tensors as a GGUF file, version 3. Any thread."""

import math
import struct
from collections.abc import Mapping
from typing import BinaryIO

from torch import Tensor

from inference.formats.gguf_types import TENSOR_TYPES, TENSOR_TYPES_BY_NAME
from inference.formats.weight_file import StoredTensor

ALIGNMENT = 32
_STRING = 8
_TYPE_IDS = {kind.name: number for number, kind in TENSOR_TYPES.items()}


def stored_bytes(tensor: StoredTensor) -> int:
    """Length of a tensor's data in a GGUF file."""
    kind = TENSOR_TYPES_BY_NAME[tensor.type_name]
    return math.prod(tensor.shape) // kind.block_elements * kind.block_bytes


def header_bytes(tensors: Mapping[str, StoredTensor], metadata: Mapping[str, str]) -> bytes:
    """All that stands before the data of the tensors, which follow in this order, each aligned."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), struct.pack("<I", _STRING), _string(value)]
    offset = 0
    for name, tensor in tensors.items():
        sizes = tensor.shape[::-1]
        parts += [
            _string(name),
            struct.pack(
                f"<I{len(sizes)}QIQ", len(sizes), *sizes, _TYPE_IDS[tensor.type_name], offset
            ),
        ]
        offset += _aligned(stored_bytes(tensor))
    header = b"".join(parts)
    return header.ljust(_aligned(len(header)), b"\0")


def write_data(file: BinaryIO, data: Tensor) -> None:
    """Write one tensor's data, (num_bytes,) uint8, at the file's place, and fill up to the next one's.

    Raises:
        OSError: It cannot be written.
    """
    file.write(data.numpy().data)
    file.write(bytes(_aligned(len(data)) - len(data)))


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
