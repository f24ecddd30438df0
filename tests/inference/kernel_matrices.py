"""Packed matrices of random blocks, and what their products should be."""

import ctypes
import sys
import weakref
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from inference.formats.gguf_types import TENSOR_TYPES_BY_NAME
from inference.kernels.library import ALIGNMENT, Kernels, Team
from inference.kernels.structures import Matrix, MatrixType

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

QUANTISED = [
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "MXFP4",
    "IQ4_NL",
    "IQ4_XS",
]
FLOATS = ["F32", "F16", "BF16"]
# Where the fp16 scales lie in each block; the rest of a block may hold any byte.
SCALE_OFFSETS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": [], "IQ4_NL": [0], "IQ4_XS": [0],
}  # fmt: skip
ORDINARY = (0.0123, -0.5, 1.0, 0.037)


def block_columns(type_name: str) -> int:
    return TENSOR_TYPES_BY_NAME[type_name].block_elements


def random_rows(
    type_name: str,
    num_rows: int,
    num_columns: int,
    scales: tuple[float, ...] = ORDINARY,
    seed: int = 0,
) -> Bytes:
    """Rows as in a file, (num_rows, bytes), with any codes and the given scales."""
    rng = np.random.default_rng(seed)
    if type_name in FLOATS:
        values = rng.standard_normal((num_rows, num_columns)).astype(np.float32)
        if type_name == "F16":
            return values.astype(np.float16).view(np.uint8)
        if type_name == "BF16":
            return np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
        return values.view(np.uint8)
    kind = TENSOR_TYPES_BY_NAME[type_name]
    blocks = num_rows * num_columns // kind.block_elements
    data = rng.integers(0, 256, (blocks, kind.block_bytes), dtype=np.uint8)
    for start in SCALE_OFFSETS[type_name]:
        values = rng.choice(np.array(scales, dtype=np.float16), blocks)
        data[:, start : start + 2] = values[:, None].view(np.uint8)
    if type_name == "MXFP4":  # scales are exponents; there is no 0
        exponents = np.floor(np.log2(np.maximum(np.abs(np.array(scales)), 2.0**-128))) + 128
        data[:, 0] = rng.choice(exponents.astype(np.uint8), blocks)
    return data.reshape(num_rows, -1)


def dequantised(type_name: str, rows: Bytes) -> Floats:
    """The weights by the gguf package, which is no part of ours."""
    result: Floats = gguf.quants.dequantize(rows, GGMLQuantizationType[type_name])
    return result.reshape(rows.shape[0], -1).astype(np.float32)


@dataclass
class Packed:
    """A matrix in the kernels' layout; `memory` holds what `matrix` points to."""

    matrix: Matrix
    memory: Bytes


def aligned(num_bytes: int) -> Bytes:
    """Memory on a multiple of `ALIGNMENT`, with an odd filling that must not matter.

    Where the system can, nothing is allocated behind it: so that a sanitizer sees who reads on.
    """
    found: Bytes
    if sys.platform == "win32":
        memory = np.empty(num_bytes + ALIGNMENT, dtype=np.uint8)
        skip = -memory.ctypes.data % ALIGNMENT
        found = memory[skip : skip + num_bytes]
    else:
        libc, address = ctypes.CDLL(None), ctypes.c_void_p()
        if libc.posix_memalign(ctypes.byref(address), ALIGNMENT, ctypes.c_size_t(num_bytes)):
            raise MemoryError
        buffer = (ctypes.c_uint8 * num_bytes).from_address(address.value or 0)
        weakref.finalize(buffer, libc.free, address)
        found = np.ctypeslib.as_array(buffer)
    found[:] = 0xA5
    return found


def pack(kernels: Kernels, type_name: str, rows: Bytes, num_columns: int) -> Packed:
    kind = MatrixType[type_name]
    memory = aligned(kernels.packed_bytes(kind, len(rows), num_columns))
    matrix = Matrix(kind, len(rows), num_columns, 0, memory.ctypes.data)
    addresses = [rows[i].ctypes.data for i in range(len(rows))]
    kernels.pack(matrix, 0, addresses)
    return Packed(matrix, memory)


def multiply(kernels: Kernels, team: Team, packed: Packed, x: Floats) -> Floats:
    """x (M, K) times the matrix: (M, N)."""
    M = len(x)
    y = np.full((M, packed.matrix.num_rows), np.nan, dtype=np.float32)
    kernels.matmul(
        team, packed.matrix, x.ctypes.data, M, x.strides[0] // 4, y.ctypes.data, y.shape[1]
    )
    return y


def rounded_inputs(x: Floats) -> Doubles:
    """x as the kernels see it: 8 bits per 32 numbers, here as exact float64 products."""
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(largest < 1e-30, np.float32(0), np.float32(127) / largest)
    codes = np.rint(blocks * inverse)
    scales = np.where(largest < 1e-30, np.float32(0), largest / np.float32(127))
    products: Doubles = codes.astype(np.float64) * scales
    return products.reshape(x.shape)
