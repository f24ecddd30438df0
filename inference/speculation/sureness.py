"""How sure the model itself was of its last tokens, which tells whether another can guess the next ones.

Pure Python; engine thread. In code and lists a model is sure, and a smaller model of its family mostly agrees; where it
has a choice of words, neither. This is known before anything is guessed, and costs next to nothing.
"""

from inference.speculation.acceptance import PRIORS

UNSURE, BETWEEN, SURE = SOURCES = ("draft unsure", "draft", "draft sure")
"""Whose acceptance is counted apart, see `base.Proposal`."""

_AT_FIRST = 0.7
_BOUNDS = (0.65, 0.85)
_NEW_SHARE = 0.15  # of the newest token

assert set(SOURCES) <= set(PRIORS), "each begins with something"


class Sureness:
    """A moving average of the probability of the likeliest token, for one reply, and how it was so far."""

    def __init__(self) -> None:
        """Begin with what is usual."""
        self._average = _AT_FIRST
        self._num_tokens = dict.fromkeys(SOURCES, 0)

    def note(self, probability: float, num_tokens: int) -> None:
        """Tell how likely the likeliest token was, on average, at each of the newest tokens."""
        share = 1 - (1 - _NEW_SHARE) ** num_tokens
        self._average += share * (probability - self._average)
        self._num_tokens[self.source] += num_tokens

    @property
    def source(self) -> str:
        """The one of `SOURCES` whose guesses are to be expected now."""
        return SOURCES[sum(self._average >= bound for bound in _BOUNDS)]

    @property
    def shares(self) -> dict[str, float]:
        """Which share of the reply each source was to be expected after; all of it the present one at first."""
        total = sum(self._num_tokens.values())
        if not total:
            return {self.source: 1.0}
        return {source: count / total for source, count in self._num_tokens.items()}
