"""Emoji of several code points appear at once. Pure Python; engine thread.

A family, a flag, a skin tone or a profession is several code points that tokens cut anywhere. Shown
one by one they would flicker through other pictures: a man, then a man and a woman, then the family.
So an emoji at the very end is held back until what follows shows that it is complete. Nothing else
is: a letter may get a combining mark later, but it is the same letter before.
"""

import regex

# Grapheme clusters as in Unicode Standard Annex #29; the library keeps up with its tables.
_LAST_CLUSTER = regex.compile(r"\X\Z")
_MAY_GROW = regex.compile(r"[\p{Extended_Pictographic}\p{Regional_Indicator}]")
_MAX_HELD = 64  # code points; the longest emoji in use have about a dozen


class EmojiFilter:
    """Passes text on, but for an emoji at the end that may not be complete."""

    def __init__(self) -> None:
        self._held = ""

    @property
    def holds_back(self) -> bool:
        """Whether an emoji waits for what follows."""
        return bool(self._held)

    def push(self, text: str) -> str:
        """The text that may be shown now, with what was held before it."""
        if not text:
            return ""
        text = self._held + text
        self._held = ""
        last = _LAST_CLUSTER.search(text, pos=max(0, len(text) - _MAX_HELD))
        if last is None or not _MAY_GROW.search(last[0]) or len(last[0]) >= _MAX_HELD:
            return text
        self._held = last[0]
        return text[: last.start()]

    def finish(self) -> str:
        """What is held: there comes no more."""
        held, self._held = self._held, ""
        return held
