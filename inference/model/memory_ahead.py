"""Memory for a model's weights, cleared by the system while torch is imported. Any thread. No torch.

Whoever gets memory from the system waits until it is cleared, for a gigabyte as long as packing that much takes. While
torch is imported all cores but one are idle, so it is done then. What a load takes is its own from then on.
"""

import ctypes
import mmap
import sys
import threading
from pathlib import Path

import psutil

from inference.kernels.library import LIBRARY_PATH

_PIECE_BYTES = 2**25  # cleared in some milliseconds: whoever takes the memory waits for one
_MOST_SHARE = 0.5  # of the memory that is free: what is begun may turn out to be of no use
_LEAST_BYTES = 2**25  # below, a thread is not worth it
_CLEARED_SHARE = 0.97  # of the file: what is packed is hardly ever smaller
_ROOM = 1.25  # it may be larger, and the system gives no memory that is not written

_lock = threading.Lock()
_newest: "_Clearing | None" = None


def begin(path: Path | str) -> None:
    """Have memory cleared for the weights of a file that is about to be loaded; returns at once.

    Does nothing where it is of no use: without kernels to pack for, with torch there already, for a
    folder, with little memory. On Linux only, where it was measured.
    """
    if sys.platform != "linux" or _is_torch_there() or not LIBRARY_PATH.exists():
        return
    path = Path(path)
    size = path.stat().st_size if path.is_file() else 0
    if _LEAST_BYTES <= size <= _MOST_SHARE * psutil.virtual_memory().available:
        _replace(_Clearing(int(_ROOM * size), int(_CLEARED_SHARE * size)))


def take(num_bytes: int) -> mmap.mmap | None:
    """Give the memory that was begun to whoever asks first; None if there is none, or too little."""
    clearing = _replace(None)
    if clearing is None or clearing.num_bytes < num_bytes:
        return None
    return clearing.memory


def drop() -> None:
    """Give the memory back, if nobody took it."""
    _replace(None)


def ready_bytes() -> int:
    """What is cleared and not taken: the system counts it as used, and it is not."""
    clearing = _newest
    return 0 if clearing is None else clearing.num_cleared


def _is_torch_there() -> bool:
    return "torch" in sys.modules


def _replace(clearing: "_Clearing | None") -> "_Clearing | None":
    """Put another in place of what there was, and end the thread of that."""
    global _newest
    with _lock:
        before, _newest = _newest, clearing
    if before is not None:
        before.end()
    return before


class _Clearing:
    """One run of memory, and the thread that writes to it."""

    def __init__(self, num_bytes: int, num_wanted: int) -> None:
        self.num_bytes = num_bytes
        self.num_cleared = 0
        self.memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory.madvise(mmap.MADV_HUGEPAGE)
        self._num_wanted = num_wanted
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop writing."""
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        while self.num_cleared < self._num_wanted and not self._is_over:
            size = min(_PIECE_BYTES, self._num_wanted - self.num_cleared)
            ctypes.memset(address + self.num_cleared, 0, size)  # without the interpreter lock
            self.num_cleared += size
