"""What the disk tier holds, and how much room it has. Any thread.

One lock guards the bookkeeping. Files are removed, looked at and read outside of it, but for the few
headers that `cover` may need. Another process may add and remove files at any time, and so may
people: what is not there any more is a miss. Shelves of one process that have the same root, of a model
and of the smaller one that guesses for it, tell each other, as the budget is for the files of all.
"""

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from inference.kv_cache.disk import names
from inference.kv_cache.disk.clearing import clear_leftovers
from inference.kv_cache.disk.files import clear_place, remove_file, size_of
from inference.kv_cache.disk.forgetting import forget_files
from inference.kv_cache.disk.format import AT_FAULT, Header, Miss
from inference.kv_cache.disk.index import Entry, PieceIndex
from inference.kv_cache.disk.names import BlockText
from inference.kv_cache.disk.piece_file import PieceReader
from inference.kv_cache.disk.root import (
    clear_all,
    namespace_paths,
    scan_chats,
    scan_namespace,
)
from inference.kv_cache.tiers import DiskSource, Piece


class Shelf:
    """All files of the root; the pieces of one namespace can be asked for."""

    def __init__(
        self,
        root: str,
        folder: str,
        block_size: int,
        budget_bytes: int,
        reader: PieceReader,
        clock: Callable[[], float],
    ) -> None:
        """Describe an empty shelf; nothing is touched.

        Args:
            root: Folder of the tier.
            folder: That of the namespace, in the root.
            block_size: Rows per block, P.
            budget_bytes: The most that all files may have.
            reader: Of the namespace.
            clock: Seconds since 1970.
        """
        self._root = root
        self._folder = folder
        self._block_size = block_size
        self._budget_bytes = budget_bytes
        self._reader = reader
        self._clock = clock
        self._lock = threading.Lock()
        self._index = PieceIndex(reader.key, self._peek)
        self._small: dict[str, int] = {}  # journals and trails: path to length
        self._small_bytes = 0
        self._going: set[str] = set()  # being removed, and so not to be taken in again
        self._stuck: set[str] = set()  # of no use, but the system does not let them be removed
        # Base tags after which a file was at fault, until one is written.
        self._damaged: set[str] = set()
        self._misses: Counter[Miss] = Counter()
        self._written_bytes = 0
        self._others: tuple[weakref.ref[Shelf], ...] = ()  # a new one each time, for other threads

    def join(self, other: "Shelf") -> None:
        """Keep account of each other's files from now on; both have the same root."""
        self._others += (weakref.ref(other),)
        other._others += (weakref.ref(self),)

    @property
    def budget_bytes(self) -> int:
        """The most that all files may have."""
        return self._budget_bytes

    def set_budget(self, budget_bytes: int) -> None:
        """Change the most that all files may have, which removes nothing yet."""
        with self._lock:
            self._budget_bytes = budget_bytes

    def counts(self) -> tuple[int, int, int, dict[Miss, int]]:
        """Bytes in all files, pieces, bytes written so far, and misses by reason."""
        with self._lock:
            return self._used(), len(self._index), self._written_bytes, dict(self._misses)

    def scan(self) -> None:
        """Find out what is there, and remove what was not finished and what nobody owns."""
        clear_leftovers(self._root)
        now = self._clock()
        pieces: list[Entry] = []
        small: dict[str, int] = {}
        for folder in namespace_paths(self._root):
            pieces += scan_namespace(folder, now)
            small |= scan_chats(folder, now)
        with self._lock:
            self._index.clear()
            self._small, self._small_bytes = small, sum(small.values())
            for entry in pieces:
                self._add(entry)

    def cover(self, block: BlockText) -> tuple[DiskSource, ...]:
        """Sources of as many rows of one block as there are, in files of other processes too."""
        with self._lock:
            found = self._index.cover(block)
            while _reach(found) < len(block.token_ids) and self._adopt_next(block, _reach(found)):
                found = self._index.cover(block)
            return tuple(source for source, _ in found)

    def existing(
        self, block: BlockText, *, may_be_new: bool
    ) -> tuple[tuple[DiskSource, Entry], ...]:
        """The same, with entries, whose files have just been seen.

        Args:
            block: Whose rows.
            may_be_new: Whether to look for files that another process wrote.
        """
        while True:
            with self._lock:
                found = self._cover(block) if may_be_new else self._index.cover(block)
            gone = [
                entry
                for _, entry in found
                if size_of(entry.path) != self._reader.file_bytes(entry.piece)
            ]
            if not gone:
                return found
            with self._lock:
                for entry in gone:
                    self._fail(entry.path, "missing")

    def was_damaged(self, base_tag: str) -> bool:
        """Whether a file with rows after this base was at fault, and none was written there since."""
        with self._lock:
            return base_tag in self._damaged

    def touch(self, entry: Entry, used: float) -> None:
        """Note in memory when an entry was last used."""
        with self._lock:
            self._index.touch(entry, used)

    def learn(self, path: str, header: Header, used: float) -> None:
        """Remember what the header of a file that was read and used says."""
        with self._lock:
            entry = self._index.get(path)
            if entry is not None:
                entry.text = (header.base_key, header.token_ids)
                self._index.touch(entry, used)

    def fail(self, path: str, miss: Miss) -> None:
        """A piece could not be read; its file is removed if it is at fault."""
        with self._lock:
            self._fail(path, miss)

    def count(self, miss: Miss) -> None:
        """Count a miss that is no file's fault."""
        with self._lock:
            self._misses[miss] += 1

    def make_room(self, num_bytes: int, *, older_than: float = float("inf")) -> bool:
        """Remove what was used least recently until so many bytes fit into the budget.

        Args:
            num_bytes: About to be written.
            older_than: Pieces used then or later stay.

        Returns:
            Whether they fit; if not, nothing was removed.
        """
        with self._lock:
            over = self._used() + num_bytes - self._budget_bytes
            if num_bytes == 0:
                over = min(over, self._index.num_bytes)
            if over <= 0:
                return True
            chosen = self._index.evict(over, older_than=older_than)
            if chosen is None:
                return False
            self._going.update(entry.path for entry in chosen)
        kept = [entry for entry in chosen if not remove_file(entry.path)]
        with self._lock:
            self._going.difference_update(entry.path for entry in chosen)
            for entry in kept:
                self._add(entry)
        still_there = {entry.path for entry in kept}
        self._tell_gone([entry.path for entry in chosen if entry.path not in still_there])
        return True

    def num_saved(self, block: BlockText, used: float) -> int:
        """How many first rows of one block are there, all if another process wrote the others at once.

        Args:
            block: Whose rows.
            used: When what that process wrote counts as used.
        """
        end = len(block.token_ids)
        with self._lock:
            reach = _reach(self._index.cover(block))
            rest = Piece(block.key, reach, end)
            return end if reach < end and self._adopt(rest, block.base_tag, used) else reach

    def add_written(self, entries: Collection[Entry]) -> None:
        """Take in pieces that were just written."""
        with self._lock:
            for entry in entries:
                self._stuck.discard(entry.path)
                self._damaged.discard(entry.base_tag)
                self._add(entry)
                self._written_bytes += entry.size
        self._tell_there(entries)

    def note_small(self, path: str, num_written: int) -> None:
        """A journal or a trail was written, with so many bytes."""
        with self._lock:
            self._written_bytes += num_written
        for shelf in (self, *self._known()):
            with shelf._lock:
                # Looked at here: two that write the same one may come here in another order.
                size = size_of(path) or 0
                shelf._small_bytes += size - shelf._small.get(path, 0)
                shelf._small[path] = size

    def live_tags(self) -> set[bytes]:
        """Owner tags of all pieces."""
        with self._lock:
            return {entry.owner_tag for entry in self._index}

    def forget(self, conversation_id: str) -> int:
        """Remove what only one conversation used, of all models; bytes freed."""
        forgotten = forget_files(self._root, conversation_id, self._clock())
        with self._lock:
            for path in forgotten.paths:
                self._index.remove(path)
                self._small_bytes -= self._small.pop(path, 0)
            for entry in forgotten.kept:
                self._add(entry)
                self._written_bytes += entry.size
        self._tell_gone(forgotten.paths)
        self._tell_there(forgotten.kept)
        return forgotten.num_bytes

    def clear(self) -> int:
        """Remove everything; bytes freed, by now or soon."""
        freed = clear_all(Path(self._root))
        for shelf in (self, *self._known()):
            with shelf._lock:
                shelf._index.clear()
                shelf._small.clear()
                shelf._small_bytes = 0
                shelf._damaged.clear()
        return freed

    def _known(self) -> list["Shelf"]:
        return [shelf for reference in self._others if (shelf := reference()) is not None]

    def _tell_there(self, entries: Collection[Entry]) -> None:
        """Files were written, as the others should know."""
        for other in self._known():
            with other._lock:
                for entry in entries:
                    other._add(replace(entry))  # each notes for itself when it was used

    def _tell_gone(self, paths: Collection[str]) -> None:
        """Files were removed, as the others should know."""
        for other in self._known():
            with other._lock:
                for path in paths:
                    other._index.remove(path)
                    other._small_bytes -= other._small.pop(path, 0)

    def _cover(self, block: BlockText) -> tuple[tuple[DiskSource, Entry], ...]:
        found = self._index.cover(block)
        reach, count = _reach(found), len(block.token_ids)
        if reach == count or count != self._block_size:
            return found
        # A call from a terminal may have gone on with this very chat meanwhile.
        pieces = [Piece(block.key, start, count) for start in {0, reach}]
        adopted = [self._adopt(piece, block.base_tag, self._clock()) for piece in pieces]
        return self._index.cover(block) if any(adopted) else found

    def _adopt_next(self, block: BlockText, reach: int) -> bool:
        """Take in a piece of another process that goes on behind the rows that are known, the longest.

        A call from a terminal may have gone on with this very chat, for several turns that end in one block.
        """
        for end in range(len(block.token_ids), reach, -1):
            key = self._reader.key(block.base_key, block.token_ids[:end])
            for start in {reach, 0}:
                if self._adopt(Piece(key, start, end), block.base_tag, self._clock()):
                    return True
        return False

    def _adopt(self, piece: Piece, base_tag: str, used: float) -> bool:
        """Take in a piece that another process wrote; whether there was one."""
        path = names.piece_path(self._folder, piece, base_tag)
        if self._index.get(path) is not None or path in self._going or path in self._stuck:
            return False
        size = self._reader.file_bytes(piece)
        if size_of(path) != size:
            return False
        self._add(Entry(path, piece, base_tag, size, used))
        return True

    def _add(self, entry: Entry) -> None:
        self._index.add(entry, is_own=entry.path.startswith(self._folder + os.sep))

    def _used(self) -> int:
        return self._index.num_bytes + self._small_bytes

    def _peek(self, entry: Entry) -> None:
        header = self._reader.read_header(entry.path, entry.piece, entry.base_tag)
        if isinstance(header, str):
            self._fail(entry.path, header)
        else:
            entry.text = (header.base_key, header.token_ids)

    def _fail(self, path: str, miss: Miss) -> None:
        self._misses[miss] += 1
        entry = self._index.get(path)
        if entry is not None and miss in AT_FAULT:
            self._damaged.add(entry.base_tag)
        if miss == "missing" or miss in AT_FAULT:
            self._index.remove(path)
        if miss in AT_FAULT and not clear_place(path):
            self._stuck.add(path)


def _reach(found: tuple[tuple[DiskSource, Entry], ...]) -> int:
    return found[-1][0].end if found else 0
