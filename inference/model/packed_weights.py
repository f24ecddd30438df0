"""Packs the matrices of a model for our CPU kernels, straight from the mapped file. Thread of the load.

Rows are handed over where they lie in the file, in the order that the model wants them; only the packed
form stays, and the system takes the file's pages back tensor by tensor. A type that the kernels do not
know is unpacked and rounded to Q8_0, in slices of rows.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from inference.errors import NotEnoughMemoryError
from inference.formats.dequantize import dequantize
from inference.formats.gguf_types import TENSOR_TYPES_BY_NAME
from inference.kernels.library import ALIGNMENT, Kernels
from inference.kernels.structures import Matrix, MatrixType
from inference.model.decoder_weights import DecoderWeights, read_weight
from inference.model.memory import free_bytes
from inference.model.progress import LoadReporter
from inference.model.spec import WeightKey

logger = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]

_PIECE_ROWS = 2048  # of one matrix that a thread packs at a time
_SHARE_FOR_WEIGHTS = 0.9  # of the free memory
_Q8_BLOCK = 32
_KNOWN = dict(MatrixType.__members__)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix as the kernels read it.

    Attributes:
        structure: Its type and sizes, and where `data` is.
        data: Its bytes; begins at a multiple of 64.
    """

    structure: Matrix
    data: Bytes


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """All weights of a model; a tied head is the embedding's matrix.

    Attributes:
        matrices: What is multiplied with.
        vectors: Norms and biases, float32.
    """

    matrices: dict[WeightKey, PackedMatrix]
    vectors: dict[WeightKey, npt.NDArray[np.float32]]

    @property
    def num_bytes(self) -> int:
        """Memory of all of it."""
        arrays = {id(matrix.data): matrix.data.nbytes for matrix in self.matrices.values()}
        return sum(arrays.values()) + sum(vector.nbytes for vector in self.vectors.values())


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one matrix in the file.

    Attributes:
        type_name: Of the tensor.
        kind: Of the packed matrix.
        row_bytes: Of the tensor.
        base: The tensor's bytes.
        order: For each row of the matrix its place in the tensor.
        num_columns: K.
    """

    type_name: str
    kind: MatrixType
    row_bytes: int
    base: Bytes
    order: Sequence[int]
    num_columns: int


def pack_weights(
    weights: DecoderWeights, kernels: Kernels, *, num_threads: int, reporter: LoadReporter
) -> PackedWeights:
    """Pack all matrices and read all vectors.

    Args:
        weights: What to read.
        kernels: Who will compute with it.
        num_threads: How many pack at a time.
        reporter: Told how far it is.

    Raises:
        NotEnoughMemoryError: They do not fit.
    """
    sources = weights.sources
    wanted = weights.stored_keys
    matrix_keys = [key for key in wanted if len(sources[key].tensor_shape) == 2]
    rows = {key: _rows_of(weights, key) for key in matrix_keys}
    _check_memory(rows, kernels)
    vectors = {
        key: read_weight(weights, key, torch.float32).numpy() for key in wanted if key not in rows
    }
    matrices: dict[WeightKey, PackedMatrix] = {}
    done, total = 0, sum(sources[key].num_elements for key in matrix_keys)
    with ThreadPoolExecutor(num_threads, thread_name_prefix="pack") as pool:
        for key in matrix_keys:
            matrices[key] = _packed(rows.pop(key), kernels, pool)
            weights.file.release(sources[key].tensor_name)
            done += sources[key].num_elements
            reporter.advance(done, total)
    if weights.spec.is_head_tied:
        matrices[WeightKey("head")] = matrices[WeightKey("embedding")]
    return PackedWeights(matrices, vectors)


def _rows_of(weights: DecoderWeights, key: WeightKey) -> _Rows:
    source = weights.sources[key]
    tensor = weights.file.tensors[source.tensor_name]
    num_columns = source.tensor_shape[1]
    packed = _KNOWN.get(tensor.type_name)
    if packed is None:
        packed = MatrixType.F32 if num_columns % _Q8_BLOCK else MatrixType.Q8_0
        logger.warning("%s: %s becomes %s", source.tensor_name, tensor.type_name, packed.name)
    kind = TENSOR_TYPES_BY_NAME[tensor.type_name]
    return _Rows(
        type_name=tensor.type_name,
        kind=packed,
        row_bytes=num_columns // kind.block_elements * kind.block_bytes,
        base=weights.file.tensor_data(source.tensor_name).numpy(),
        order=source.rows,
        num_columns=num_columns,
    )


def _check_memory(rows: dict[WeightKey, _Rows], kernels: Kernels) -> None:
    needed = sum(
        kernels.packed_bytes(each.kind, len(each.order), each.num_columns) for each in rows.values()
    )
    free = free_bytes("cpu")
    if needed > _SHARE_FOR_WEIGHTS * free:
        raise NotEnoughMemoryError(needed, free)


def _packed(rows: _Rows, kernels: Kernels, pool: ThreadPoolExecutor) -> PackedMatrix:
    num_rows = len(rows.order)
    data = aligned_bytes(kernels.packed_bytes(rows.kind, num_rows, rows.num_columns))
    matrix = Matrix(rows.kind, num_rows, rows.num_columns, 0, data.ctypes.data)
    piece = -(-_PIECE_ROWS // kernels.panel_rows) * kernels.panel_rows
    futures: list[Future[None]] = [
        pool.submit(_pack_piece, rows, matrix, first, min(first + piece, num_rows), kernels)
        for first in range(0, num_rows, piece)
    ]
    for future in futures:
        future.result()
    return PackedMatrix(matrix, data)


def _pack_piece(rows: _Rows, matrix: Matrix, first: int, end: int, kernels: Kernels) -> None:
    order = np.asarray(rows.order[first:end], dtype=np.int64)
    if rows.type_name == rows.kind.name:
        addresses = rows.base.ctypes.data + order * rows.row_bytes
        kernels.pack(matrix, first, addresses.tolist())
        return
    for low, converted in _converted(rows, order, kernels.panel_rows):
        address, row_bytes = converted.ctypes.data, converted.shape[1]
        addresses = address + np.arange(len(converted)) * row_bytes
        kernels.pack(matrix, first + low, addresses.tolist())


def _converted(rows: _Rows, order: npt.NDArray[np.int64], step: int) -> Iterator[tuple[int, Bytes]]:
    """Rows in another type, as a file would hold them: (first of them, (rows, bytes))."""
    table = rows.base.reshape(-1, rows.row_bytes)
    for low in range(0, len(order), step):
        part = np.ascontiguousarray(table[order[low : low + step]])
        shape = (part.shape[0], rows.num_columns)
        numbers = dequantize(
            torch.from_numpy(part.reshape(-1)), rows.type_name, shape, torch.float32
        ).numpy()
        is_float = rows.kind == MatrixType.F32
        yield low, numbers.view(np.uint8) if is_float else to_q8_0(numbers)


def to_q8_0(numbers: npt.NDArray[np.float32]) -> Bytes:
    """Round rows of floats, (N, K), to rows of Q8_0 blocks: a scale, fp16, and 32 codes each."""
    N = numbers.shape[0]
    blocks = numbers.reshape(N, -1, _Q8_BLOCK)
    scale = (np.abs(blocks).max(axis=2, keepdims=True) / 127.0).astype(np.float16)
    divisor = np.where(scale > 0, scale, 1).astype(np.float32)
    codes = np.clip(np.rint(blocks / divisor), -127, 127).astype(np.int8)
    packed = np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=2)
    return np.ascontiguousarray(packed.reshape(N, -1))


def aligned_bytes(size: int) -> Bytes:
    """So many bytes that begin where the kernels want it."""
    whole = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + size]
