"""The disk tier: writes each row once, proves what it reads, and knows who owns what. Any thread."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inference.kv_cache.block import ROOT_KEY, BlockHash, HashBlock, hash_block
from inference.kv_cache.disk import names
from inference.kv_cache.disk.claims import DEPTH_SECONDS, Block, Claims
from inference.kv_cache.disk.files import can_take, read_small, write_file
from inference.kv_cache.disk.forgetting import forget_all_but, forget_conversation
from inference.kv_cache.disk.format import Miss, RowLayout, row_bytes
from inference.kv_cache.disk.piece_file import PieceReader
from inference.kv_cache.disk.root import clear_all, namespace_paths, used_bytes
from inference.kv_cache.disk.row_source import RowSource
from inference.kv_cache.disk.shelf import Shelf
from inference.kv_cache.disk.trail import Maker, Trail, TrailElsewhere, pack_trail, parse_trail
from inference.kv_cache.disk.writer import Writer
from inference.kv_cache.tiers import DiskSource, HeldBlock, Piece

__all__ = [
    "DiskStats",
    "DiskStore",
    "clear_all",
    "forget_all_but",
    "forget_conversation",
    "used_bytes",
]

NO_ROOM = "The room for chats on disk is too small for any, so they are not kept beyond memory."
LITTLE_ROOM = "The room for chats on disk is too small for all of a chat, so not all of it is kept."

BURST_SECONDS = 5.0
"""Reads with shorter breaks between them are taken as of one chain, from its first block on."""


@dataclass(frozen=True, slots=True)
class DiskStats:
    """The disk tier in numbers.

    Attributes:
        used_bytes: Length of all files of all models.
        budget_bytes: The most that they may have; 0 if the tier is off.
        num_pieces: Pieces of all models.
        written_bytes: Everything written since the store was made, journals and trails included.
        misses: How often rows were not read or not written, by reason.
        problem: Why chats are not kept and what to do, for people; "" if they are.
    """

    used_bytes: int = 0
    budget_bytes: int = 0
    num_pieces: int = 0
    written_bytes: int = 0
    misses: Mapping[Miss, int] = field(default_factory=dict)
    problem: str = ""


class DiskStore:
    """Keeps the rows of one model's blocks in files; the budget is for the files of all models.

    Rows go through here as bytes: see `RowLayout`.

    Attributes:
        root: Folder of the tier, for all models.
    """

    def __init__(
        self,
        root: Path,
        *,
        namespace: bytes,
        block_size: int,
        row_layout: RowLayout,
        budget_bytes: int,
        maker: Maker | None = None,
        hash_block: HashBlock = hash_block,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Describe the store; nothing is touched before `open`.

        Args:
            root: Folder of the tier, for all models.
            namespace: What rows depend on besides text, their layout included.
            block_size: Rows per block, P.
            row_layout: How rows lie in a payload.
            budget_bytes: The most that all files may have; 0 keeps none.
            maker: What the namespace stands for, in parts; None if nobody is to tell them apart.
            hash_block: Names a block; for tests.
            clock: Seconds since 1970; for tests.
        """
        self.root = root
        self._root = os.fspath(root)
        self._folder_name = names.namespace_folder(namespace)
        self._folder = os.path.join(self._root, self._folder_name)
        self._maker = Maker() if maker is None else maker
        self._block_size = block_size
        self._row_bytes = row_bytes(row_layout)
        self._clock = clock
        self._reader = PieceReader(namespace, row_layout, hash_block)
        self._block_bytes = self._reader.file_bytes(Piece(ROOT_KEY, 0, block_size))
        self._shelf = Shelf(self._root, self._folder, block_size, budget_bytes, self._reader, clock)
        self._writer = Writer(self._root, self._folder_name, clock)
        self._claims = Claims(self._folder, self._shelf, self._reader, self._writer)
        self._is_open = False
        self._last_use = float("-inf")  # of what was read last

    def join(self, other: "DiskStore") -> None:
        """Keep account of another store's files of this process, which has the same root, and the other way."""
        self._shelf.join(other._shelf)

    def open(self) -> None:
        """Make the folders, find out what is there, and remove what is of no use.

        Whatever is wrong with the folder becomes `problem`; reading goes on as far as it can.
        """
        self._is_open = True
        if not self.is_on:
            self._shelf.clear()
            return
        for name in (names.BLOCKS, names.CHATS):
            self._writer.make_folders(name)
        self._shelf.scan()
        self._shelf.make_room(0)

    def cover(self, base_key: BlockHash, token_ids: Sequence[int]) -> tuple[DiskSource, ...]:
        """Sources of as many rows of one block as there are; see `tiers.DiskIndex`."""
        if not self.is_on:
            return ()
        return self._shelf.cover(self._reader.text(base_key, tuple(token_ids)))

    def was_damaged(self, base_key: BlockHash) -> bool:
        """Whether rows of one block were in a file that was at fault; see `tiers.DiskIndex`."""
        return self._shelf.was_damaged(names.base_tag(base_key))

    def num_saved(self, base_key: BlockHash, token_ids: Sequence[int]) -> int:
        """How many first rows of a block are on disk already."""
        sources = self.cover(base_key, token_ids)
        return sources[-1].end if sources else 0

    def read(
        self, source: DiskSource, base_key: BlockHash, token_ids: Sequence[int]
    ) -> bytearray | None:
        """Read and verify all rows of a source's piece.

        Args:
            source: From `cover`.
            base_key: Key of the block before.
            token_ids: Of the rows [0, source.end), or of more.

        Returns:
            The rows [piece.start, piece.end). None is a miss, which is counted; a file that is at
            fault is removed.
        """
        if not self.is_on:
            return None
        tag = names.base_tag(base_key)
        path = names.piece_path(self._folder, source.piece, tag)
        found = self._reader.read(path, source.piece, tag)
        if isinstance(found, str):
            self._shelf.fail(path, found)
            return None
        header, payload = found
        self._shelf.learn(path, header, self._next_use())
        wanted = (base_key, tuple(token_ids[: source.end]))
        if (header.base_key, header.token_ids[: source.end]) != wanted:
            self._shelf.count("other_text")
            return None
        return payload

    def claim(self, conversation_id: str, blocks: Sequence[Block]) -> list[int]:
        """Note what a conversation uses and is about to write, and that it was used now.

        Must come before `write`: what nobody owns does not survive the next start.

        Args:
            conversation_id: Whose chain it is.
            blocks: From the first one on.

        Returns:
            How many first rows of each block are on disk already, their files just seen.
        """
        if not self.is_on:
            return [0] * len(blocks)
        return self._claims.claim(conversation_id, blocks, self._clock())

    def write(self, blocks: Sequence[HeldBlock], rows: RowSource) -> int:
        """Write what of these blocks is not on disk yet.

        Args:
            blocks: Some of a chain, in order; their rows stay as they are meanwhile.
            rows: Gives them.

        Returns:
            How many of the blocks, from the first on, are on disk now; if not all, the reason is counted.
        """
        if not self.is_on:
            return 0
        num_there, miss = self._claims.write(blocks, rows, self._clock())
        if miss is not None:
            self._shelf.count(miss)
        return num_there

    def save_trail(self, conversation_id: str, token_ids: Sequence[int]) -> None:
        """Note the ids of a conversation's last sequence, in place of those before."""
        if not self.is_on or self._writer.why_not() is not None:
            return
        path = names.conversation_path(self._folder, conversation_id, names.TRAIL)
        data = pack_trail(token_ids, self._maker)
        if not self._shelf.make_room(len(data)):
            return
        now = self._clock()
        if self._writer.write(lambda: write_file(path, [data], now), names.CHATS) is None:
            self._writer.succeed()
            self._shelf.note_small(path, len(data))

    def load_trail(self, conversation_id: str) -> tuple[int, ...] | None:
        """The ids that `save_trail` noted; None if there are none."""
        trail = _read_trail(self._folder, conversation_id) if self.is_on else None
        return None if trail is None else trail.token_ids

    def load_trails_elsewhere(self, conversation_id: str) -> Iterator[TrailElsewhere]:
        """The same of all other namespaces that have some."""
        for folder in namespace_paths(self._root) if self.is_on else ():
            trail = _read_trail(folder, conversation_id)
            if folder != self._folder and trail is not None:
                yield TrailElsewhere(self._maker.difference(trail.maker), trail.token_ids)

    def forget(self, conversation_id: str) -> int:
        """Remove what only this conversation used, of all models; bytes freed."""
        return self._shelf.forget(conversation_id)

    def clear(self) -> int:
        """Remove everything of all conversations and models; bytes freed. The store goes on."""
        return self._shelf.clear()

    def set_budget(self, budget_bytes: int) -> None:
        """Change the most that all files may have; 0 removes them and turns the tier off."""
        was_on = self.is_on
        self._claims.is_short = False
        self._shelf.set_budget(budget_bytes)
        if not self._is_open:
            return
        if was_on and self.is_on:
            self._shelf.make_room(0)
        else:
            self.open()

    def stats(self) -> DiskStats:
        """How much there is and what went wrong."""
        used, num_pieces, written, misses = self._shelf.counts()
        problem = self._writer.problem
        if not problem and self.has_no_room:
            problem = NO_ROOM
        elif not problem and self._claims.is_short:
            problem = LITTLE_ROOM
        return DiskStats(used, self._shelf.budget_bytes, num_pieces, written, misses, problem)

    @property
    def has_no_room(self) -> bool:
        """Whether the budget does not even hold one block."""
        return self.is_on and self._shelf.budget_bytes < self._block_bytes

    @property
    def room_tokens(self) -> int | None:
        """The most tokens of one chat that are kept; None if the tier is off.

        0 while nothing can be written: the disk is full, or the folder is closed.
        """
        if not self.is_on:
            return None
        if self._writer.problem or not can_take(self._root, self._block_bytes):
            return 0
        return self._shelf.budget_bytes // self._row_bytes

    @property
    def is_on(self) -> bool:
        """Whether anything is kept: it is open and has a budget."""
        return self._is_open and self._shelf.budget_bytes > 0

    def _next_use(self) -> float:
        """When a piece that is read now counts as used: a chain is read from its first block on."""
        now = self._clock()
        is_next = 0 <= now - self._last_use < BURST_SECONDS
        self._last_use = self._last_use - DEPTH_SECONDS if is_next else now
        return self._last_use


def _read_trail(folder: str, conversation_id: str) -> Trail | None:
    path = names.conversation_path(folder, conversation_id, names.TRAIL)
    return parse_trail(read_small(path))
