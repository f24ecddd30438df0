"""The memory behind the KV blocks, and the moving of rows in and out of it.

A block is a number; where its slots lie is arithmetic on that number:

    slot = block_id * block_size + offset            (one token's place, the same in every layer)

    a plane of a layer   (R, N * P, X): mostly keys' heads, then values'; for each of these rows,
                         consecutive blocks are one run of slots

The head comes first because a kernel reads one head at a time: with 3 heads of 64 at 1,024 tokens,
decode reads this order nearly twice as fast as (N * P, KH, D), and never slower with more heads.
Layers of equal shape lie behind each other in one tensor, so that moving a block is one copy per
plane and not one per layer.

The memory is reserved at load and touched only when a block is first written, so a large budget
costs nothing until a chat needs it.

Outside, n rows of a block are bytes: for each group of layers and each plane, in order, the
contiguous (L, R, n, X) of it.

Threads: the engine thread reads, writes and discards. `export_rows`, `import_rows` and `copy_rows` may
run on any thread, for blocks that nobody else writes meanwhile.
"""

import mmap
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.kv_cache.host_copies import find_copies
from inference.kv_cache.host_memory import HostRegion, runs_of
from inference.kv_cache.layer_memory import KeyValues, LayerMemory, rotation_of
from inference.kv_cache.schemes import (
    KvScheme,
    LayerGeometry,
    Plane,
    Workspace,
    bytes_per_token,
)


@dataclass(frozen=True, slots=True)
class _StoredPlane:
    """One plane of a group of layers.

    Attributes:
        numbers: (L, R, N * P, X).
        as_bytes: The same memory, (L, R, N * P, bytes of X numbers), uint8.
        region: What it lies in; None on other devices.
    """

    numbers: Tensor
    as_bytes: Tensor
    region: HostRegion | None


