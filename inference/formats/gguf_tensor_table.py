"""Reads the tensor table of a GGUF file and checks where each tensor's data lies. Pure Python."""

from pathlib import Path

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.byte_cursor import DAMAGED_HINT, INCOMPLETE_HINT, ByteCursor
from inference.formats.gguf_types import TENSOR_TYPES, GgufTensor
from inference.formats.gguf_values import MAX_KEY_BYTES

MAX_DIMENSIONS = 4


def read_tensor_table(
    cursor: ByteCursor, num_tensors: int, alignment: int, path: Path
) -> dict[str, GgufTensor]:
    """Read the table at the cursor and place the tensors in the file.

    Raises:
        ModelFileError: An entry is not sound, or the data would lie outside the file.
        UnsupportedModelError: A weight type is not known.
    """
    tensors: dict[str, GgufTensor] = {}
    for index in range(num_tensors):
        tensor = _read_tensor(cursor, index, alignment, path)
        if tensor.name in tensors:
            raise cursor.fail(f"tensor {tensor.name!r:.60}", "is there twice")
        tensors[tensor.name] = tensor
    data_start = -(-cursor.position // alignment) * alignment
    end = data_start
    for name, tensor in tensors.items():
        placed = GgufTensor(
            name, tensor.shape, tensor.type_name, data_start + tensor.offset, tensor.num_bytes
        )
        tensors[name] = placed
        end = max(end, placed.offset + placed.num_bytes)
    if tensors and end > cursor.size:
        raise _ends_early(tensors, end, cursor.size, path)
    return tensors


def _ends_early(tensors: dict[str, GgufTensor], end: int, size: int, path: Path) -> ModelFileError:
    name = next(n for n, t in tensors.items() if t.offset + t.num_bytes > size)
    reach = tensors[name].offset + tensors[name].num_bytes
    if reach > 2**50:
        return ModelFileError(
            path,
            f"The data of tensor {name!r:.60} should reach to byte {reach:,}, far behind the end of the "
            f"file ({size:,} bytes).",
            hint=DAMAGED_HINT,
        )
    return ModelFileError(
        path,
        f"The file ends after {size:,} of {end:,} bytes, inside or before tensor {name!r:.60} of type "
        f"{tensors[name].type_name}.",
        hint=INCOMPLETE_HINT,
    )


def _read_tensor(cursor: ByteCursor, index: int, alignment: int, path: Path) -> GgufTensor:
    """Read one entry of the table; its offset still counts from the start of the data."""
    name = cursor.string(f"name of tensor {index}", max_bytes=MAX_KEY_BYTES)
    field = f"tensor {name!r:.60}"
    if not name:
        raise cursor.fail(f"name of tensor {index}", "is empty")
    num_dimensions = cursor.u32(f"number of dimensions of {field}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.fail(field, f"has {num_dimensions:,} dimensions; 1 to {MAX_DIMENSIONS} may be")
    sizes = [cursor.u64(f"shape of {field}") for _ in range(num_dimensions)]
    type_id = cursor.u32(f"type of {field}")
    offset = cursor.u64(f"offset of {field}")
    kind = TENSOR_TYPES.get(type_id)
    if kind is None:
        raise UnsupportedModelError(
            path, f"Tensor {name!r:.60} has the weight type {type_id}, which Quire does not know.",
            hint="Choose a file in another quantization, such as Q4_K_M or Q8_0.",
        )  # fmt: skip
    num_elements = 1
    for size in sizes:
        num_elements *= size
    if num_elements == 0 or sizes[0] % kind.block_elements:
        shape = " x ".join(f"{size:,}" for size in reversed(sizes))
        raise cursor.fail(field, f"has the shape {shape}, impossible for type {kind.name}")
    if offset % alignment:
        raise cursor.fail(field, f"its offset {offset:,} is not a multiple of {alignment}")
    num_bytes = num_elements // kind.block_elements * kind.block_bytes
    return GgufTensor(name, tuple(reversed(sizes)), kind.name, offset, num_bytes)
