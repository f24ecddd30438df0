"""Captures work as CUDA graphs. Engine thread only."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from inference.model.graphs import Replay

_WARM_UPS = 2  # libraries set themselves up at a first call, which cannot be captured


class CudaCapture:
    """Captures into one memory pool, which all graphs share: they never run at the same time.

    Source: torch's notes on CUDA semantics, "CUDA Graphs".

    Attributes:
        has_failed: Whether a capture broke off in this process. torch keeps the memory of its pool for good
            then, and its allocator goes on as if something were captured: so nothing is captured after it.
    """

    has_failed: ClassVar[bool] = False

    def __init__(self, device: torch.device) -> None:
        """Make a stream and a pool on a device."""
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        """See `Capture`."""
        if CudaCapture.has_failed:
            raise RuntimeError("a capture broke off before")
        with torch.cuda.device(self._device):
            return self._captured(compute)

    def _captured(self, compute: Callable[[], Tensor]) -> Replay:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                compute()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # The loaders and the saver copy on streams of their own meanwhile: only what this thread does
            # counts.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                output = compute()
        except BaseException:
            torch.cuda.set_stream(current)  # torch leaves the other one on if a capture fails
            CudaCapture.has_failed = True
            raise

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


def cuda_capture(device: torch.device) -> CudaCapture | None:
    """What captures on a device; None where there are no CUDA graphs, or none any more."""
    if device.type != "cuda" or torch.version.hip is not None or CudaCapture.has_failed:
        return None
    return CudaCapture(device)
