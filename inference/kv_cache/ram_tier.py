"""Which text lies in which RAM slot. Pure Python; owned by the KV cache manager, engine thread.

Nothing here touches memory: who copies rows is told a slot's number. A slot holds one block, full
or partial. A *pinned* slot is being read, so it is not given to another text; if it is dropped
meanwhile, it cannot be found any more, and is free when the last pin goes.

        put (an evicted block)               drop, or the oldest when another needs the place
   free ──────────────────────► known ──────────────────────► free
                                  │ drop while pinned              ▲ last unpin
                                  └──────────► dropped ────────────┘
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from inference.kv_cache.block import BlockHash, Prefix
from inference.kv_cache.prefix_index import Match, PrefixIndex


def _ignore(key: BlockHash, is_evicted: bool) -> None:
    """Nobody listens."""


class RamTier:
    """Slots, what they hold, and who gives way first: the least recently used.

    Attributes:
        num_slots: How many slots were made; 0 is off.
        on_gone: Called with the key of a text that was dropped, and whether it gave way to another.
    """

    def __init__(self, num_slots: int) -> None:
        """Make an empty tier.

        Args:
            num_slots: At least 0.
        """
        if num_slots < 0:
            raise ValueError(f"num_slots must not be negative, as {num_slots} is.")
        self.num_slots = num_slots
        self.on_gone: Callable[[BlockHash, bool], None] = _ignore
        self._limit = num_slots
        # The slot freed last is taken first: memory that was touched is used again.
        self._free = list(reversed(range(num_slots)))
        self._held: OrderedDict[int, Prefix] = OrderedDict()  # least recently used first
        self._index = PrefixIndex()
        self._pins: dict[int, int] = {}
        self._dropped: set[int] = set()

    @property
    def num_used(self) -> int:
        """Slots that are not free."""
        return self.num_slots - len(self._free)

    @property
    def num_dropped(self) -> int:
        """Slots that hold nothing of worth and are free once nobody reads them any more."""
        return len(self._dropped)

    @property
    def limit(self) -> int:
        """The most slots that may be used, by `set_limit`."""
        return self._limit

    def __contains__(self, key: BlockHash) -> bool:
        """Whether a slot holds something by this key."""
        return key in self._index

    def keys(self) -> set[BlockHash]:
        """Keys of all that is held."""
        return self._index.keys()

    def entries(self) -> list[tuple[Prefix, int]]:
        """All texts with their slots."""
        return self._index.entries()

    def set_limit(self, num_slots: int) -> None:
        """Use fewer slots, or more again. What is too much is dropped now, pinned slots later.

        Args:
            num_slots: At least 0; more than were made is as many as were made.
        """
        self._limit = max(0, min(num_slots, self.num_slots))
        self._shrink_to(self._limit)

    def free_slots(self) -> Sequence[int]:
        """Slots that hold nothing, so that their memory can be given back."""
        return tuple(self._free)

    def find(self, key: BlockHash, parent: Prefix | None, token_ids: tuple[int, ...]) -> int | None:
        """The slot of exactly `token_ids` after `parent`, proven by content; None if none has it."""
        return self._index.find(key, parent, token_ids)

    def matches(self, parent: Prefix | None, token_ids: tuple[int, ...]) -> Iterator[Match]:
        """All slots that go on after `parent` with at least the first of `token_ids`."""
        return self._index.matches(parent, token_ids)

    def place_of(self, key: BlockHash) -> int | None:
        """The slot of a key, without a look at its text."""
        return self._index.place_of(key)

    def prefix_of(self, slot: int) -> Prefix | None:
        """What a slot holds; None if it is free or dropped."""
        return self._held.get(slot)

    def put(self, prefix: Prefix) -> int | None:
        """Take a slot for a text; the least recently used one that is not pinned gives way.

        Returns:
            The slot to copy the rows into; None if there is none to be had, or if the key is
            known already.
        """
        if prefix.key in self._index:
            return None
        self._shrink_to(self._limit - 1)
        if self.num_used >= self._limit:
            return None
        slot = self._free.pop()
        self._held[slot] = prefix
        self._index.add(prefix, slot)
        return slot

    def touch(self, slot: int) -> None:
        """Make what a slot holds the most recently used."""
        self._held.move_to_end(slot)

    def pin(self, slot: int) -> None:
        """Keep a slot's rows as they are until `unpin`; may be called several times."""
        assert slot in self._held, f"slot {slot} holds nothing to pin"
        self._pins[slot] = self._pins.get(slot, 0) + 1

    def unpin(self, slot: int) -> None:
        """Take one pin back."""
        assert slot in self._pins, f"slot {slot} is not pinned"
        self._pins[slot] -= 1
        if self._pins[slot]:
            return
        del self._pins[slot]
        if slot in self._dropped:
            self._dropped.remove(slot)
            self._free.append(slot)
        self._shrink_to(self._limit)

    def is_pinned(self, slot: int) -> bool:
        """Whether somebody reads the slot."""
        return slot in self._pins

    def drop(self, slot: int) -> None:
        """Forget what a slot holds. A pinned one keeps its rows until the last pin goes."""
        self._drop(slot, is_evicted=False)

    def clear(self) -> int:
        """Forget everything.

        Returns:
            How many slots held something.
        """
        slots = list(self._held)
        for slot in slots:
            self.drop(slot)
        return len(slots)

    def check_integrity(self) -> None:
        """Prove that free + held + dropped = all, and that the index agrees.

        Raises:
            RuntimeError: It does not; the message says where.
        """
        self._index.check_integrity("RAM")
        slots = sorted([*self._free, *self._held, *self._dropped])
        if slots != list(range(self.num_slots)):
            raise RuntimeError("A RAM slot is lost, or in two states.")
        if {(p.key, slot) for p, slot in self._index.entries()} != {
            (p.key, slot) for slot, p in self._held.items()
        }:
            raise RuntimeError("The RAM index and the slots differ.")
        if not self._dropped <= self._pins.keys() or not all(n > 0 for n in self._pins.values()):
            raise RuntimeError("A RAM slot waits for a pin that is not there.")

    def _shrink_to(self, num_slots: int) -> None:
        while self.num_used > max(0, num_slots):
            oldest = next((slot for slot in self._held if slot not in self._pins), None)
            if oldest is None:
                return
            self._drop(oldest, is_evicted=True)

    def _drop(self, slot: int, *, is_evicted: bool) -> None:
        prefix = self._held.pop(slot)
        self._index.remove(prefix.key)
        if slot in self._pins:
            self._dropped.add(slot)
        else:
            self._free.append(slot)
        self.on_gone(prefix.key, is_evicted)
