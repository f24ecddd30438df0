"""How fast replies come while a draft model guesses, as seen. Pure Python; engine thread."""

PROVEN_SPEED = 1.1
_EXPECTED_WEIGHT = 8  # steps that what is expected counts as
_PROVEN_STEPS = 16  # so many must be seen: then little of what is expected is left
_NEW_SHARE = 0.1  # of the newest step, once there were a few
_BACK_SHARE = (
    0.003  # of the way back to what is expected, with each step in which it could guess and did not
)


class DraftSpeed:
    """A moving average over the steps that verified guesses of a draft model, of one source.

    A draft model ends its guesses where it becomes unsure, so what they bring is more than their acceptance by
    position tells. It is seen as a whole, and compared with what guesses from the chat's text should bring.
    """

    def __init__(self) -> None:
        """Nothing was seen."""
        self._seen = 0.0  # of the average, what was seen
        self._unseen_share = 1.0
        self._num_seen = 0

    def times(self, expected: float) -> float:
        """How many times as fast as without guessing, if that much was to be expected before anything was seen."""
        return self._seen + self._unseen_share * expected

    @property
    def is_proven(self) -> bool:
        """Whether it was seen, and not only expected, to make replies faster."""
        return self._num_seen >= _PROVEN_STEPS and self.times(1.0) >= PROVEN_SPEED

    def record(self, num_tokens: float, took_ms: float, plain_ms: float) -> None:
        """Tell what a step brought.

        Args:
            num_tokens: For each of its sequences.
            took_ms: With the making of the guesses.
            plain_ms: What it would have taken without.
        """
        if took_ms <= 0.0:
            return
        self._num_seen += 1
        share = max(_NEW_SHARE, 1 / (_EXPECTED_WEIGHT + self._num_seen))
        self._seen += share * (num_tokens * plain_ms / took_ms - self._seen)
        self._unseen_share *= 1 - share

    def pass_by(self) -> None:
        """Another guess was preferred: what was seen grows old."""
        self._seen *= 1 - _BACK_SHARE
        self._unseen_share += _BACK_SHARE * (1 - self._unseen_share)
