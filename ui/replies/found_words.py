"""Where the words of a search are in a message. GUI thread, for the blocks."""

import re
from collections.abc import Sequence

from app.conversation import MessageId
from ui.replies.reply_layout import utf16_length
from ui.replies.reply_leaf import Leaf


class SoughtWords:
    """What is to be shown as soon as it is laid out; asked with each frame until then.

    Args:
        message_id: Where it is.
        words: Any of them; none stands for the beginning of the message.

    Attributes:
        message_id: Where it is.
        is_marked: Whether the words are selected by now; set by who does that.
    """

    def __init__(self, message_id: MessageId, words: Sequence[str]) -> None:
        self.message_id = message_id
        self.is_marked = False
        parts = "|".join(re.escape(word) for word in words)
        self._pattern = re.compile(parts, re.IGNORECASE) if parts else None
        self._found: Leaf | None = None
        self._num_searched = 0

    def leaf_in(self, leaves: Sequence[Leaf]) -> Leaf | None:
        """The first block of the message that holds one of the words.

        Args:
            leaves: Those that there are by now; none is searched twice but the last one, which may grow.
        """
        if self._found is not None and self._found in leaves:
            return self._found
        if self._found is not None or self._num_searched > len(leaves):
            self._num_searched = 0  # the message was made anew
        self._found = None
        if self._pattern is not None:
            new = leaves[max(0, self._num_searched - 1) :]
            search = self._pattern.search
            self._found = next((leaf for leaf in new if search(leaf.plain_text())), None)
        self._num_searched = len(leaves)
        return self._found

    def place_in(self, leaf: Leaf) -> tuple[int, int] | None:
        """Where a block holds the first of them, as positions of a selection; None if it cannot tell."""
        text = leaf.laid_out_text()
        match = self._pattern.search(text) if self._pattern is not None else None
        if match is None:
            return None
        start = utf16_length(text[: match.start()])
        return start, start + utf16_length(match.group())
