"""Guesses from what one chat has said before. Pure Python; engine thread.

Answers repeat: a quoted sentence, code that is changed in one place, a list whose lines are alike. The last
tokens are looked up in the prompt and the reply so far, and what followed them there is the guess (prompt
lookup decoding, Saxena 2023). One proposer belongs to one sequence: what one chat said is never guessed in another.

Beyond the plain look-up, a copy is *followed*: while the tokens that come are those of one place, that place
stays the source, although a part of it may have been said again elsewhere. Where a copy is left, because a word is
changed in it, it is looked for again nearby first.
"""

from array import array
from collections.abc import Collection, Iterable, Sequence

from inference.config import MAX_DRAFT_TOKENS
from inference.speculation.base import Proposal

_GRAM = 2  # tokens that are looked up; places are then compared further back
_MAX_PLACES = 64  # of one gram, the latest: a bound, however often a text repeats itself
_MAX_MATCH = 16  # tokens compared: a longer match is no surer
_SURE_MATCH = 8  # from here on a copy is followed without looking for anything better
_COPY_MATCH = 4  # from here on a match is a copy that may be taken up again nearby
_NEAR_TOKENS = 24  # how far behind the place where it was left
_NEAR_AGE = 16  # tokens since then
_RESUME_AGE = 3  # so long it may be one word for another, behind which all goes on as before
_NEAR_WORTH = 3  # so many tokens longer must a match elsewhere be

RESUMED = "ngram resumed"
NEAR = "ngram near"
SOURCES = ("ngram 2", "ngram 3-4", "ngram 5-8", "ngram 9+", NEAR, RESUMED)


class NgramProposer:
    """Looks up the end of one sequence in all that comes before it."""

    def __init__(self, token_ids: Sequence[int], stop_ids: Collection[int] = ()) -> None:
        """Begin with a prompt, or with all that is there.

        Args:
            token_ids: Of the sequence so far; any length; ids >= 0.
            stop_ids: Ids that end a reply. A guess may end with one and never goes on behind it.
        """
        self._stop_ids = frozenset(stop_ids)
        self._token_ids: list[int] = []
        # What followed a gram: by its hash the index of the next token, the latest; and for each such index
        # the one before it (0 is none). Hashes may collide, as tokens are compared anyway.
        self._latest: dict[int, int] = {}
        self._earlier = array("i")
        # The copy that is followed: the index of the token that should come next, and how many tokens
        # before it are those at the end (0: no copy).
        self._next = 0
        self._length = 0
        # The last place where a copy was surely followed, and how many tokens came since.
        self._left_at = 0
        self._left_age = _NEAR_AGE + 1
        self.extend(token_ids)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append what was said; each token takes about a microsecond, however long the sequence is."""
        known = self._token_ids
        for token_id in token_ids:
            if self._length or self._left_age <= _NEAR_AGE:
                self._follow(token_id)
            index = len(known)
            if index >= _GRAM:
                key = hash((known[-2], known[-1]))
                self._earlier.append(self._latest.get(key, 0))
                self._latest[key] = index
            else:
                self._earlier.append(0)
            known.append(token_id)

    def propose(self, num_tokens: int) -> Proposal | None:
        """Guess what comes next.

        Args:
            num_tokens: Most tokens wanted; more than `MAX_DRAFT_TOKENS` are never given.

        Returns:
            What followed the longest match, the latest of several; None if nothing fits. A text that
            repeats itself goes on repeating.
        """
        wanted = min(num_tokens, MAX_DRAFT_TOKENS)
        if wanted < 1:
            return None
        source = _name_of(self._length) if self._length >= _SURE_MATCH else self._look_up()
        if self._length:
            return Proposal(self._what_follows(self._next, wanted), source)
        if self._may_resume:
            return Proposal(self._what_follows(self._left_at + 1, wanted), RESUMED)
        return None

    def _follow(self, token_id: int) -> None:
        """Go on with the copy, or leave it; before `token_id` is appended."""
        if self._length and self._token_ids[self._next] == token_id:
            self._take(self._next + 1, self._length + 1)
        else:
            self._length = 0
        if self._length < _COPY_MATCH:
            self._left_age += 1

    def _take(self, index: int, length: int) -> None:
        self._next, self._length = index, length
        if length >= _COPY_MATCH:
            self._left_at, self._left_age = index, 0

    @property
    def _is_just_left(self) -> bool:
        return 0 < self._left_age <= _NEAR_AGE

    @property
    def _may_resume(self) -> bool:
        return 0 < self._left_age <= _RESUME_AGE

    def _look_up(self) -> str:
        """Follow the best match there is, if any, and say of which kind it is."""
        index, length = self._longest()
        if length <= self._length:
            index, length = self._next, self._length
        if self._is_just_left:
            near_index, near_length = self._nearest()
            if near_length and near_length + _NEAR_WORTH >= length:
                self._take(near_index, near_length)
                return NEAR if near_length < _COPY_MATCH else _name_of(near_length)
        self._take(index, length)
        return _name_of(length)

    def _longest(self) -> tuple[int, int]:
        """The index behind the longest match in all that was said, and its length; (0, 0) if none."""
        known = self._token_ids
        best = (0, 0)
        if len(known) < _GRAM:
            return best
        index = self._latest.get(hash((known[-2], known[-1])), 0)
        for _ in range(_MAX_PLACES):
            if not index:
                break
            length = self._match_before(index)
            if length > best[1]:
                best = (index, length)
                if length == _MAX_MATCH:
                    break
            index = self._earlier[index]
        return best

    def _nearest(self) -> tuple[int, int]:
        """The same for the longest match shortly behind the place where a copy was left."""
        best = (0, 0)
        end = min(self._left_at + 1 + _NEAR_TOKENS, len(self._token_ids))
        for index in range(self._left_at + 1, end):
            length = self._match_before(index)
            if length > best[1]:
                best = (index, length)
        return best

    def _match_before(self, index: int) -> int:
        """How many tokens before `index` are those at the end, up to `_MAX_MATCH`."""
        known = self._token_ids
        shift = len(known) - index
        for length in range(min(_MAX_MATCH, index)):
            if known[index - 1 - length] != known[index - 1 - length + shift]:
                return length
        return min(_MAX_MATCH, index)

    def _what_follows(self, index: int, wanted: int) -> tuple[int, ...]:
        """`wanted` tokens from `index` on, or fewer: none comes after one that ends a reply."""
        known = self._token_ids[index : index + wanted]
        token_ids = (known * (wanted // len(known) + 1))[:wanted]
        for place, token_id in enumerate(token_ids):
            if token_id in self._stop_ids:
                return tuple(token_ids[: place + 1])
        return tuple(token_ids)


def _name_of(length: int) -> str:
    if length <= 2:
        return "ngram 2"
    if length <= 4:
        return "ngram 3-4"
    return "ngram 5-8" if length <= 8 else "ngram 9+"
