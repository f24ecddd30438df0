"""How fast replies come while a draft model guesses, as seen. Pure Python; engine thread."""

USUAL_SPEED = 1.25
PROVEN_SPEED = 1.1
_USUAL_WEIGHT = 8  # steps that it counts as
_PROVEN_STEPS = 16  # so many must be seen: then little of what is usual is left
_NEW_SHARE = 0.1  # of the newest step, once there were a few
_BACK_SHARE = (
    0.003  # of the way back to what is usual, with each step in which it could guess and did not
)


class DraftSpeed:
    """A moving average over the steps that verified guesses of a draft model.

    A draft model ends its guesses where it becomes unsure, so what they bring is more than their acceptance by
    position tells. It is seen as a whole, and compared with what guesses from the chat's text should bring.

    Attributes:
        times: How many times as fast as without guessing; what is usual as long as nothing was seen.
    """

    def __init__(self) -> None:
        """Begin with what is usual."""
        self.times = USUAL_SPEED
        self._num_seen = 0

    @property
    def is_proven(self) -> bool:
        """Whether it was seen, and not only expected, to make replies faster."""
        return self._num_seen >= _PROVEN_STEPS and self.times >= PROVEN_SPEED

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
        share = max(_NEW_SHARE, 1 / (_USUAL_WEIGHT + self._num_seen))
        self.times += share * (num_tokens * plain_ms / took_ms - self.times)

    def pass_by(self) -> None:
        """Another guess was preferred: what was seen grows old."""
        self.times += _BACK_SHARE * (USUAL_SPEED - self.times)
