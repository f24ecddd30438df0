"""Weights of layers that do not fit on the device: kept on the host, brought over layer by layer.

Two buffers on the device take turns. While one layer computes from its buffer, the next layer's weights
fill the other; behind the last layer come those that the next step begins with. Engine thread only.

    compute    | layer 5 (buffer 0) | layer 6 (buffer 1) | layer 7 (buffer 0) | ...
    side              layer 6 ->  1  |   layer 7 -> 0     |   layer 8 -> 1
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from inference.kv_cache.host_copies import pinned_bytes
from inference.kv_cache.side_stream import SideStream, beside

NUM_BUFFERS = 2
_ALIGNMENT = 256  # bytes, as the allocator of a CUDA device aligns
# Pinned memory is taken in powers of two: in one piece, a layer could take twice its size of RAM.
_PIECE_BYTES = 16 * 2**20

T = TypeVar("T")


class _Place(NamedTuple):
    """Where a tensor lies in its layer's bytes."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype


class HostLayer:
    """The weights of one layer on the host, as one run of bytes.

    Attributes:
        num_bytes: Of all of it, gaps for the alignment included.
    """

    def __init__(self, tensors: Sequence[Tensor], *, is_pinned: bool) -> None:
        """Copy tensors to the host.

        Args:
            tensors: On any device.
            is_pinned: Whether the memory is to be one that can be copied from while others work; needs
                CUDA. What cannot be pinned is ordinary memory, and slower.
        """
        self._places: list[_Place] = []
        end = 0
        for tensor in tensors:
            self._places.append(_Place(end, tensor.shape, tensor.dtype))
            end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.num_bytes = end
        self._pieces: list[Tensor] = []
        for start in range(0, end, _PIECE_BYTES):
            size = min(_PIECE_BYTES, end - start)
            pinned = pinned_bytes(size) if is_pinned else None
            is_pinned = pinned is not None  # where one piece was refused, the next would be
            self._pieces.append(torch.empty(size, dtype=torch.uint8) if pinned is None else pinned)
        for place, tensor in zip(self._places, tensors, strict=True):
            self._fill(place.offset, tensor.contiguous().view(-1).view(torch.uint8))

    def _fill(self, offset: int, values: Tensor) -> None:
        done = 0
        while done < values.numel():
            piece, start = divmod(offset + done, _PIECE_BYTES)
            count = min(values.numel() - done, _PIECE_BYTES - start)
            self._pieces[piece].narrow(0, start, count).copy_(values.narrow(0, done, count))
            done += count

    def copy_to(self, buffer: Tensor) -> None:
        """Begin to copy all of it into the first bytes of a buffer, uint8."""
        start = 0
        for piece in self._pieces:
            buffer.narrow(0, start, piece.numel()).copy_(piece, non_blocking=True)
            start += piece.numel()

    def views(self, buffer: Tensor) -> list[Tensor]:
        """The tensors, as they lie in a buffer that the layer was copied to."""
        return [
            buffer.narrow(0, place.offset, prod(place.shape) * place.dtype.itemsize)
            .view(place.dtype)
            .view(place.shape)
            for place in self._places
        ]


class LayerStream:
    """Brings weights of layers over in time.

    Attributes:
        num_bytes: Memory of the buffers on the device.
        host_bytes: Memory of the weights on the host.
    """

    def __init__(
        self,
        layers: Mapping[int, HostLayer],
        device: torch.device,
        side: SideStream | None = None,
    ) -> None:
        """Reserve the buffers. Nothing is brought over yet.

        Args:
            layers: What is on the host, by the index of the layer; at least one.
            device: Where it is wanted.
            side: What copies; None makes one.
        """
        self._layers = dict(sorted(layers.items()))
        self._side = side or beside(device)
        largest = max(layer.num_bytes for layer in layers.values())
        self._buffers = [
            torch.empty(largest, dtype=torch.uint8, device=device)
            for _ in range(min(NUM_BUFFERS, len(layers)))
        ]
        for buffer in self._buffers:
            self._side.keep(buffer)
        self.num_bytes = largest * len(self._buffers)
        self.host_bytes = sum(layer.num_bytes for layer in layers.values())
        order = list(self._layers)
        turns = [order[first :: len(self._buffers)] for first in range(len(self._buffers))]
        self._buffer_of = {index: number for number, turn in enumerate(turns) for index in turn}
        self._next = {
            index: turn[(place + 1) % len(turn)]
            for turn in turns
            for place, index in enumerate(turn)
        }
        self._held: list[int | None] = [None] * len(self._buffers)
        self._marks: list[torch.cuda.Event | None] = [None] * len(self._buffers)

    def views(self, index: int) -> list[Tensor]:
        """One layer's tensors on the device; they hold its weights while `over` gives that layer."""
        return self._layers[index].views(self._buffers[self._buffer_of[index]])

    def over(self, layers: Sequence[T]) -> "StreamedLayers[T]":
        """All layers of a model, to be gone through in order in each step."""
        return StreamedLayers(layers, self)

    def arrive(self, index: int) -> None:
        """Have the compute stream wait for the weights of a layer, if they are on the host."""
        if index not in self._layers:
            return
        number = self._buffer_of[index]
        if self._held[number] != index:  # at the start, or after a step that failed
            self._fetch(index)
        self._side.hold_compute(self._marks[number])

    def leave(self, index: int) -> None:
        """Give a layer's buffer to the next one; all that computes with it was begun."""
        if index in self._layers and self._next[index] != index:
            self._fetch(self._next[index])

    def _fetch(self, index: int) -> None:
        number = self._buffer_of[index]
        self._held[number] = None  # should the copy fail
        with torch.inference_mode(), self._side.after_compute():
            self._layers[index].copy_to(self._buffers[number])
        self._marks[number] = self._side.mark()
        self._held[number] = index


class StreamedLayers(Generic[T]):
    """Layers whose weights are there while one goes through them."""

    def __init__(self, layers: Sequence[T], stream: LayerStream) -> None:
        self._layers = layers
        self._stream = stream

    def __iter__(self) -> Iterator[T]:
        for index, layer in enumerate(self._layers):
            self._stream.arrive(index)
            yield layer
            self._stream.leave(index)
