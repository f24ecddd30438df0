"""How long a draft model takes, measured while it guesses. Pure Python; engine thread."""

_LONG_TOKENS = 16
"""With so many tokens for each sequence a step tells what reading takes."""

_NEW_SHARE = 0.2
"""Of the last step in the averages, once there were a few."""


class DraftPace:
    """Moving averages of two kinds of steps.

    Attributes:
        token_ms: What a guessed token takes, in a step of one for each sequence; None until known.
        read_ms_per_token: What a token takes in a step of many; None until known.
    """

    def __init__(self) -> None:
        """Begin without knowledge."""
        self.token_ms: float | None = None
        self.read_ms_per_token: float | None = None
        self._num_short = 0
        self._num_long = 0

    def record(self, num_sequences: int, num_tokens: int, seconds: float) -> None:
        """Tell how long a step took; one between both kinds says nothing of either.

        Args:
            num_sequences: At least 1.
            num_tokens: Of all of them.
            seconds: Until the guesses were there.
        """
        ms = seconds * 1000 / num_tokens
        if num_tokens == num_sequences:
            self._num_short += 1
            self.token_ms = _moved(self.token_ms, ms, self._num_short)
        elif num_tokens >= _LONG_TOKENS * num_sequences:
            self._num_long += 1
            self.read_ms_per_token = _moved(self.read_ms_per_token, ms, self._num_long)


def _moved(average: float | None, value: float, count: int) -> float:
    """The plain mean of the first few values, then a moving one."""
    if average is None:
        return value
    return average + max(_NEW_SHARE, 1 / count) * (value - average)
