"""Copies of rows between blocks and memory of the host, as is best for a device. Any thread.

    CPU      numpy, on the calling thread alone
    CUDA     through pinned memory, on a stream of the calling thread, while the device computes
    others   as torch does it

All tensors are uint8, sources and targets of the same shapes. Copies are done when a method returns, but
for `within`, which a device does in the order of what the calling thread has it compute.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from inference.kv_cache.side_stream import CudaSideStream, SideStream

logger = logging.getLogger(__name__)


class HostCopies(Protocol):
    """Copies rows."""

    def within(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """From blocks to blocks."""

    def to_host(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """From blocks to the host."""

    def to_device(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """From the host to blocks."""


class CpuCopies:
    """Where blocks lie on the host."""

    def within(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """See `HostCopies`."""
        # numpy copies on this thread alone and without the interpreter lock. torch would start a team
        # of threads for each thread that calls it, beside those that compute.
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target.numpy(), source.numpy())

    to_host = within
    to_device = within


class DirectCopies:
    """Where torch copies by itself."""

    def within(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """See `HostCopies`."""
        with torch.inference_mode():  # which may write into tensors made with or without it
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)

    to_host = within
    to_device = within


class StagedCopies:
    """Through pinned memory: rows are gathered on the device, so that each copy is one run of bytes.

    Args:
        device: Where the blocks are.
        num_bytes: The most that is copied at a time.
        make_side: Makes the stream of a thread.
        is_pinned: Whether memory of the host is pinned; needs CUDA.
    """

    def __init__(
        self,
        device: torch.device,
        num_bytes: int,
        make_side: Callable[[], SideStream],
        *,
        is_pinned: bool = True,
    ) -> None:
        self._device = device
        self._num_bytes = num_bytes
        self._make_side = make_side
        self._is_pinned = is_pinned
        self._threads = threading.local()
        self._direct = DirectCopies()

    def prepare(self) -> None:
        """Take now what the calling thread copies through, and not when a block must make room.

        Raises:
            torch.OutOfMemoryError: The device does not give it.
        """
        self._stage()

    def within(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """See `HostCopies`."""
        self._direct.within(targets, sources)

    def to_host(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """See `HostCopies`."""
        stage = self._stage()
        size = sum(target.numel() for target in targets)
        with torch.inference_mode(), stage.side.after_compute():
            gathered, pinned = stage.on_device[:size], stage.on_host[:size]
            for part, source in zip(_parts(gathered, sources), sources, strict=True):
                part.copy_(source)
            pinned.copy_(gathered, non_blocking=True)
        stage.side.synchronize()
        for target, part in zip(targets, _parts(pinned, targets), strict=True):
            np.copyto(target.numpy(), part.numpy())

    def to_device(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """See `HostCopies`."""
        stage = self._stage()
        size = sum(source.numel() for source in sources)
        gathered, pinned = stage.on_device[:size], stage.on_host[:size]
        for part, source in zip(_parts(pinned, sources), sources, strict=True):
            np.copyto(part.numpy(), source.numpy())
        with torch.inference_mode(), stage.side.after_compute():
            gathered.copy_(pinned, non_blocking=True)
            for target, part in zip(targets, _parts(gathered, targets), strict=True):
                target.copy_(part)
        stage.side.synchronize()

    def _stage(self) -> "_Stage":
        stage: _Stage | None = getattr(self._threads, "stage", None)
        if stage is None:
            side = self._make_side()
            stage = _Stage(side, self._device, self._num_bytes, is_pinned=self._is_pinned)
            self._threads.stage = stage
        return stage


class _Stage:
    """What one thread copies through."""

    def __init__(
        self, side: SideStream, device: torch.device, num_bytes: int, *, is_pinned: bool
    ) -> None:
        self.side = side
        pinned = pinned_bytes(num_bytes) if is_pinned else None
        self.on_host = torch.empty(num_bytes, dtype=torch.uint8) if pinned is None else pinned
        self.on_device = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        side.keep(self.on_device)


def pinned_bytes(num_bytes: int) -> Tensor | None:
    """Memory that a device copies from while it computes, (num_bytes,), uint8; None if none is given.

    Systems pin a part of their memory only, Windows about half of it. Copies from other memory are right
    too, and slower.
    """
    try:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        logger.warning("no %d MB of memory could be pinned: %s", num_bytes // 2**20, error)
        return None


def find_copies(device: torch.device, num_bytes: int) -> HostCopies:
    """The way of a device.

    Args:
        device: Where the blocks are; the calling thread computes there, on the stream that is current.
        num_bytes: The most that is copied between it and the host at a time.

    Raises:
        torch.OutOfMemoryError: The device has no room for what the calling thread copies through.
    """
    if device.type == "cpu":
        return CpuCopies()
    if device.type != "cuda":
        return DirectCopies()
    compute = torch.cuda.current_stream(device)
    copies = StagedCopies(device, num_bytes, lambda: CudaSideStream(compute))
    copies.prepare()
    return copies


def _parts(run: Tensor, shapes: Sequence[Tensor]) -> list[Tensor]:
    """One run of bytes, cut into parts that are shaped as others are."""
    sizes = [each.numel() for each in shapes]
    return [
        part.view(each.shape) for part, each in zip(torch.split(run, sizes), shapes, strict=True)
    ]