class KvTensors:
    """Keys and values of all blocks.

    Attributes:
        geometry: Shape of each layer.
        scheme: How they are stored.
        block_size: P, slots per block.
        num_blocks: N.
        bytes_per_token: Memory of one slot over all layers, keys and values.
        block_bytes: Memory of one block over all layers, keys and values.
        layers: Per layer the slots of all blocks.
        spare_slot: First slot of one more block, behind the others and in no table, for rows of a step
            that are there only to fill it; None without.
    """

    def __init__(
        self,
        geometry: Sequence[LayerGeometry],
        *,
        num_blocks: int,
        block_size: int,
        scheme: KvScheme,
        device: torch.device,
        has_spare: bool = False,
    ) -> None:
        """Reserve the memory.

        Args:
            geometry: Shape of each layer.
            num_blocks: N, at least 1.
            block_size: P.
            scheme: How to store.
            device: Where.
            has_spare: Whether there is a spare block.

        Raises:
            OSError: The system does not give that much.
            torch.OutOfMemoryError: The device does not.
        """
        self.geometry = tuple(geometry)
        self.scheme = scheme
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.bytes_per_token = bytes_per_token(geometry, scheme)
        self.block_bytes = block_size * self.bytes_per_token
        self.spare_slot = num_blocks * block_size if has_spare else None
        num_slots = (num_blocks + has_spare) * block_size
        self._copies = find_copies(device, self.block_bytes)
        self._touched = bytearray(num_blocks)
        self._touching = threading.Lock()
        self._planes: list[_StoredPlane] = []
        layers: dict[int, LayerMemory] = {}
        workspace = Workspace()
        for shape in dict.fromkeys(self.geometry):
            members = [index for index, layer in enumerate(self.geometry) if layer == shape]
            planes = [
                _reserve(plane, len(members), num_slots, device) for plane in scheme.planes(shape)
            ]
            rotation = rotation_of(scheme, shape.head_dim, device)
            for place, index in enumerate(members):
                layers[index] = LayerMemory(
                    shape,
                    scheme,
                    tuple(plane.numbers[place] for plane in planes),
                    rotation=rotation,
                    workspace=workspace,
                )
            self._planes += planes
        self.layers = [layers[index] for index in range(len(self.geometry))]

    def write(self, layer: int, slots: Tensor, new: KeyValues) -> KeyValues:
        """Store new tokens.

        Args:
            layer: Index of the layer.
            slots: Where each token goes, (T,), int64; their blocks are touched already.
            new: (1, KH, T, D), of the type that the model computes in.

        Returns:
            They, as a later step would read them, of the same shape and type: rounded, and rotated if
            the layer's memory is.
        """
        return self.layers[layer].write(slots, new)

    def copy_rows(self, source_block: int, target_block: int, num_rows: int) -> None:
        """Copy the first rows of one block into another, in all layers."""
        self.touch([target_block])
        source, target = source_block * self.block_size, target_block * self.block_size
        self._copies.within(self._rows(target, num_rows), self._rows(source, num_rows))

    def export_rows(self, block_id: int, start: int, end: int, out: Tensor | None = None) -> Tensor:
        """Copy rows of a block out.

        Args:
            block_id: The block.
            start: Its first row to copy.
            end: One past the last.
            out: Where to, uint8 on the CPU, at least (end - start) * bytes_per_token long.

        Returns:
            Just the bytes, 1-D, in `out` if that was given.
        """
        num_rows = end - start
        size = num_rows * self.bytes_per_token
        payload = torch.empty(size, dtype=torch.uint8) if out is None else out.narrow(0, 0, size)
        first = block_id * self.block_size + start
        self._copies.to_host(self._parts(payload, num_rows), self._rows(first, num_rows))
        return payload

    @property
    def row_layout(self) -> tuple[tuple[int, int], ...]:
        """How rows lie in what `export_rows` gives: per plane (L * R, bytes of X)."""
        shapes = (plane.as_bytes.shape for plane in self._planes)
        return tuple((layers * heads, row_bytes) for layers, heads, _, row_bytes in shapes)

    def host_planes(self) -> list[Tensor]:
        """The memory of all slots, per plane (L, R, slots, bytes of X), uint8; empty on other devices."""
        return [plane.as_bytes for plane in self._planes if plane.region is not None]

    def import_rows(
        self,
        block_id: int,
        start: int,
        payload: Tensor,
        *,
        payload_rows: int,
        skip: int,
        num_rows: int,
    ) -> None:
        """Copy rows into a block.

        Args:
            block_id: The block.
            start: Its first row to fill.
            payload: What `export_rows` gave for `payload_rows` rows; may be longer.
            payload_rows: Rows in the payload.
            skip: Rows of the payload to pass over.
            num_rows: Rows to copy.
        """
        self.touch([block_id])
        first = block_id * self.block_size + start
        parts = [part.narrow(2, skip, num_rows) for part in self._parts(payload, payload_rows)]
        self._copies.to_device(self._rows(first, num_rows), parts)

    def touch(self, block_ids: Sequence[int]) -> None:
        """Note that these blocks are written to. Any thread."""
        with self._touching:
            for block_id in block_ids:
                self._touched[block_id] = 1

    @property
    def touched_bytes(self) -> int:
        """Memory of all blocks written since they were last discarded: what the process holds."""
        return self._touched.count(1) * self.block_bytes

    def discard(self, block_ids: Sequence[int]) -> None:
        """Give the memory of free blocks back to the system, where it can take it.

        What they held is lost; they can be written again at once. Memory comes in pages, which may
        hold rows of several blocks: a page goes when the last of its blocks goes.
        """
        with self._touching:  # so that nobody begins to write into a neighbour meanwhile
            runs = runs_of([block_id for block_id in block_ids if self._touched[block_id]])
            for first, count in runs:
                self._touched[first : first + count] = bytes(count)
            for plane in self._planes:
                if plane.region is None:
                    continue
                L, heads, num_slots, row_bytes = plane.as_bytes.shape
                size = self.block_size * row_bytes
                for first, count in runs:
                    low, high = self._grown(first, count, -(-mmap.PAGESIZE // size))
                    for begin in range(0, L * heads * num_slots * row_bytes, num_slots * row_bytes):
                        plane.region.discard(begin + low * size, begin + high * size)

    def _grown(self, first: int, count: int, reach: int) -> tuple[int, int]:
        """A run of free blocks with the free neighbours that may share a page with it: [low, high)."""
        low, high = first, first + count
        while low > max(0, first - reach) and not self._touched[low - 1]:
            low -= 1
        while high < min(self.num_blocks, first + count + reach) and not self._touched[high]:
            high += 1
        return low, high

    def _rows(self, first_slot: int, num_rows: int) -> list[Tensor]:
        """The bytes of each plane in a run of slots, (L, R, num_rows, bytes of X)."""
        return [plane.as_bytes.narrow(2, first_slot, num_rows) for plane in self._planes]

    def _parts(self, payload: Tensor, num_rows: int) -> list[Tensor]:
        """The bytes of each plane in a payload, (L, R, num_rows, bytes of X)."""
        parts, used = [], 0
        for plane in self._planes:
            L, heads, _, row_bytes = plane.as_bytes.shape
            size = L * heads * num_rows * row_bytes
            parts.append(payload.narrow(0, used, size).view(L, heads, num_rows, row_bytes))
            used += size
        return parts


def _reserve(plane: Plane, num_layers: int, num_slots: int, device: torch.device) -> _StoredPlane:
    region = None
    size = num_layers * num_slots * plane.token_bytes
    if device.type == "cpu":
        region = HostRegion(size)
        raw = region.bytes
    else:
        raw = torch.empty(size, dtype=torch.uint8, device=device)
    shape = (num_layers, plane.rows, num_slots, -1)
    return _StoredPlane(raw.view(plane.dtype).view(shape), raw.view(shape), region)
