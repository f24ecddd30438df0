"""How fast this machine reads memory, the limit of decoding."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

STREAMED_BYTES = 192 * 2**20  # more than any cache holds


class Reader:
    """Reads memory that no cache holds, one part per thread."""

    def __init__(self, threads: int) -> None:
        self._parts = np.array_split(np.ones(STREAMED_BYTES // 8, dtype=np.int64), threads)
        self._pool = ThreadPoolExecutor(threads)

    def measure(self) -> float:
        """GB/s, the best of some tries: what the machine can do at this moment."""
        return max(self._once() for _ in range(4))

    def _once(self) -> float:
        began = time.perf_counter()
        list(self._pool.map(np.bitwise_or.reduce, self._parts))
        return STREAMED_BYTES / (time.perf_counter() - began) / 1e9
