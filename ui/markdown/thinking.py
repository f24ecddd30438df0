"""Parts a reply that grows into what the model thought and what it says. Pure Python.

Only a `<think>` at the very beginning counts: anywhere else it is text that the model wrote about.
"""

_OPENER = "<think>"
_CLOSER = "</think>"


class ThinkingSplitter:
    """Takes deltas, gives deltas.

    Attributes:
        is_thinking: The opener came and the closer has not.
        has_thought: The opener came.
    """

    def __init__(self) -> None:
        self.is_thinking = False
        self.has_thought = False
        self._is_decided = False
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """What to add to the thoughts and what to the reply."""
        text = self._held + text
        self._held = ""
        if not self._is_decided:
            start = text.lstrip()
            if len(start) < len(_OPENER) and _OPENER.startswith(start):
                self._held = text
                return "", ""
            self._is_decided = True
            if start.startswith(_OPENER):
                self.is_thinking = self.has_thought = True
                text = start[len(_OPENER) :]
        if not self.is_thinking:
            return "", text
        thought, closer, reply = text.partition(_CLOSER)
        if closer:
            self.is_thinking = False
            return thought, reply
        length = _held_length(text)
        self._held = text[len(text) - length :]
        return text[: len(text) - length], ""

    def finish(self) -> tuple[str, str]:
        """The text is complete: what was held back belongs to the part that it is in."""
        held, self._held = self._held, ""
        return (held, "") if self.is_thinking else ("", held)


def _held_length(text: str) -> int:
    """Length of the longest end of `text` that the closer starts with."""
    for length in range(min(len(_CLOSER) - 1, len(text)), 0, -1):
        if text.endswith(_CLOSER[:length]):
            return length
    return 0
