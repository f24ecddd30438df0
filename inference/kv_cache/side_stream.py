"""Copies that go on while the device computes: an order of work beside the one that computes.

On CUDA that is a stream; elsewhere copies are done when they return, and there is nothing to wait for.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch


class SideStream(Protocol):
    """Work beside that of the compute stream. Each is used by one thread."""

    def after_compute(self) -> AbstractContextManager[object]:
        """What is begun within goes to this stream, behind all that the compute stream has so far."""

    def mark(self) -> torch.cuda.Event | None:
        """The end of what this stream has so far; None if that is done."""

    def hold_compute(self, mark: torch.cuda.Event | None) -> None:
        """Have the compute stream go on only when a mark of this stream is reached."""

    def keep(self, tensor: torch.Tensor) -> None:
        """Have a tensor's memory used again only when what this stream has by then is done."""

    def synchronize(self) -> None:
        """Wait until all that this stream has is done."""


class NoSideStream:
    """A `SideStream` where every copy is done at once."""

    def after_compute(self) -> AbstractContextManager[object]:
        """See `SideStream`."""
        return nullcontext()

    def mark(self) -> torch.cuda.Event | None:
        """See `SideStream`."""
        return None

    def hold_compute(self, mark: torch.cuda.Event | None) -> None:
        """See `SideStream`."""

    def keep(self, tensor: torch.Tensor) -> None:
        """See `SideStream`."""

    def synchronize(self) -> None:
        """See `SideStream`."""


class CudaSideStream:
    """A `SideStream` on a CUDA device.

    Args:
        compute: The stream that computes.
    """

    def __init__(self, compute: torch.cuda.Stream) -> None:
        self._compute = compute
        self._side = torch.cuda.Stream(device=compute.device)  # type: ignore[no-untyped-call]  # untyped in torch

    def after_compute(self) -> AbstractContextManager[object]:
        """See `SideStream`."""
        self._side.wait_stream(self._compute)
        context: AbstractContextManager[object] = torch.cuda.stream(self._side)
        return context

    def mark(self) -> torch.cuda.Event | None:
        """See `SideStream`."""
        event: torch.cuda.Event = self._side.record_event()
        return event

    def hold_compute(self, mark: torch.cuda.Event | None) -> None:
        """See `SideStream`."""
        if mark is not None:
            self._compute.wait_event(mark)

    def keep(self, tensor: torch.Tensor) -> None:
        """See `SideStream`."""
        tensor.record_stream(self._side)

    def synchronize(self) -> None:
        """See `SideStream`."""
        self._side.synchronize()


def beside(device: torch.device) -> SideStream:
    """A side stream of a device, beside what the calling thread computes there."""
    if device.type == "cuda":
        return CudaSideStream(torch.cuda.current_stream(device))
    return NoSideStream()
