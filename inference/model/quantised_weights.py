"""Brings matrices to types that the kernels know while they are read. Thread of the load.

Floats are rounded if that is wished for; embeddings and head keep eight bits even then, and routers of
floats stay as they are: a wrong choice of experts costs more than they take. A type that the kernels do
not know becomes the one that `repack` has for it, or Q8_0. Norms and biases stay as they are.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from inference.formats.block_writing import Bytes
from inference.formats.dequantize import dequantize
from inference.formats.gguf_types import TENSOR_TYPES_BY_NAME
from inference.formats.quantize import BLOCK, QUANTIZERS
from inference.formats.repack import REPACKERS
from inference.formats.weight_file import StoredTensor, WeightFile
from inference.kernels.structures import MatrixType
from inference.model.decoder_weights import DecoderWeights
from inference.model.progress import LoadReporter
from inference.model.spec import EMBEDDINGS, Role

FLOATS = ("F32", "F16", "BF16")
_SLICE_ELEMENTS = 2**15  # scratch stays in the cache, and torch's operators on one thread
_KEPT_BETTER = (*EMBEDDINGS, "head")
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


def changed_words(kinds: Iterable[tuple[str, str]]) -> str:
    """Say which types became others because nothing computes with them, for people; empty for none.

    Args:
        kinds: Each type in the file, and what it is kept as. Of those that our kernels know nothing is said:
            they were changed because that was wished for, or for a device, which says so itself.
    """
    changed: dict[str, list[str]] = {}
    for old, new in sorted(kinds):
        if old not in _KNOWN and old != new:
            changed.setdefault(old, []).append(new)
    return ", ".join(f"{old} weights kept as {' and '.join(new)}" for old, new in changed.items())


def _kernel_type(stored: StoredTensor, role: Role, type_name: str, known: Collection[str]) -> str:
    if len(stored.shape) == 1:
        return stored.type_name
    has_blocks = stored.shape[-1] % BLOCK == 0
    if stored.type_name not in known:
        return _nearest_type(stored, known) if has_blocks else "F32"
    if not type_name or not has_blocks or stored.type_name not in FLOATS or role == "router":
        return stored.type_name
    return _BETTER if role in _KEPT_BETTER else type_name


def _nearest_type(stored: StoredTensor, known: Collection[str]) -> str:
    """What a type becomes that nobody computes with."""
    if stored.type_name in REPACKERS:
        target, _ = REPACKERS[stored.type_name]
        if target in known and stored.shape[-1] % TENSOR_TYPES_BY_NAME[target].block_elements == 0:
            return target
    return _BETTER


def _change(stored: str, wished: str) -> Callable[[Tensor], Bytes]:
    """What makes rows of one type, (n, bytes of a row), those of another."""
    kind = TENSOR_TYPES_BY_NAME[stored]
    target, repack = REPACKERS.get(stored, ("", None))
    if repack is not None and target == wished:

        def by_scales(rows: Tensor) -> Bytes:
            return repack(rows.numpy().reshape(-1, kind.block_bytes)).reshape(len(rows), -1)

        return by_scales

    def by_rounding(rows: Tensor) -> Bytes:
        shape = (len(rows), rows.shape[1] // kind.block_bytes * kind.block_elements)
        numbers = dequantize(rows.reshape(-1), stored, shape, torch.float32)
        return QUANTIZERS[wished](numbers.numpy())

    return by_rounding


class QuantisedFile:
    """A file whose matrices are of other types when they are asked for; a `WeightFile`.

    Attributes:
        path: Of the file.
        tensors: Those that the model needs.
    """

    def __init__(
        self,
        file: WeightFile,
        tensors: Mapping[str, StoredTensor],
        *,
        num_threads: int,
        reporter: LoadReporter | None = None,
    ) -> None:
        """Wrap an open file.

        Args:
            file: Has the same tensors, of the same shapes.
            tensors: In the types that are wished for.
            num_threads: How many round at a time.
            reporter: Told how far it is with a tensor; may raise to break off.
        """
        self.path: Path = file.path
        self.tensors = tensors
        self._file = file
        self._reporter = reporter
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="quantise")
        self._last: tuple[str, Tensor] | None = None

    def tensor_data(self, name: str) -> Tensor:
        """See `WeightFile`; what was asked for last is kept, since several weights may share a tensor."""
        tensor = self.tensors[name]
        if tensor.type_name == self._file.tensors[name].type_name:
            return self._file.tensor_data(name)
        if self._last is None or self._last[0] != name:
            self._last = None  # before the next one is made; who packs it still may hold it
            self._last = name, self._rounded(name, tensor)
            self._file.release(name)
        return self._last[1]

    def release(self, name: str) -> None:
        """See `WeightFile`."""
        self._file.release(name)

    def _rounded(self, name: str, tensor: StoredTensor) -> Tensor:
        N, K = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        rows = self._file.tensor_data(name).view(N, -1)
        kind = TENSOR_TYPES_BY_NAME[tensor.type_name]
        result = np.empty((N, K // kind.block_elements * kind.block_bytes), dtype=np.uint8)
        change = _change(self._file.tensors[name].type_name, tensor.type_name)
        step = max(1, _SLICE_ELEMENTS // K)

        def convert(first: int) -> None:
            part = rows[first : first + step]
            with np.errstate(all="ignore"):  # scales of a damaged file may be anything
                result[first : first + step] = change(part)

        firsts = range(0, N, step)
        for done, _ in enumerate(self._pool.map(convert, firsts), start=1):
            if self._reporter is not None:
                self._reporter.advance_item(done, len(firsts))
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
