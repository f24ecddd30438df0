"""Rows of the KV tensors on their way to the disk. One thread.

Where blocks lie on the host, the C++ kernels gather, check and write some files in one call, each between two steps if
possible. Each step back into the interpreter would take its lock from the thread that computes tokens, hundreds of
times in a turn: by that more was lost than by the writing.
"""

import os
import sys
import threading
from collections.abc import Sequence
from ctypes import c_int32

import torch

from inference.kernels.library import Kernels, load_kernels
from inference.kernels.structures import RowFile as FileStructure
from inference.kernels.structures import RowPlane
from inference.kv_cache.disk.format import SUM_BYTES
from inference.kv_cache.disk.row_source import RowFile
from inference.kv_cache.tensors import KvTensors

BLOCKS_AT_ONCE = 16
"""Written by one call of the kernels, one between two steps: what Python does for them takes a millisecond."""

MOST_BYTES_AT_ONCE = 2**23
"""Written by one call: whoever has it broken off waits for so many."""

BURST_BYTES = 2**20
"""Written by Python between two rests: to fall asleep and wake up costs a tenth of what writing a small block does."""


class KvRows:
    """A `RowSource` that spreads what it writes.

    Args:
        kv: The device blocks.
        kernels: What writes files; None takes those of this machine, if there are any.

    Attributes:
        num_at_once: How many blocks should come at a time.
        spread_s: The time for all files that come at a time, unless somebody is in a hurry.
    """

    def __init__(self, kv: KvTensors, kernels: Kernels | None = None) -> None:
        self.spread_s = 0.0
        self._kv = kv
        planes = kv.host_planes() if sys.platform != "win32" else ()
        self._planes = (RowPlane * len(planes))(*map(_as_structure, planes))
        self._kernels = (kernels or load_kernels()) if planes else None
        most_bytes = MOST_BYTES_AT_ONCE if self._kernels else BURST_BYTES
        self.num_at_once = min(BLOCKS_AT_ONCE, max(1, most_bytes // kv.block_bytes))
        # The same memory each time: a system that gives and takes it for every block stops the threads that
        # compute as often. It is given when it is first written to.
        self._buffer = torch.empty(kv.block_bytes + SUM_BYTES, dtype=torch.uint8)
        self._is_hurried = threading.Event()
        self._hurry_of_kernels = c_int32()

    def set_hurried(self, *, is_hurried: bool) -> None:
        """Say whether somebody waits for the files, or nothing is computed meanwhile. Any thread."""
        self._hurry_of_kernels.value = is_hurried
        if is_hurried:
            self._is_hurried.set()
        else:
            self._is_hurried.clear()

    def copy_out(self, block_id: int, start: int, end: int) -> memoryview:
        """See `RowSource`."""
        return self._kv.export_rows(block_id, start, end, out=self._buffer).numpy().data

    def write_files(self, files: Sequence[RowFile]) -> Sequence[bool]:
        """See `RowSource`."""
        if self._kernels is None:
            self._is_hurried.wait(self.spread_s)
            return [False] * len(files)
        structures = (FileStructure * len(files))(*map(self._as_structure, files))
        self._kernels.write_rows(
            self._planes,
            structures,
            self._buffer.data_ptr(),
            len(self._buffer),
            int(self.spread_s * 1e6),
            self._hurry_of_kernels,
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
