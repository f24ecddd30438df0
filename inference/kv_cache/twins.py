"""Blocks that hold what another block is found by. Pure Python; owned by the block pool.

Of blocks with the same text one is in the index. The others are its twins, all of them used: one
takes its place when it is released. So a text whose key leaves the index lies in no block that
could come back.
"""

from collections.abc import Callable

from inference.kv_cache.block import BlockHash


class Twins:
    """The twins of each text that has some."""

    def __init__(self) -> None:
        self._blocks: dict[BlockHash, list[int]] = {}

    def __contains__(self, key: BlockHash) -> bool:
        """Whether a text has twins."""
        return key in self._blocks

    def add(self, key: BlockHash, block_id: int) -> None:
        """Note one."""
        self._blocks.setdefault(key, []).append(block_id)

    def take(self, key: BlockHash) -> int | None:
        """Take the newest one out; None if there is none."""
        block_id = self._blocks[key][-1] if key in self._blocks else None
        if block_id is not None:
            self.discard(key, block_id)
        return block_id

    def discard(self, key: BlockHash, block_id: int) -> None:
        """Take a block out, if it is one."""
        blocks = self._blocks.get(key, [])
        if block_id in blocks:
            blocks.remove(block_id)
            if not blocks:
                del self._blocks[key]

    def forget(self, key: BlockHash) -> None:
        """Take all of a text out."""
        self._blocks.pop(key, None)

    def check_integrity(
        self, is_found: Callable[[BlockHash], bool], is_used: Callable[[int], bool]
    ) -> None:
        """Prove that each is used, and has the text of a block that can be found.

        Raises:
            RuntimeError: It is not so; the message says where.
        """
        for key, blocks in self._blocks.items():
            if not is_found(key) or not all(map(is_used, blocks)):
                raise RuntimeError(f"Blocks {blocks} are twins of none, or unused.")
