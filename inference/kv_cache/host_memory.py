"""Memory of the host that is taken from the system when written, and can be given back in part.

An allocator may keep what is freed; a mapping of its own is the system's again as soon as nobody
looks at it. Linux and macOS also take back single pages of it.
"""

import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor


class HostRegion:
    """Bytes that begin at a page and cost nothing until they are written.

    The memory is free again when the region and all views of `bytes` are gone.

    Attributes:
        bytes: All of it, uint8, (num_bytes,). What it holds before it is written is undefined.
    """

    def __init__(self, num_bytes: int) -> None:
        """Reserve memory.

        Args:
            num_bytes: May be 0.

        Raises:
            OSError: The system does not give that much.
        """
        self._mapping = _map(max(1, num_bytes))
        self.bytes = torch.frombuffer(self._mapping, dtype=torch.uint8)[:num_bytes]

    def discard(self, start: int, end: int) -> None:
        """Give the whole pages within [start, end) back, if the system can; their bytes are lost."""
        first, last = -(-start // mmap.PAGESIZE), end // mmap.PAGESIZE
        if first < last:
            _give_back(self._mapping, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)


class HostArena:
    """Slots of equal size in host memory. Different slots may be used from different threads."""

    def __init__(self, slot_bytes: int, num_slots: int) -> None:
        """Reserve the slots; memory is taken slot by slot, when one is first written.

        Args:
            slot_bytes: Size of each, at least 1.
            num_slots: May be 0.

        Raises:
            OSError: The system does not give that much.
        """
        self.slot_bytes = slot_bytes
        self.num_slots = num_slots
        self._stride = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._region: HostRegion | None = HostRegion(self._stride * num_slots)
        self._touched = bytearray(num_slots)

    def slot(self, index: int) -> Tensor:
        """The bytes of one slot, (slot_bytes,), uint8; counts as touched from here on.

        Raises:
            IndexError: There is no such slot, or the arena is closed.
        """
        if self._region is None or not 0 <= index < self.num_slots:
            raise IndexError(f"no slot {index} among {self.num_slots}, or closed")
        self._touched[index] = 1
        return self._region.bytes.narrow(0, index * self._stride, self.slot_bytes)

    def discard(self, slots: Sequence[int]) -> None:
        """Give the memory of slots back to the system where it can take it; they can be used again."""
        if self._region is None:
            return
        for first, count in runs_of([slot for slot in slots if self._touched[slot]]):
            self._touched[first : first + count] = bytes(count)
            self._region.discard(first * self._stride, (first + count) * self._stride)

    @property
    def touched_bytes(self) -> int:
        """Memory of the slots in use since they were last discarded."""
        return self._touched.count(1) * self.slot_bytes

    def close(self) -> None:
        """Give everything back, even if somebody still holds a slot; may be called again."""
        if self._region is not None:
            self._region.discard(0, self._stride * self.num_slots)
        self._touched = bytearray(self.num_slots)
        self._region = None


def runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive numbers as (first, count), in order."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


def _map(num_bytes: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, num_bytes)
    # Private: a shared mapping keeps its pages when they are given back.
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _give_back(mapping: mmap.mmap, start: int, length: int) -> None:
    if sys.platform == "darwin":
        mapping.madvise(mmap.MADV_FREE, start, length)  # there, DONTNEED frees nothing
    elif sys.platform != "win32":
        mapping.madvise(mmap.MADV_DONTNEED, start, length)
