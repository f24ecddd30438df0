"""Rows of the KV tensors on their way to the disk. One thread.

Where blocks lie on the host, the C++ kernels gather, check and write some files in one call. Each step
back into the interpreter would take its lock from the thread that computes tokens, hundreds of times in a
turn: by that more was lost than by the writing.
"""

import os
import sys
from collections.abc import Sequence

import torch

from inference.kernels.library import Kernels, load_kernels
from inference.kernels.structures import RowFile as FileStructure
from inference.kernels.structures import RowPlane
from inference.kv_cache.disk.format import SUM_BYTES
from inference.kv_cache.disk.row_source import RowFile
from inference.kv_cache.tensors import KvTensors


class KvRows:
    """A `RowSource`.

    Args:
        kv: The device blocks.
        kernels: What writes files; None takes those of this machine, if there are any.

    Attributes:
        patience_s: How long files wait at most until the kernels end a step, as a core is free then.
    """

    def __init__(self, kv: KvTensors, kernels: Kernels | None = None) -> None:
        self.patience_s = 0.0
        self._kv = kv
        planes = kv.host_planes() if sys.platform != "win32" else ()
        self._planes = (RowPlane * len(planes))(*map(_as_structure, planes))
        self._kernels = (kernels or load_kernels()) if planes else None
        # The same memory each time: a system that gives and takes it for every block stops the threads that
        # compute as often. It is given when it is first written to.
        self._buffer = torch.empty(kv.block_bytes + SUM_BYTES, dtype=torch.uint8)

    @property
    def can_wait(self) -> bool:
        """Whether `patience_s` has a meaning: the kernels of this machine write the files."""
        return self._kernels is not None

    def copy_out(self, block_id: int, start: int, end: int) -> memoryview:
        """See `RowSource`."""
        return self._kv.export_rows(block_id, start, end, out=self._buffer).numpy().data

    def write_files(self, files: Sequence[RowFile]) -> Sequence[bool]:
        """See `RowSource`."""
        if self._kernels is None:
            return [False] * len(files)
        structures = (FileStructure * len(files))(*map(self._as_structure, files))
        self._kernels.write_rows(
            self._planes,
            structures,
            self._buffer.data_ptr(),
            len(self._buffer),
            longest_wait_us=int(self.patience_s * 1e6),
        )
        return [bool(structure.is_written) for structure in structures]

    def _as_structure(self, file: RowFile) -> FileStructure:
        return FileStructure(
            temporary=os.fsencode(file.temporary),
            path=os.fsencode(file.path),
            header=file.header,
            header_bytes=len(file.header),
            first_slot=file.block_id * self._kv.block_size + file.start,
            num_rows=file.end - file.start,
            used_ns=int(file.used * 1e9),
        )


def _as_structure(plane: torch.Tensor) -> RowPlane:
    num_layers, num_heads, num_slots, row_bytes = plane.shape
    return RowPlane(
        data=plane.data_ptr(),
        num_runs=num_layers * num_heads,
        num_slots=num_slots,
        row_bytes=row_bytes,
    )
