"""How likely guesses are right, by who made them and by position. Pure Python; engine thread.

What is counted is conditional: of the guesses whose first i tokens were right, how many had the next one right. A
position that was seldom reached leans on all positions of its source, and a source that was seldom heard on what
is usual. Old counts fade, so that another kind of text is noticed within a few guesses.
"""

from inference.config import MAX_DRAFT_TOKENS

PRIORS = {
    "ngram 2": 0.35,
    "ngram 3-4": 0.5,
    "ngram 5-8": 0.65,
    "ngram 9+": 0.8,
    "ngram near": 0.6,
    "ngram resumed": 0.3,
    "draft unsure": 0.4,
    "draft": 0.6,
    "draft sure": 0.85,
}
_UNKNOWN_PRIOR = 0.5
_PRIOR_WEIGHT = 3.0  # tokens that the prior counts as
_SOURCE_WEIGHT = 8.0  # tokens that the source's rate counts as, at each position
_KEEP = 0.9  # of what was counted at a position, and of the whole source, with each token that is tested there


class Acceptance:
    """What is known of one source."""

    def __init__(self, prior: float) -> None:
        """Begin with a probability that each next token is right."""
        self._prior = prior
        self._all = _Count()
        self._positions = [_Count() for _ in range(MAX_DRAFT_TOKENS)]

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Count a guess of which the first `num_accepted` tokens were right and, if there was one, the next wrong."""
        for position in range(min(num_drafted, num_accepted + 1, MAX_DRAFT_TOKENS)):
            is_right = position < num_accepted
            self._all.add(is_right)
            self._positions[position].add(is_right)

    def fade(self) -> None:
        """Trust what was counted half as much, as it is old."""
        for count in (self._all, *self._positions):
            count.fade(0.5)

    def survival(self, num_tokens: int) -> list[float]:
        """For each of the first tokens of a guess the probability that it and all before it are right."""
        rate = self._all.rate(self._prior, _PRIOR_WEIGHT)
        survival, together = [], 1.0
        for count in self._positions[:num_tokens]:
            together *= count.rate(rate, _SOURCE_WEIGHT)
            survival.append(together)
        return survival


class _Count:
    """Tokens tested and found right, of which old ones fade."""

    __slots__ = ("_right", "_tested")

    def __init__(self) -> None:
        self._tested = 0.0
        self._right = 0.0

    def add(self, is_right: bool) -> None:
        self.fade(_KEEP)
        self._tested += 1.0
        self._right += is_right

    def fade(self, keep: float) -> None:
        self._tested *= keep
        self._right *= keep

    def rate(self, usual: float, weight: float) -> float:
        return (self._right + weight * usual) / (self._tested + weight)


def acceptance_of(source: str) -> Acceptance:
    """What is known of a source that was never heard."""
    return Acceptance(PRIORS.get(source, _UNKNOWN_PRIOR))
