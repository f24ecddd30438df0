"""Packs the matrices of a model for our CPU kernels, straight from the mapped file. Thread of the load.

Rows are handed over where they lie in the file, in the order that the model wants them; only the packed
form stays, and the system takes the file's pages back tensor by tensor.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from inference.formats.weight_file import StoredTensor, WeightFile
from inference.kernels.library import ALIGNMENT, Kernels
from inference.kernels.structures import Matrix, MatrixType
from inference.model.decoder_weights import DecoderWeights, read_weight
from inference.model.progress import LoadReporter
from inference.model.spec import WeightKey
from inference.model.spec_weights import WeightSource

Bytes = npt.NDArray[np.uint8]

_PIECE_ROWS = 2048  # of one matrix that a thread packs at a time


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
    return sum(
        kernels.packed_bytes(
            MatrixType[tensors[source.tensor_name].type_name],
            source.num_rows,
            source.tensor_shape[1],
        )
        for source in map(weights.sources.__getitem__, weights.matrix_keys)
    )


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
        if len(sources[key].tensor_shape) == 1
    }
    matrices: dict[WeightKey, PackedMatrix] = {}
    done, total = 0, sum(sources[key].num_elements for key in matrix_keys)
    with ThreadPoolExecutor(num_threads, thread_name_prefix="pack") as pool:
        for key in matrix_keys:
            reporter.begin_item(done, sources[key].num_elements, total)
            matrices[key] = _packed(weights.file, sources[key], kernels, pool)
            weights.file.release(sources[key].tensor_name)
            done += sources[key].num_elements
            reporter.advance(done, total)
    if weights.spec.is_head_tied:
        matrices[WeightKey("head")] = matrices[WeightKey("embedding")]
    return PackedWeights(matrices, vectors)


def _packed(
    file: WeightFile, source: WeightSource, kernels: Kernels, pool: ThreadPoolExecutor
) -> PackedMatrix:
    kind = MatrixType[file.tensors[source.tensor_name].type_name]
    N, K = source.num_rows, source.tensor_shape[1]
    stored = file.tensor_data(source.tensor_name).numpy().reshape(source.tensor_shape[0], -1)
    data = aligned_bytes(kernels.packed_bytes(kind, N, K))
    matrix = Matrix(kind, N, K, 0, data.ctypes.data)
    order = source.rows
    piece = -(-_PIECE_ROWS // kernels.panel_rows) * kernels.panel_rows

    def pack(first: int) -> None:
        rows = np.asarray(order[first : first + piece], dtype=np.int64)
        addresses = stored.ctypes.data + rows * stored.shape[1]
        kernels.pack(matrix, first, addresses.tolist())

    for _ in pool.map(pack, range(0, N, piece)):
        pass  # it raises what went wrong
    return PackedMatrix(matrix, data)


def aligned_bytes(size: int) -> Bytes:
    """So many bytes that begin where the kernels want it."""
    whole = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + size]
