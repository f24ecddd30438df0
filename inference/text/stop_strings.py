"""Ends a reply at a stop string and never shows any of it. Pure Python; any thread."""

from collections.abc import Sequence


class StopStringFilter:
    """Watches one reply's text for stop strings, across all borders of tokens and deltas.

    Which one counts does not depend on how the text is cut: the stop string that is complete
    first; of two that are complete at the same character, the longer one. Held back is only the
    longest end of the text that a stop string begins with, since it may still become one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Watch for these strings; empty ones are ignored."""
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._is_hit = False

    @property
    def holds_back(self) -> bool:
        """Whether text waits that may become a stop string."""
        return bool(self._held)

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text.

        Returns:
            The text that is safe to show now, and whether a stop string is complete. After that
            nothing more comes out.
        """
        if self._is_hit:
            return "", True
        if not self._stops:
            return text, False
        text = self._held + text
        self._held = ""
        found = self._first_stop(text)
        if found is not None:
            self._is_hit = True
            return text[:found], True
        safe = len(text) - self._num_possible(text)
        self._held = text[safe:]
        return text[:safe], False

    def finish(self) -> str:
        """The text held back, now that no stop string can follow; "" after a hit."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> int | None:
        """Where the stop string that counts begins."""
        best: tuple[int, int] | None = None  # end, start: the smallest pair counts
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best):
                best = (start + len(stop), start)
        return None if best is None else best[1]

    def _num_possible(self, text: str) -> int:
        """Length of the longest end of the text that is a proper beginning of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0
