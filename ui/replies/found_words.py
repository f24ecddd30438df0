"""Where the words of a search are in a message. GUI thread, for the blocks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.conversation import MessageId
from ui.replies.reply_layout import utf16_length
from ui.replies.reply_leaf import Leaf


@dataclass(frozen=True, slots=True)
class SoughtWords:
    """What is to be shown as soon as it is laid out.

    Attributes:
        words: Any of them; none stands for the beginning of the message.
    """

    message_id: MessageId
    words: tuple[str, ...]

    def leaf_in(self, leaves: Sequence[Leaf]) -> Leaf | None:
        """The first of these blocks that holds one of the words."""
        pattern = self._pattern()
        if pattern is None:
            return None
        return next((leaf for leaf in leaves if pattern.search(leaf.plain_text())), None)

    def place_in(self, leaf: Leaf) -> tuple[int, int] | None:
        """Where a block holds the first of them, as positions of a selection; None if it cannot tell."""
        text, pattern = leaf.laid_out_text(), self._pattern()
        match = pattern.search(text) if pattern is not None else None
        if match is None:
            return None
        start = utf16_length(text[: match.start()])
        return start, start + utf16_length(match.group())

    def _pattern(self) -> re.Pattern[str] | None:
        words = [re.escape(word) for word in self.words]
        return re.compile("|".join(words), re.IGNORECASE) if words else None
