"""Memory for weights, had from the system while something else keeps one core busy. Any thread; no torch.

New pages are cleared before a program gets them, and on a virtual machine the host has to find them first:
a gigabyte can take longer than packing the weights that go there. To import torch takes as long, on
one core. So a thread touches the pages meanwhile, and what packs the weights finds them ready.

One memory is held at a most. What nobody takes is given back, and counts as free as long as it is held.
"""

import ctypes
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIECE_BYTES = 8 * 2**20
_lock = threading.Lock()
_held: "_Memory | None" = None


@contextmanager
def memory_ahead(num_bytes: int) -> Iterator[None]:
    """Let a thread make memory ready as long as this is entered; what is left of it at the end is given back.

    Args:
        num_bytes: How much may be wanted; 0 for none. Where the system cannot, none is made ready either.
    """
    global _held
    memory = _Memory.begin(num_bytes)
    with _lock:
        before, _held = _held, memory
    if before is not None:
        before.release()
    try:
        yield
    finally:
        with _lock:
            is_left = _held is memory
            if is_left:
                _held = None
        if is_left and memory is not None:
            memory.release()


def take(num_bytes: int) -> mmap.mmap | None:
    """Take over the memory that is held; its first pages are the ones that are ready.

    Returns:
        At least so many bytes, which go back to the system with the last reference to them; None if none is
        held, or too little: that is given back.
    """
    global _held
    with _lock:
        memory, _held = _held, None
    if memory is None:
        return None
    if len(memory.pages) < num_bytes:
        memory.release()
        return None
    memory.stop()
    memory.shorten(num_bytes)
    return memory.pages


def give_back() -> None:
    """Nobody will take the memory that is held."""
    global _held
    with _lock:
        memory, _held = _held, None
    if memory is not None:
        memory.release()


def held_bytes() -> int:
    """Memory that is ready and will be taken or given back, so that nobody need count it as used."""
    with _lock:
        return 0 if _held is None else _held.num_ready


class _Memory:
    """Pages of this process alone, and the thread that touches them.

    Attributes:
        pages: All of them.
        num_ready: Bytes at their beginning that the system has given.
    """

    def __init__(self, pages: mmap.mmap) -> None:
        self.pages = pages
        self.num_ready = 0
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._touch, name="memory-ahead", daemon=True)

    @classmethod
    def begin(cls, num_bytes: int) -> "_Memory | None":
        """Begin with so many bytes; None if that cannot be."""
        if num_bytes <= 0 or not hasattr(mmap, "MAP_PRIVATE"):
            return None
        try:
            pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError):
            return None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                pages.madvise(mmap.MADV_HUGEPAGE)
        memory = cls(pages)
        memory._thread.start()
        return memory

    def stop(self) -> None:
        """Touch no more; returns when that is so."""
        self._is_stopped.set()
        self._thread.join()

    def release(self) -> None:
        """Touch no more, and give all of it back now, whoever still knows of it."""
        self.stop()
        self.pages.close()

    def shorten(self, num_bytes: int) -> None:
        """Give back what was touched behind the first so many bytes."""
        first = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if first < self.num_ready and hasattr(mmap, "MADV_DONTNEED"):
            self.pages.madvise(mmap.MADV_DONTNEED, first, self.num_ready - first)
            self.num_ready = first

    def _touch(self) -> None:
        start = ctypes.c_char.from_buffer(self.pages)
        address = ctypes.addressof(start)
        while self.num_ready < len(self.pages) and not self._is_stopped.is_set():
            size = min(PIECE_BYTES, len(self.pages) - self.num_ready)
            ctypes.memset(address + self.num_ready, 0, size)  # without the interpreter's lock
            self.num_ready += size
