"""What the chain of a conversation owns, in which order its blocks may go, and writing them.

Any thread. Naming a block and looking for its files is done once, when its chain is claimed: while
it is written, each step takes several times as long, as the rows have driven all else out of the caches.
"""

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from inference.kv_cache.block import BlockHash
from inference.kv_cache.disk import names
from inference.kv_cache.disk.files import set_used, temporary_in, write_file
from inference.kv_cache.disk.format import Miss, pack_sum
from inference.kv_cache.disk.index import Entry
from inference.kv_cache.disk.journal import (
    RECORD_BYTES,
    append_tags,
    read_tags,
    rewrite_tags,
    rows_tag,
)
from inference.kv_cache.disk.names import BlockText
from inference.kv_cache.disk.piece_file import PieceReader
from inference.kv_cache.disk.row_source import RowFile, RowSource
from inference.kv_cache.disk.shelf import Shelf
from inference.kv_cache.disk.writer import Writer
from inference.kv_cache.tiers import HeldBlock, Piece

DEPTH_SECONDS = 1e-4
"""How much longer ago each further block of a chain counts as used, so that tails go first."""

NOTE_SECONDS = 60.0
"""How old the time noted on a file may be before it is set anew."""

MANY_TAGS = 64
"""A journal with fewer stale records is not worth writing anew."""


Block = tuple[BlockHash, tuple[int, ...]]
"""Base key and ids of a block's rows."""


@dataclass(frozen=True, slots=True)
class _Latest:
    """What the latest claim says about pieces to come.

    Attributes:
        planned: What each block's rows are called, and when its next piece counts as used.
        is_noted: Whether they have an owner on disk.
    """

    planned: Mapping[Block, tuple[BlockText, float]] = field(default_factory=dict)
    is_noted: bool = True


