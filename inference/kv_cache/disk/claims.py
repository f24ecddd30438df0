"""What the chain of a conversation owns, and in which order its blocks may go. Any thread."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from inference.kv_cache.block import BlockHash
from inference.kv_cache.disk import names
from inference.kv_cache.disk.files import set_used
from inference.kv_cache.disk.index import Entry
from inference.kv_cache.disk.journal import (
    RECORD_BYTES,
    append_tags,
    read_tags,
    rewrite_tags,
    rows_tag,
)
from inference.kv_cache.disk.piece_file import PieceReader
from inference.kv_cache.disk.shelf import Shelf
from inference.kv_cache.disk.writer import Writer

DEPTH_SECONDS = 1e-4
"""How much longer ago each further block of a chain counts as used, so that tails go first."""

NOTE_SECONDS = 60.0
"""How old the time noted on a file may be before it is set anew."""

MANY_TAGS = 64
"""A journal with fewer stale records is not worth writing anew."""


@dataclass(frozen=True, slots=True)
class _Latest:
    """What the latest claim says about pieces to come.

    Attributes:
        used: When they count as used, by key.
        is_noted: Whether they have an owner on disk.
    """

    used: Mapping[BlockHash, float] = field(default_factory=dict)
    is_noted: bool = True


class Claims:
    """Writes owners' journals, and when the pieces of a chain were used."""

    def __init__(self, folder: str, shelf: Shelf, reader: PieceReader, writer: Writer) -> None:
        """Take the folder of the namespace and what knows its files."""
        self._folder = folder
        self._shelf = shelf
        self._reader = reader
        self._writer = writer
        self._latest = _Latest()

    def claim(
        self,
        conversation_id: str,
        blocks: Sequence[tuple[BlockHash, tuple[int, ...]]],
        now: float,
    ) -> None:
        """Note a conversation as an owner of its chain: base key and ids of each block."""
        tags: dict[bytes, None] = {}
        planned: dict[BlockHash, float] = {}
        noted = now
        for depth, (base_key, token_ids) in enumerate(blocks):
            used = now - depth * DEPTH_SECONDS
            for part, (source, entry) in enumerate(self._shelf.existing(base_key, token_ids)):
                noted = self._use(entry, used - part * DEPTH_SECONDS / 64, noted)
                own = token_ids[: source.end]
                tags[names.owner_tag(self._reader.key(base_key, own))] = None
                if source.end < entry.piece.end:
                    tags[rows_tag(base_key, own)] = None
            # Whatever is written for these rows has this key, even if pieces go before that.
            key = self._reader.key(base_key, token_ids)
            tags[names.owner_tag(key)] = None
            planned[key] = noted = min(used - DEPTH_SECONDS / 2, noted)
        self._latest = _Latest(planned, self._own(conversation_id, tags.keys(), now))

    def is_refused(self, key: BlockHash) -> bool:
        """Whether a piece would have no owner, since that could not be noted."""
        return key in self._latest.used and not self._latest.is_noted

    def used(self, key: BlockHash, now: float) -> float:
        """When a piece that is written now counts as used."""
        return self._latest.used.get(key, now)

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
