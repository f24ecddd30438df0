"""Where the rows of blocks come from on their way to the disk. Pure Python; any thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RowFile:
    """Rows [start, end) of a block that are to become a file.

    Attributes:
        block_id: Which block.
        start, end: Its rows.
        header: What comes before them in the file; behind them comes `format.pack_sum`.
        temporary: Where the file lies until it is whole.
        path: Its place.
        used: The time that it gets, in seconds.
    """

    block_id: int
    start: int
    end: int
    header: bytes
    temporary: str
    path: str
    used: float


class RowSource(Protocol):
    """Gives rows, and may be able to write many of them itself."""

    def copy_out(self, block_id: int, start: int, end: int) -> memoryview | bytes:
        """Rows of a block as bytes, good until the next call."""

    def write_files(self, files: Sequence[RowFile]) -> Sequence[bool]:
        """Write files, of which each is whole or absent; for each whether it is there.

        For others there may be another way, and somebody to tell why not.
        """
