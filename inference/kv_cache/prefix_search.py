"""What of a prompt is kept, and where. Pure Python; changes nothing; engine thread.

The prompt is walked block by block. A full block is wanted exactly; it may lie on the device, in a
RAM slot or on disk. Where that ends, the rest of the prompt may still begin like something that is
kept: the source with the most rows is taken, whichever tier it is in.

    prompt    | shared | shared | loaded | loaded | copied ..|............|
              └ device ┴ device ┴  RAM   ┴  disk  ┴ rows of a block ┴ to be computed, 1 at least
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from inference.kv_cache.block import ROOT_KEY, BlockHash, Prefix, is_same_chain
from inference.kv_cache.prefix_index import num_equal
from inference.kv_cache.residents import Residents
from inference.kv_cache.tiers import DiskIndex, RamSource, Source

ChainEnd = Literal[
    "nothing_cached",  # not even the first token is kept
    "different_text",  # the prompt goes on with something that is not kept
    "evicted",  # what comes next was kept once and gave way to others
    "damaged",  # a file with what may come next was found to be damaged
    "all_reused",  # all but the last token, which must always be computed
]
"""Why no more of a prompt is kept."""


@dataclass(frozen=True, slots=True)
class Part:
    """The known rows of one block of a prompt.

    Attributes:
        kind: "shared": the block is used as it is. "taken_over": it is used and written on.
            "copied": its first rows go into a new block. "loaded": a new block is filled.
        base_key: Key of the block before; `ROOT_KEY` for the first.
        token_ids: Of the rows that are wanted, 1 to P.
        key: Of a full block; None for a part of one.
        block_id: The device block; -1 for "loaded".
        sources: For "loaded", where the rows are.
    """

    kind: Literal["shared", "taken_over", "copied", "loaded"]
    base_key: BlockHash
    token_ids: tuple[int, ...]
    key: BlockHash | None = None
    block_id: int = -1
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """The known beginning of a prompt.

    Attributes:
        parts: In order; all full but perhaps the last.
        end: Why it is not more.
    """

    parts: tuple[Part, ...]
    end: ChainEnd

    @property
    def num_tokens(self) -> int:
        """Tokens in all parts."""
        return sum(len(part.token_ids) for part in self.parts)


class OpenTail(NamedTuple):
    """The computed rows of the last block of a sequence that goes on: they have no name yet.

    Attributes:
        parent: The text of the full block before; None for the first.
        token_ids: Of the rows, 1 to P - 1.
        block_id: The block.
    """

    parent: Prefix | None
    token_ids: tuple[int, ...]
    block_id: int


def find_prefix(
    residents: Residents,
    disk: DiskIndex | None,
    token_ids: Sequence[int],
    *,
    owner: str,
    in_flight: Container[BlockHash],
    may_copy: bool = True,
    open_tails: Iterable[OpenTail] = (),
) -> Found | None:
    """Find the longest beginning of a prompt that need not be computed.

    Args:
        residents: What lies on the device and in RAM.
        disk: What lies on disk; None if there is no such tier.
        token_ids: The whole prompt, at least one token.
        owner: The chat that asks; it writes on in a block only if it is its own.
        in_flight: Keys of full blocks that are being loaded.
        may_copy: Whether rows of a device block may be copied into a new one.
        open_tails: Of sequences that are computed; rows may be copied from there too.

    Returns:
        At most all but the last token; None if a wanted block is being loaded for another sequence.
    """
    search = _Search(residents, disk, token_ids, owner)
    if not search.walk(in_flight):
        return None
    search.add_tail(open_tails, may_copy=may_copy)
    return Found(tuple(search.parts), search.why_it_ends())


class _Search:
    """One walk along a prompt."""

    def __init__(
        self, residents: Residents, disk: DiskIndex | None, token_ids: Sequence[int], owner: str
    ) -> None:
        self.parts: list[Part] = []
        self._residents = residents
        self._disk = disk
        self._token_ids = token_ids
        self._owner = owner
        self._limit = len(token_ids) - 1
        self._parent: Prefix | None = None  # the text of the last full block

    def walk(self, in_flight: Container[BlockHash]) -> bool:
        """Collect full blocks; False if one of them is on its way for another sequence."""
        size = self._residents.block_size
        for start in range(0, self._limit - size + 1, size):
            tokens = tuple(self._token_ids[start : start + size])
            key = self._residents.key(self._parent, tokens)
            block_id = self._residents.pool.find(key, self._parent, tokens)
            if block_id is None and key in in_flight:
                return False
            if block_id is not None:
                self.parts.append(Part("shared", self._base_key, tokens, key, block_id))
                self._parent = self._residents.pool.prefix_of(block_id)
            elif not self._add_lower(key, tokens):
                break
        return True

    def add_tail(self, open_tails: Iterable[OpenTail], *, may_copy: bool) -> None:
        """Add the source with the most rows of what follows the full blocks, below the limit."""
        start, tokens = self._rest()
        wanted = tokens[: self._limit - start]
        best: Part | None = None
        for part in (
            self._device_tail(tokens, wanted, may_copy),
            self._open_tail(wanted, open_tails) if may_copy else None,
            self._ram_tail(wanted),
        ):
            if part is not None and (best is None or len(part.token_ids) > len(best.token_ids)):
                best = part
        if self._disk is not None and (0 if best is None else len(best.token_ids)) < len(wanted):
            sources = self._disk.cover(self._base_key, wanted)
            num_rows = sources[-1].end if sources else 0
            if num_rows > (0 if best is None else len(best.token_ids)):
                best = Part("loaded", self._base_key, wanted[:num_rows], sources=sources)
        if best is not None:
            self.parts.append(best)

    def why_it_ends(self) -> ChainEnd:
        """Why there are no more parts."""
        num_tokens = sum(len(part.token_ids) for part in self.parts)
        if 0 < num_tokens == self._limit:
            return "all_reused"
        if self._disk is not None and self._disk.was_damaged(self._base_key):
            return "damaged"
        start, tokens = self._rest()
        for num_rows in range(num_tokens - start + 1, len(tokens) + 1):
            if self._residents.was_evicted(self._residents.key(self._parent, tokens[:num_rows])):
                return "evicted"
        return "different_text" if num_tokens else "nothing_cached"

    @property
    def _base_key(self) -> BlockHash:
        return ROOT_KEY if self._parent is None else self._parent.key

    def _rest(self) -> tuple[int, tuple[int, ...]]:
        size = self._residents.block_size
        start = sum(size for part in self.parts if len(part.token_ids) == size)
        return start, tuple(self._token_ids[start : start + size])

    def _add_lower(self, key: BlockHash, tokens: tuple[int, ...]) -> bool:
        """Add a full block from RAM or disk; False if neither has all of it."""
        slot = self._residents.ram.find(key, self._parent, tokens)
        sources: tuple[Source, ...] = ()
        if slot is not None:
            sources = (RamSource(slot, 0, len(tokens)),)
        elif self._disk is not None:
            sources = self._disk.cover(self._base_key, tokens)
        if not sources or sources[-1].end < len(tokens):
            return False
        self.parts.append(Part("loaded", self._base_key, tokens, key, sources=sources))
        held = None if slot is None else self._residents.ram.prefix_of(slot)
        self._parent = held or Prefix(key, self._parent, tokens)
        return True

    def _device_tail(
        self, tokens: tuple[int, ...], wanted: tuple[int, ...], may_copy: bool
    ) -> Part | None:
        best: Part | None = None
        pool = self._residents.pool
        for match in pool.matches(self._parent, tokens) if wanted else ():
            can_take = (
                match.num_rows == len(match.prefix.token_ids) < self._residents.block_size
                and pool.is_cached(match.place)
                and self._residents.is_only_of(match.prefix.key, self._owner)
            )
            rows = wanted[: match.num_rows]
            if not (can_take or may_copy):
                continue
            # Of equal ones that which needs no copy.
            if best is None or (len(rows), can_take) > (
                len(best.token_ids),
                best.kind == "taken_over",
            ):
                kind: Literal["taken_over", "copied"] = "taken_over" if can_take else "copied"
                best = Part(kind, self._base_key, rows, block_id=match.place)
        return best

    def _open_tail(self, wanted: tuple[int, ...], tails: Iterable[OpenTail]) -> Part | None:
        most, place = 0, -1
        for tail in tails:
            num_rows = num_equal(tail.token_ids, wanted)
            if num_rows > most and is_same_chain(tail.parent, self._parent):
                most, place = num_rows, tail.block_id
        return Part("copied", self._base_key, wanted[:most], block_id=place) if most else None

    def _ram_tail(self, wanted: tuple[int, ...]) -> Part | None:
        matches = self._residents.ram.matches(self._parent, wanted)
        best = max(matches, key=lambda match: match.num_rows, default=None)
        if best is None:
            return None
        source = RamSource(best.place, 0, best.num_rows)
        return Part("loaded", self._base_key, wanted[: best.num_rows], sources=(source,))
