"""Where each known text lies. Pure Python; owned by the block pool and by the RAM tier.

A place is a block id or a slot. Each key has one place; each place has at most one key.

      parent key ─► keys of what goes on after it        for "which block shares most of my tail?"
      key ─► (prefix, place)                             for "who has exactly this?"
"""

from collections.abc import Iterator
from dataclasses import dataclass

from inference.kv_cache.block import ROOT_KEY, BlockHash, Prefix, is_same_chain


@dataclass(frozen=True, slots=True)
class Match:
    """Something known that begins as wanted.

    Attributes:
        num_rows: How many tokens are the same, at least 1.
        prefix: What lies there.
        place: Where.
    """

    num_rows: int
    prefix: Prefix
    place: int


class PrefixIndex:
    """Texts and their places; what it finds is proven by content."""

    def __init__(self) -> None:
        self._entries: dict[BlockHash, tuple[Prefix, int]] = {}
        self._children: dict[BlockHash, dict[BlockHash, None]] = {}

    def __contains__(self, key: BlockHash) -> bool:
        """Whether something is known by this key."""
        return key in self._entries

    def entries(self) -> list[tuple[Prefix, int]]:
        """All texts with their places."""
        return list(self._entries.values())

    def keys(self) -> set[BlockHash]:
        """Keys of all texts."""
        return set(self._entries)

    def place_of(self, key: BlockHash) -> int | None:
        """The place of a key, without a look at its text."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def add(self, prefix: Prefix, place: int) -> None:
        """Note a text, or move it to another place."""
        self._entries[prefix.key] = (prefix, place)
        self._children.setdefault(prefix.parent_key, {})[prefix.key] = None

    def remove(self, key: BlockHash) -> None:
        """Forget a text, which must be known."""
        prefix, _ = self._entries.pop(key)
        siblings = self._children[prefix.parent_key]
        del siblings[key]
        if not siblings:
            del self._children[prefix.parent_key]

    def find(self, key: BlockHash, parent: Prefix | None, token_ids: tuple[int, ...]) -> int | None:
        """The place of exactly `token_ids` after `parent`; None if it is not known."""
        entry = self._entries.get(key)
        if entry is None or not entry[0].continues(parent, token_ids):
            return None
        return entry[1]

    def matches(self, parent: Prefix | None, token_ids: tuple[int, ...]) -> Iterator[Match]:
        """All that goes on after `parent` with at least the first of `token_ids`."""
        siblings = self._children.get(ROOT_KEY if parent is None else parent.key, {})
        for key in siblings:
            prefix, place = self._entries[key]
            num_rows = num_equal(prefix.token_ids, token_ids)
            if num_rows and is_same_chain(prefix.parent, parent):
                yield Match(num_rows, prefix, place)

    def check_integrity(self, name: str) -> None:
        """Prove that both directions agree.

        Args:
            name: Of the tier, for the message.

        Raises:
            RuntimeError: They do not; the message says where.
        """
        children = {(p.parent_key, key) for key, (p, _) in self._entries.items()}
        noted = {(parent, key) for parent, keys in self._children.items() for key in keys}
        if children != noted:
            raise RuntimeError(f"{name} knows {len(children)} children and lists {len(noted)}.")
        if len({place for _, place in self._entries.values()}) != len(self._entries):
            raise RuntimeError(f"{name} holds two texts in one place.")


def num_equal(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens both begin with."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