class Claims:
    """Writes owners' journals and pieces, and when the pieces of a chain were used.

    Attributes:
        is_short: Whether the last thing to be written was beyond the budget.
    """

    def __init__(self, folder: str, shelf: Shelf, reader: PieceReader, writer: Writer) -> None:
        """Take the folder of the namespace and what knows its files."""
        self.is_short = False
        self._folder = folder
        self._blocks = os.path.join(folder, names.BLOCKS)
        self._shelf = shelf
        self._reader = reader
        self._writer = writer
        self._latest = _Latest()

    def claim(self, conversation_id: str, blocks: Sequence[Block], now: float) -> list[int]:
        """Note a conversation as an owner of its chain; how many rows of each block are there."""
        tags: dict[bytes, None] = {}
        planned: dict[Block, tuple[BlockText, float]] = {}
        num_saved = []
        noted, is_whole = now, True
        for depth, (base_key, token_ids) in enumerate(blocks):
            block = self._reader.text(base_key, token_ids)
            used = now - depth * DEPTH_SECONDS
            # What another process wrote of a chain has no gaps; the rest is looked at when it is written.
            found = self._shelf.existing(block, may_be_new=is_whole)
            for part, (source, entry) in enumerate(found):
                noted = self._use(entry, used - part * DEPTH_SECONDS / 64, noted)
                if source.end == entry.piece.end:
                    tags[entry.owner_tag] = None
                else:
                    own = token_ids[: source.end]
                    tags[names.owner_tag(self._reader.key(base_key, own))] = None
                    tags[rows_tag(base_key, own)] = None
            # Whatever is written for these rows has this key, even if pieces go before that.
            tags[names.owner_tag(block.key)] = None
            noted = min(used - DEPTH_SECONDS / 2, noted)
            planned[base_key, token_ids] = block, noted
            num_saved.append(found[-1][0].end if found else 0)
            is_whole = is_whole and num_saved[-1] == len(token_ids)
        self._latest = _Latest(planned, self._own(conversation_id, tags.keys(), now))
        return num_saved

    def write(
        self, blocks: Sequence[HeldBlock], rows: RowSource, now: float
    ) -> tuple[int, Miss | None]:
        """Write what of these blocks is not on disk, each as one piece.

        Returns:
            How many of them, from the first on, are there now, and why the next is not.
        """
        planned: list[tuple[RowFile, Entry]] = []
        there: list[str | None] = []  # per block the path of what has to be written for it
        miss, size = self._writer.why_not(), 0
        for block in blocks if miss is None else ():
            plan = self._plan(block, size, now)
            if isinstance(plan, str):
                miss = plan
                break
            there.append(plan and plan[1].path)
            if plan is not None:
                planned.append(plan)
                size += plan[1].size
        written, failure = self._write(planned, rows)
        num_there = next(
            (at for at, path in enumerate(there) if path is not None and path not in written),
            len(there),
        )
        return num_there, failure or miss

    def _plan(
        self, held: HeldBlock, num_planned: int, now: float
    ) -> tuple[RowFile, Entry] | Miss | None:
        """What to write of a block; None for nothing.

        Args:
            held: The block.
            num_planned: Bytes that are to be written before.
            now: Seconds.
        """
        latest, text = self._latest, (held.base_key, held.token_ids)
        plan = latest.planned.get(text)
        if plan is not None and not latest.is_noted:
            return "not_writable"  # nobody would own it, since that could not be noted
        block, used = plan or (self._reader.text(*text), now)
        piece = Piece(block.key, self._shelf.num_saved(block, used), len(block.token_ids))
        if piece.start == piece.end:
            return None
        size = self._reader.file_bytes(piece)
        self.is_short = not self._shelf.make_room(num_planned + size, older_than=used)
        if self.is_short:
            return "over_budget"
        path = names.piece_path(self._folder, piece, block.base_tag)
        header = self._reader.header(block, piece.start)
        # Some file systems take ten times as long to make a file in a folder they have not just used.
        temporary = temporary_in(self._blocks)
        file = RowFile(held.block_id, piece.start, piece.end, header, temporary, path, used)
        return file, Entry(path, piece, block.base_tag, size, used, text)

    def _write(
        self, planned: Sequence[tuple[RowFile, Entry]], rows: RowSource
    ) -> tuple[set[str], Miss | None]:
        """Paths of what was written, and why there is no more."""
        if not planned:
            return set(), None
        miss = None
        entries = []
        quickly = rows.write_files([file for file, _ in planned])
        for (file, entry), is_written in zip(planned, quickly, strict=True):
            if not is_written:
                # What stands in the way is removed, or told.
                miss = miss or self._write_slowly(file, entry.piece, rows)
                if miss is not None:
                    continue
            entries.append(entry)
        if entries:
            self._shelf.add_written(entries)
            if miss is None:  # else the writer has a problem now, whatever went before it
                self._writer.succeed()
        return {entry.path for entry in entries}, miss

    def _write_slowly(self, file: RowFile, piece: Piece, rows: RowSource) -> Miss | None:
        payload = rows.copy_out(file.block_id, file.start, file.end)
        parts = (file.header, payload, pack_sum(payload))
        return self._writer.write(
            lambda: write_file(file.path, parts, file.used, made_in=self._blocks),
            names.BLOCKS,
            names.fan_folder(piece.key),
        )

    def _use(self, entry: Entry, used: float, before: float) -> float:
        """Touch a piece; `before` is what the file of the one before it has noted."""
        self._shelf.touch(entry, used)
        if used - entry.noted > NOTE_SECONDS:
            entry.noted = min(used, before)
            with contextlib.suppress(OSError):
                set_used(entry.path, entry.noted)
        return min(entry.noted, before)

    def _own(self, conversation_id: str, tags: Collection[bytes], now: float) -> bool:
        path = names.conversation_path(self._folder, conversation_id, names.OWN)
        present = read_tags(path)
        new = [tag for tag in tags if tag not in present]
        kept = present | set(new)
        if len(present) > MANY_TAGS + 2 * len(tags):
            kept = (present & self._shelf.live_tags()) | set(tags)
        if len(present) > MANY_TAGS + 2 * len(kept):
            miss = self._writer.write(lambda: rewrite_tags(path, kept, now), names.CHATS)
            num_written = RECORD_BYTES * len(kept)
        elif new:
            miss = self._writer.write(lambda: append_tags(path, new, present, now), names.CHATS)
            num_written = RECORD_BYTES * len(new)
        else:
            return True
        self._shelf.note_small(path, 0 if miss else num_written)
        return miss is None
