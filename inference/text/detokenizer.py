"""Token ids to text while they come, in whole characters. Pure Python; engine thread."""

import codecs

from inference.text.tokenizer import Tokenizer


class StreamDetokenizer:
    """Turns one reply's tokens into text, one at a time.

    All strings joined, `finish()` included, are `tokenizer.decode(ids)`, for any ids at all. Each
    token costs the length of its own text: nothing is decoded twice. The bytes of a character that
    is not complete yet are held back (at most three), so no U+FFFD is shown for half a character.
    Bytes that are wrong in themselves come out as U+FFFD as soon as that is certain.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes_of = tokenizer.reply_reader()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strips_space = tokenizer.prefix.is_stripped

    @property
    def holds_back(self) -> bool:
        """Whether a character is not complete."""
        return bool(self._decoder.getstate()[0])

    def push(self, token_id: int) -> str:
        """The text that this token completes; often "", as for control tokens."""
        return self._started(self._decoder.decode(self._bytes_of(token_id)))

    def finish(self) -> str:
        """What was held back: U+FFFD if the reply ends inside a character, else ""."""
        return self._started(self._decoder.decode(b"", True))

    def _started(self, text: str) -> str:
        """Take the leading space off the very first character, as the one-shot decode does."""
        if self._strips_space and text:
            self._strips_space = False
            return text.removeprefix(" ")
        return text
