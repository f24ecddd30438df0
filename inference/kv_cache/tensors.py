"""The memory behind the KV blocks: two tensors per layer. Engine thread only.

A block is a number; where its slots lie is arithmetic on that number:

    slot = block_id * block_size + offset            (one token's place, the same in every layer)

    keys, values of a layer   (KH, N * P, D): for each head, consecutive blocks are one run of slots

The head comes first because a kernel reads one head at a time: with 3 heads of 64 at 1,024 tokens,
decode reads this order nearly twice as fast as (N * P, KH, D), and never slower with more heads.

The memory is reserved at load and touched only when a block is first written, so a large budget
costs nothing until a chat needs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """Shape of one token's keys (and values) in one layer.

    Attributes:
        num_kv_heads: KH.
        head_dim: D, the same for keys and values.
    """

    num_kv_heads: int
    head_dim: int


class KeyValues(NamedTuple):
    """Keys and values that belong together, of one shape."""

    keys: Tensor
    values: Tensor


class KvTensors:
    """Keys and values of all blocks.

    Attributes:
        block_size: P, slots per block.
        num_blocks: N.
        dtype: What a slot is stored as.
        block_bytes: Memory of one block over all layers, keys and values.
        layers: Per layer the slots of all blocks, (KH, N * P, D).
    """

    def __init__(
        self,
        geometry: Sequence[LayerGeometry],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.dtype = dtype
        self.block_bytes = block_size * bytes_per_token(geometry, dtype)
        self.layers = [
            _reserve(layer, num_blocks * block_size, dtype, device) for layer in geometry
        ]
        self._touched = bytearray(num_blocks)
        self._num_touched = 0

    def write(self, layer: int, slots: Tensor, new: KeyValues) -> None:
        """Store new tokens.

        Args:
            layer: Index of the layer.
            slots: Where each token goes, (T,), int64.
            new: (1, KH, T, D), of this memory's type.
        """
        keys, values = self.layers[layer]
        keys.index_copy_(1, slots, new.keys[0])
        values.index_copy_(1, slots, new.values[0])

    def touch(self, block_ids: Sequence[int]) -> None:
        """Note that these blocks are written to, for `touched_bytes`."""
        for block_id in block_ids:
            if not self._touched[block_id]:
                self._touched[block_id] = 1
                self._num_touched += 1

    @property
    def touched_bytes(self) -> int:
        """Memory of all blocks that have ever been written: what the process really holds."""
        return self._num_touched * self.block_bytes


def bytes_per_token(geometry: Sequence[LayerGeometry], dtype: torch.dtype) -> int:
    """Memory of one slot over all layers, keys and values."""
    elements = sum(layer.num_kv_heads * layer.head_dim for layer in geometry)
    return 2 * elements * dtype.itemsize


def _reserve(
    layer: LayerGeometry, num_slots: int, dtype: torch.dtype, device: torch.device
) -> KeyValues:
    shape = (layer.num_kv_heads, num_slots, layer.head_dim)
    return KeyValues(
        torch.empty(shape, dtype=dtype, device=device),
        torch.empty(shape, dtype=dtype, device=device),
    )
