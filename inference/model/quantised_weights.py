"""Rounds matrices to types that the kernels know while they are read. Thread of the load.

Floats are rounded if that is wished for; embedding and head keep eight bits even then. A type that the
kernels do not know becomes Q8_0. Norms and biases stay as they are.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from inference.formats.dequantize import dequantize
from inference.formats.gguf_types import TENSOR_TYPES_BY_NAME
from inference.formats.quantize import BLOCK, QUANTIZERS
from inference.formats.weight_file import StoredTensor, WeightFile
from inference.kernels.structures import MatrixType
from inference.model.decoder_weights import DecoderWeights
from inference.model.spec import Role

_FLOATS = ("F32", "F16", "BF16")
_SLICE_ELEMENTS = 2**15  # scratch stays in the cache, and torch's operators on one thread
_KEPT_BETTER = ("embedding", "head")
_BETTER = "Q8_0"
_KNOWN = frozenset(MatrixType.__members__)


@dataclass(frozen=True, slots=True)
class QuantisedTensor:
    """A `StoredTensor`."""

    shape: tuple[int, ...]
    type_name: str


def kernel_types(
    weights: DecoderWeights, type_name: str = "", known: Collection[str] | None = None
) -> dict[str, StoredTensor]:
    """The tensors that a model needs, by name, in the types that the kernels are to have.

    Args:
        weights: The model's.
        type_name: To what most matrices of floats are to be rounded; empty leaves them.
        known: Types that can be computed with; None for those of our kernels for the CPU.
    """
    if known is None:
        known = _KNOWN
    tensors: dict[str, StoredTensor] = {}
    for key in weights.stored_keys:
        name = weights.sources[key].tensor_name
        stored = weights.file.tensors[name]
        tensors[name] = QuantisedTensor(
            stored.shape, _kernel_type(stored, key.role, type_name, known)
        )
    return tensors


def _kernel_type(stored: StoredTensor, role: Role, type_name: str, known: Collection[str]) -> str:
    if len(stored.shape) != 2:
        return stored.type_name
    has_blocks = stored.shape[1] % BLOCK == 0
    if stored.type_name not in known:
        return _BETTER if has_blocks else "F32"
    if not type_name or not has_blocks or stored.type_name not in _FLOATS:
        return stored.type_name
    return _BETTER if role in _KEPT_BETTER else type_name


class QuantisedFile:
    """A file whose floats are rounded when they are asked for; a `WeightFile`.

    Attributes:
        path: Of the file.
        tensors: Those that the model needs.
    """

    def __init__(
        self, file: WeightFile, tensors: Mapping[str, StoredTensor], *, num_threads: int
    ) -> None:
        """Wrap an open file.

        Args:
            file: Has the same tensors, of the same shapes.
            tensors: In the types that are wished for.
            num_threads: How many round at a time.
        """
        self.path: Path = file.path
        self.tensors = tensors
        self._file = file
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="quantise")
        self._last: tuple[str, Tensor] | None = None

    def tensor_data(self, name: str) -> Tensor:
        """See `WeightFile`; what was asked for last is kept, since several weights may share a tensor."""
        tensor = self.tensors[name]
        if tensor.type_name == self._file.tensors[name].type_name:
            return self._file.tensor_data(name)
        if self._last is None or self._last[0] != name:
            self._last = None  # before the next one is made
            self._last = name, self._rounded(name, tensor)
            self._file.release(name)
        return self._last[1]

    def release(self, name: str) -> None:
        """See `WeightFile`."""
        self._file.release(name)

    def _rounded(self, name: str, tensor: StoredTensor) -> Tensor:
        N, K = tensor.shape
        type_name = self._file.tensors[name].type_name
        rows = self._file.tensor_data(name).view(N, -1)
        kind = TENSOR_TYPES_BY_NAME[tensor.type_name]
        result = np.empty((N, K // kind.block_elements * kind.block_bytes), dtype=np.uint8)
        step = max(1, _SLICE_ELEMENTS // K)

        def convert(first: int) -> None:
            part = rows[first : first + step]
            numbers = dequantize(part.reshape(-1), type_name, (len(part), K), torch.float32)
            result[first : first + step] = QUANTIZERS[tensor.type_name](numbers.numpy())

        for _ in self._pool.map(convert, range(0, N, step)):
            pass
        return torch.from_numpy(result).view(-1)

    def __enter__(self) -> "QuantisedFile":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._last = None
        self._pool.shutdown(cancel_futures=True)
