"""Which pieces are on disk, what of a block they cover, and which of them go first.

Pure bookkeeping in memory; owned by the store, under its lock. Times are seconds.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from inference.kv_cache.block import BlockHash
from inference.kv_cache.disk import names
from inference.kv_cache.tiers import DiskSource, Piece

MAX_PEEKS = 32
"""Headers that one question may read to learn the ids of pieces."""

MANY_STALE = 1024
"""With more places that are out of date, a queue is thrown away."""


@dataclass(slots=True, eq=False)
class Entry:
    """A file of the disk tier that holds rows.

    Attributes:
        path: Of the file.
        piece: What its name says.
        base_tag: Tag of its base key.
        size: Its bytes.
        used: When it was last used; set by `PieceIndex.touch`.
        text: Base key and ids of the rows [0, end), once they are known from its header.
        noted: When it was last used, as the file has it.
        owner_tag: What stands for it in journals.
    """

    path: str
    piece: Piece
    base_tag: str
    size: int
    used: float
    text: tuple[BlockHash, tuple[int, ...]] | None = None
    noted: float = field(init=False)
    owner_tag: bytes = field(init=False)

    def __post_init__(self) -> None:
        """A file that was just seen or written has noted its use."""
        self.noted = self.used
        self.owner_tag = names.owner_tag(self.piece.key)


@dataclass(frozen=True, slots=True)
class _Use:
    """Rows [start, end) of a block that an entry can give."""

    start: int
    end: int
    entry: Entry


class PieceIndex:
    """All pieces of the root; those of one namespace can be asked for.

    Attributes:
        num_bytes: Of all files in the index.
    """

    def __init__(
        self,
        hash_text: Callable[[BlockHash, Sequence[int]], BlockHash],
        peek: Callable[[Entry], None],
    ) -> None:
        """Make an empty index.

        Args:
            hash_text: Base key and ids to the key of a piece.
            peek: Reads an entry's header and sets its `text`, or removes it.
        """
        self.num_bytes = 0
        self._hash_text = hash_text
        self._peek = peek
        self._entries: dict[str, Entry] = {}
        self._siblings: dict[str, dict[Piece, Entry]] = {}  # by base tag
        # Least recently used first; what was touched or removed meanwhile is skipped when met. None
        # until it is needed.
        self._queue: list[tuple[float, int, Entry]] | None = None
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def add(self, entry: Entry, *, is_own: bool) -> None:
        """Take an entry in, in place of one with the same path.

        Args:
            entry: A file that is there.
            is_own: Whether it is of the namespace that is asked for.
        """
        self.remove(entry.path)
        self._entries[entry.path] = entry
        self.num_bytes += entry.size
        if is_own:
            self._siblings.setdefault(entry.base_tag, {})[entry.piece] = entry
        self._enqueue(entry)

    def remove(self, path: str) -> bool:
        """Drop the entry of a path; whether there was one."""
        entry = self._entries.pop(path, None)
        if entry is None:
            return False
        self.num_bytes -= entry.size
        siblings = self._siblings.get(entry.base_tag, {})
        if siblings.get(entry.piece) is entry:
            del siblings[entry.piece]
            if not siblings:
                del self._siblings[entry.base_tag]
        return True

    def clear(self) -> None:
        """Drop everything."""
        self.num_bytes = 0
        self._entries.clear()
        self._siblings.clear()
        self._queue = None

    def touch(self, entry: Entry, used: float) -> None:
        """Note in memory when an entry was last used."""
        if self._entries.get(entry.path) is entry and entry.used != used:
            entry.used = used
            self._enqueue(entry)

    def get(self, path: str) -> Entry | None:
        """The entry of a path."""
        return self._entries.get(path)

    def cover(self, block: names.BlockText) -> tuple[tuple[DiskSource, Entry], ...]:
        """As many rows of a block as there are, from row 0 on, in as few pieces as may be.

        Pieces whose whole text is wanted are found by their key. Others may share their first rows
        with what is wanted; to know, their ids are needed, which may mean to read headers.
        """
        siblings = self._siblings.get(block.base_tag)
        if siblings is None:
            return ()
        base_key, token_ids, count = block.base_key, block.token_ids, len(block.token_ids)
        whole = siblings.get(Piece(block.key, 0, count))
        if whole is not None and whole.text in (None, (base_key, token_ids)):
            return ((DiskSource(whole.piece, 0, count), whole),)  # as it nearly always is
        keys = {
            end: block.key if end == count else self._hash_text(base_key, token_ids[:end])
            for end in {piece.end for piece in siblings}
            if end <= count
        }
        exact: list[_Use] = []
        others: list[Entry] = []
        for piece, entry in siblings.items():
            is_exact = keys.get(piece.end) == piece.key and (
                entry.text is None or entry.text == (base_key, token_ids[: piece.end])
            )
            if is_exact:
                exact.append(_Use(piece.start, piece.end, entry))
            else:
                others.append(entry)
        chosen = _choose(exact, count)
        if others and _reach(chosen) < count:
            chosen = self._choose_with_partial(exact, others, base_key, token_ids)
        return tuple(
            (DiskSource(use.entry.piece, start, use.end), use.entry) for start, use in chosen
        )

    def evict(self, num_bytes: int, *, older_than: float = float("inf")) -> list[Entry] | None:
        """Drop entries, least recently used first.

        Args:
            num_bytes: To free, at least.
            older_than: Entries used then or later stay.

        Returns:
            Those dropped, whose files are to be removed; None, and nothing changed, if there are
            not enough.
        """
        if num_bytes <= 0:
            return []
        queue = self._filled_queue()
        chosen: list[Entry] = []
        while num_bytes > 0 and queue and queue[0][0] < older_than:
            used, _, entry = heapq.heappop(queue)
            if self._entries.get(entry.path) is entry and entry.used == used:
                chosen.append(entry)
                num_bytes -= entry.size
        if num_bytes > 0:
            for entry in chosen:
                self._enqueue(entry)
            return None
        for entry in chosen:
            self.remove(entry.path)
        return chosen

    def _enqueue(self, entry: Entry) -> None:
        if self._queue is None:
            return
        heapq.heappush(self._queue, (entry.used, next(self._numbers), entry))
        if len(self._queue) > 2 * len(self._entries) + MANY_STALE:
            self._queue = None

    def _filled_queue(self) -> list[tuple[float, int, Entry]]:
        if self._queue is None:
            entries = self._entries.values()
            self._queue = [(entry.used, next(self._numbers), entry) for entry in entries]
            heapq.heapify(self._queue)
        return self._queue

    def _choose_with_partial(
        self,
        exact: list[_Use],
        others: list[Entry],
        base_key: BlockHash,
        token_ids: tuple[int, ...],
    ) -> list[tuple[int, _Use]]:
        """Choose, with pieces of which only the first rows are wanted.

        Only headers of pieces that begin where others lead to are read: where many chats go on after the
        same rows, each has a piece that begins there, and what all of them need is one other.
        """
        uses, left = list(exact), sorted(others, key=lambda entry: -entry.used)
        chosen = _choose(uses, len(token_ids))
        peeks = 0
        while _reach(chosen) < len(token_ids):
            reach = _reach(chosen)
            ready = [entry for entry in left if entry.piece.start <= reach < entry.piece.end]
            left = [entry for entry in left if entry.piece.start > reach]
            for entry in ready:
                if entry.text is None and peeks < MAX_PEEKS:
                    peeks += 1
                    self._peek(entry)
                end = _num_same(entry.text, base_key, token_ids)
                if end > entry.piece.start:
                    uses.append(_Use(entry.piece.start, min(end, entry.piece.end), entry))
            chosen = _choose(uses, len(token_ids))
            if _reach(chosen) == reach:
                break
        return chosen


def _num_same(
    text: tuple[BlockHash, tuple[int, ...]] | None, base_key: BlockHash, token_ids: tuple[int, ...]
) -> int:
    """How many first rows are as wanted."""
    if text is None or text[0] != base_key:
        return 0
    same = 0
    for one, other in zip(text[1], token_ids, strict=False):
        if one != other:
            break
        same += 1
    return same


def _choose(uses: list[_Use], count: int) -> list[tuple[int, _Use]]:
    """Cover rows from 0 on; each step takes what leads furthest. Pairs of first row and use."""
    chosen: list[tuple[int, _Use]] = []
    row = 0
    while row < count:
        reachable = [use for use in uses if use.start <= row < use.end]
        if not reachable:
            break
        best = max(reachable, key=lambda use: use.end)
        chosen.append((row, best))
        row = best.end
    return chosen


def _reach(chosen: list[tuple[int, _Use]]) -> int:
    return chosen[-1][1].end if chosen else 0
