"""Packs the matrices of a model for our CPU kernels, straight from the mapped file. Thread of the load.

Rows are handed over where they lie in the file, in the order that the model wants them; only the packed
form stays, and the system takes the file's pages back tensor by tensor.
"""

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import c_void_p
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from inference.formats.weight_file import StoredTensor, WeightFile
from inference.kernels.library import ALIGNMENT, Kernels
from inference.kernels.structures import Matrix, MatrixType
from inference.model.decoder_weights import DecoderWeights, read_weight
from inference.model.memory_ahead import take
from inference.model.progress import LoadReporter
from inference.model.spec import WeightKey
from inference.model.spec_weights import WeightSource

Bytes = npt.NDArray[np.uint8]

_PIECE_ROWS = 512  # of one matrix that a thread packs at a time
_PIECES_AHEAD = 4  # of each thread


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


def packed_bytes(
    weights: DecoderWeights, tensors: Mapping[str, StoredTensor], kernels: Kernels
) -> int:
    """Memory of all matrices once they are packed.

    Args:
        weights: Which there are.
        tensors: Of which types they are, by name.
        kernels: Who will compute with them.
    """
    return sum(_sizes(weights, tensors, kernels).values())


def _sizes(
    weights: DecoderWeights, tensors: Mapping[str, StoredTensor], kernels: Kernels
) -> dict[WeightKey, int]:
    """Bytes of each packed matrix; each may begin where the one before it ends."""
    sources = {key: weights.sources[key] for key in weights.matrix_keys}
    return {
        key: _aligned(
            kernels.packed_bytes(
                MatrixType[tensors[source.tensor_name].type_name],
                source.num_rows,
                source.num_columns,
            )
        )
        for key, source in sources.items()
    }


def pack_weights(
    weights: DecoderWeights, kernels: Kernels, *, num_threads: int, reporter: LoadReporter
) -> PackedWeights:
    """Pack all matrices and read all vectors.

    Args:
        weights: What to read; all matrices are of types that the kernels know.
        kernels: Who will compute with it.
        num_threads: How many pack at a time.
        reporter: Told how far it is.
    """
    sources, matrix_keys = weights.sources, weights.matrix_keys
    vectors = {
        key: read_weight(weights, key, torch.float32).numpy()
        for key in weights.stored_keys
        if not sources[key].is_matrix
    }
    matrices: dict[WeightKey, PackedMatrix] = {}
    memory = _divided(_sizes(weights, weights.file.tensors, kernels))
    begun, total = 0, sum(sources[key].num_elements for key in matrix_keys)
    with ThreadPoolExecutor(num_threads, thread_name_prefix="pack") as pool:
        packing = _Packing(weights.file, kernels, pool, reporter, total)
        for key in matrix_keys:
            packing.wait_until_fewer(_PIECES_AHEAD * num_threads)
            reporter.begin_item(begun, sources[key].num_elements, total)
            matrices[key] = packing.begin(sources[key], memory[key])
            begun += sources[key].num_elements
        packing.wait_until_fewer(1)
    if weights.spec.is_head_tied:
        matrices[WeightKey("head")] = matrices[WeightKey("embedding")]
    return PackedWeights(matrices, vectors)


class _Packing:
    """Matrices that threads pack now; the next is begun before the last is done, as most are small."""

    def __init__(
        self,
        file: WeightFile,
        kernels: Kernels,
        pool: ThreadPoolExecutor,
        reporter: LoadReporter,
        total: int,
    ) -> None:
        self._file = file
        self._kernels = kernels
        self._pool = pool
        self._reporter = reporter
        self._under_way: deque[tuple[WeightSource, list[Future[None]]]] = deque()
        self._num_pieces = 0  # of all that are under way
        self._done, self._total = 0, total  # elements

    def begin(self, source: WeightSource, data: Bytes) -> PackedMatrix:
        """Let the threads pack a matrix into its memory."""
        kind = MatrixType[self._file.tensors[source.tensor_name].type_name]
        N, K = source.num_rows, source.num_columns
        stored = self._file.tensor_data(source.tensor_name).numpy()
        stored = stored.reshape(source.num_stored_rows, -1)
        matrix = Matrix(kind, N, K, 0, data.ctypes.data)
        addresses = stored.ctypes.data + stored.shape[1] * np.asarray(source.rows, dtype=np.intp)
        size = -(-_PIECE_ROWS // self._kernels.panel_rows) * self._kernels.panel_rows

        def pack(first: int, stored: Bytes = stored) -> None:  # the rows must stay until then
            part = addresses[first : first + size]
            self._kernels.pack(matrix, first, (c_void_p * len(part)).from_address(part.ctypes.data))

        pieces = [self._pool.submit(pack, first) for first in range(0, N, size)]
        self._under_way.append((source, pieces))
        self._num_pieces += len(pieces)
        return PackedMatrix(matrix, data)

    def wait_until_fewer(self, num_pieces: int) -> None:
        """Wait for the oldest matrices until fewer pieces than so many are under way."""
        while self._num_pieces >= num_pieces:
            source, pieces = self._under_way.popleft()
            for piece in pieces:
                piece.result()  # it raises what went wrong
            self._num_pieces -= len(pieces)
            self._file.release(source.tensor_name)
            self._done += source.num_elements
            self._reporter.advance(self._done, self._total)


def _divided(sizes: Mapping[WeightKey, int]) -> dict[WeightKey, Bytes]:
    """Memory for each matrix, in one piece: Linux backs it by large pages, sooner had and read."""
    num_bytes = sum(sizes.values()) + ALIGNMENT
    pages = take(num_bytes)
    if pages is None:
        whole = np.empty(num_bytes, dtype=np.uint8)
    else:
        whole = np.frombuffer(pages, dtype=np.uint8)
    end = -whole.ctypes.data % ALIGNMENT
    parts = {}
    for key, size in sizes.items():
        parts[key] = whole[end : end + size]
        end += size
    return parts


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
