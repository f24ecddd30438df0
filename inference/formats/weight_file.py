"""Files of weights, whatever their format: named tensors that are read where they lie. Any thread."""

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class StoredTensor(Protocol):
    """One tensor of a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first, as torch has it."""

    @property
    def type_name(self) -> str:
        """How its numbers are stored: "F32", "BF16", "Q4_K", ..."""


class WeightFile(Protocol):
    """An open file, or several that make one model."""

    @property
    def path(self) -> Path:
        """What errors about it name."""

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """All of its tensors, by name."""

    def tensor_data(self, name: str) -> Tensor:
        """Give the bytes of one tensor as they lie in the file, (num_bytes,) uint8, not to be changed."""

    def release(self, name: str) -> None:
        """Let the system take back the pages of one tensor; reading it again reads the file again."""


class _ReadOnlyBytes:
    """Hands bytes to torch, which warns about read-only arrays, as if they could be written.

    numpy keeps this object with the array, and this object keeps the buffer: the mapping cannot go
    under a living tensor. (torch.frombuffer would only hold the mapping's object.)
    """

    def __init__(self, view: npt.NDArray[np.uint8]) -> None:
        self._view = view
        interface = view.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def mapped_bytes(mapping: mmap.mmap, offset: int, num_bytes: int) -> Tensor:
    """Part of a mapped file.

    Returns:
        (num_bytes,) uint8 on the CPU, sharing memory with the file. NOTE: the mapping is read-only;
        writing to the tensor would end the process.
    """
    view = np.frombuffer(mapping, np.uint8, num_bytes, offset)
    return torch.from_numpy(np.asarray(_ReadOnlyBytes(view)))


def release_pages(mapping: mmap.mmap, offset: int, num_bytes: int) -> None:
    """Let the system take back the whole pages of a part. Does nothing on Windows.

    Keeps the peak of a load near the size of the finished weights.
    """
    page = mmap.PAGESIZE
    start = -(-offset // page) * page
    end = (offset + num_bytes) // page * page
    if end > start and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED, start, end - start)
