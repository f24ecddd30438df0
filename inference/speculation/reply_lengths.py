"""How much longer a reply will be, by how long the last ones were. Pure Python; engine thread."""

from collections import deque

_NUM_KEPT = 8


class ReplyLengths:
    """The lengths of the last replies of an engine, of all its chats."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._last: deque[int] = deque(maxlen=_NUM_KEPT)

    def note(self, num_tokens: int) -> None:
        """A reply ended with so many tokens."""
        self._last.append(num_tokens)

    def left(self, so_far: int) -> float:
        """How many tokens may be counted on after so many.

        As if it ended where the next longer one of the last did. If none was longer, half as many as came:
        who waits that long loses little in a reply that ends soon, and in one that goes on.
        """
        longer = [length for length in self._last if length > so_far]
        return min(longer) - so_far if longer else so_far / 2
