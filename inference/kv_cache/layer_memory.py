"""The memory of one layer, as attention reads and writes it. Engine thread only."""

from typing import NamedTuple

import torch
from torch import Tensor

from inference.kv_cache.schemes import KvScheme, LayerGeometry, Workspace, hadamard


class KeyValues(NamedTuple):
    """Keys and values that belong together, of one shape."""

    keys: Tensor
    values: Tensor


class Rotation(NamedTuple):
    """How keys and values of a layer are turned before they are stored.

    Attributes:
        to_stored: Keys and values times this are stored, (D, D), float32.
        to_query: Queries times this fit stored keys, and results times this are upright again.
    """

    to_stored: Tensor
    to_query: Tensor


class LayerMemory:
    """One layer's slots of all blocks, as attention reads them.

    Attributes:
        geometry: KH and D.
        planes: What is stored, (R, N * P, X) each; see `Plane`.
        rotation: How it is turned; None if it is stored upright.
    """

    def __init__(
        self,
        geometry: LayerGeometry,
        scheme: KvScheme,
        planes: tuple[Tensor, ...],
        *,
        rotation: Rotation | None,
        workspace: Workspace,
    ) -> None:
        self.geometry = geometry
        self.planes = planes
        self.rotation = rotation
        self._scheme = scheme
        self._workspace = workspace

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.planes[0].device

    def can_view(self, dtype: torch.dtype) -> bool:
        """Whether a run of slots can be read in this type where it lies."""
        return self._scheme.view_dtype == dtype

    def view(self, first_slot: int, num_slots: int) -> KeyValues:
        """A run of slots where it lies, (KH, S, D); only if `can_view`."""
        return self._split(self.planes[0].narrow(1, first_slot, num_slots))

    def pages(self, block_size: int) -> KeyValues:
        """All blocks where they lie, (N, P, KH, D) with D contiguous; only if `can_view`."""
        plane = self.planes[0]
        blocks = plane.view(plane.shape[0], -1, block_size, plane.shape[2]).permute(1, 2, 0, 3)
        KH = self.geometry.num_kv_heads
        return KeyValues(blocks[:, :, :KH], blocks[:, :, KH:])

    def read_run(self, first_slot: int, num_slots: int, out: Tensor) -> None:
        """Read slots that follow each other into `out`, (2 * KH, S, D) of the wanted type."""
        rows = [plane.narrow(1, first_slot, num_slots) for plane in self.planes]
        self._scheme.decode(rows, out, self._workspace)

    def read_slots(self, slots: Tensor, out: Tensor) -> None:
        """Read any slots, (S,), int64, into `out`, (2 * KH, S, D) of the wanted type."""
        if self.can_view(out.dtype):
            torch.index_select(self.planes[0], 1, slots, out=out)
            return
        rows = []
        for index, plane in enumerate(self.planes):
            shape = (plane.shape[0], slots.shape[0], plane.shape[2])
            gathered = self._workspace.take(f"gathered {index}", shape, plane.dtype, plane)
            rows.append(torch.index_select(plane, 1, slots, out=gathered))
        self._scheme.decode(rows, out, self._workspace)

    def write(self, slots: Tensor, new: KeyValues) -> KeyValues:
        """See `KvTensors.write`."""
        both = torch.cat(new, dim=1)[0]
        if self.rotation is not None:
            both = both @ self.rotation.to_stored.to(both.dtype)
        rows = self._scheme.encode(both)
        for plane, row in zip(self.planes, rows, strict=True):
            plane.index_copy_(1, slots, row)
        if self.can_view(both.dtype):
            return new
        self._scheme.decode(rows, both, self._workspace)
        return KeyValues(*both.view(2, *new.keys.shape).unbind())

    def _split(self, both: Tensor) -> KeyValues:
        KH = self.geometry.num_kv_heads
        return KeyValues(both[:KH], both[KH:])


def rotation_of(scheme: KvScheme, head_dim: int, device: torch.device) -> Rotation | None:
    """How a scheme turns heads of this size; None if it stores them upright."""
    factors = scheme.rotation_factors(head_dim)
    if factors is None:
        return None
    return Rotation(*(hadamard(head_dim, factor=factor, device=device) for factor in factors))
