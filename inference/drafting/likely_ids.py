"""How much of the vocabulary a draft model chooses among. Pure Python; engine thread.

A vocabulary made by joining frequent pairs has its commonest tokens first: of 152,000, the first 65,000 are
98 % of English and of code, and the weights behind the others are a third of what a small model reads for
each token. A guess need not be right, so rare tokens can be left out: as many as the chats on hand
can do without. In another language that may be none.
"""

from collections.abc import Sequence

PARTS = (0.125, 0.1875, 0.25, 0.375, 0.5, 0.75)
"""Of the vocabulary, what may be looked at, beside all of it."""

_MOST_AT_ONCE = 1024
"""Tokens of a long prompt that are looked at, its last ones."""

_MEMORY = 2048
"""Tokens after which what was seen counts half."""


class LikelyIds:
    """Counts how many of the tokens seen are among the first of the vocabulary."""

    def __init__(self, vocab_size: int, *, unit: int, share: float) -> None:
        """Begin without knowledge: all ids may be needed.

        Args:
            vocab_size: V.
            unit: What is looked at is a multiple of it, or V.
            share: Of the time of a token, what all V take.
        """
        self._share = share
        self._sizes = [vocab_size]
        for part in PARTS:
            size = int(vocab_size * part) // unit * unit
            if 0 < size < vocab_size:
                self._sizes.append(size)
        self._vocab_size = vocab_size
        self._num_seen = 0.0
        self._num_within = [0.0] * len(self._sizes)

    def note(self, token_ids: Sequence[int]) -> None:
        """Tell what was said, by whomever."""
        newest = token_ids[-_MOST_AT_ONCE:]
        fading = 0.5 ** (len(newest) / _MEMORY)
        self._num_seen = self._num_seen * fading + len(newest)
        for index, size in enumerate(self._sizes):
            count = sum(token_id < size for token_id in newest)
            self._num_within[index] = self._num_within[index] * fading + count

    @property
    def num_ids(self) -> int:
        """How many first ids are worth looking at now.

        A token that is missed costs itself and the rest of its run, hence the square.
        """
        best, found = 0.0, self._vocab_size
        for size, num_within in zip(self._sizes, self._num_within, strict=True):
            cost = 1 - self._share * (1 - size / self._vocab_size)
            worth = (num_within / max(1.0, self._num_seen)) ** 2 / cost
            if worth > best:
                best, found = worth, size
        return found
