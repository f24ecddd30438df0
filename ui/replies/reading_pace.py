"""How long the rest of a prompt takes to read. Pure Python; GUI thread.

A token is compared with all before it, so later ones take longer: the time to read n tokens is a*n + b*n^2. Both
numbers are fitted to how far reading was when, by least squares.
"""

MIN_POINTS = 8
MIN_SHARE = 0.25
"""With fewer points, or less of the way behind it, a slow step would pass for a trend: until then all tokens count
alike."""


class ReadingPace:
    """How one prompt is being read, from some token on."""

    def __init__(self, num_tokens: int, now: float) -> None:
        """Begin.

        Args:
            num_tokens: How many are read, or known, already.
            now: In seconds.
        """
        self._first = num_tokens
        self._began = now
        self._num_points = 0
        self._seconds = 0.0  # of the newest point
        self._num_tokens = num_tokens
        # Sums over all points, of products of tokens, their squares, and seconds.
        self._uu = self._uv = self._vv = self._ut = self._vt = 0.0

    def note(self, num_tokens: int, now: float) -> None:
        """So many tokens are read now."""
        u, v, t = self._counted(num_tokens), self._squared(num_tokens), now - self._began
        if u <= 0.0 or t <= 0.0:
            return
        self._num_points += 1
        self._num_tokens, self._seconds = num_tokens, t
        self._uu += u * u
        self._uv += u * v
        self._vv += v * v
        self._ut += u * t
        self._vt += v * t

    def seconds_left(self, total_tokens: int) -> float | None:
        """Until so many are read; None if nothing is known yet."""
        if not self._num_points:
            return None
        a, b = self._fitted(MIN_SHARE * self._counted(total_tokens))
        u = self._counted(total_tokens) - self._counted(self._num_tokens)
        v = self._squared(total_tokens) - self._squared(self._num_tokens)
        return max(0.0, a * u + b * v)

    def _counted(self, num_tokens: int) -> float:
        return float(num_tokens - self._first)

    def _squared(self, num_tokens: int) -> float:
        return float(num_tokens**2 - self._first**2)

    def _fitted(self, least: float) -> tuple[float, float]:
        """Both numbers, a and b, not below 0; b is 0 until at least so many tokens are read."""
        determinant = self._uu * self._vv - self._uv * self._uv
        alike = self._seconds / self._counted(self._num_tokens)
        is_early = self._num_points < MIN_POINTS or self._counted(self._num_tokens) < least
        if is_early or determinant <= 1e-9 * self._uu * self._vv:
            return alike, 0.0
        a = (self._ut * self._vv - self._vt * self._uv) / determinant
        b = (self._vt * self._uu - self._ut * self._uv) / determinant
        if b <= 0.0:
            return alike, 0.0
        if a <= 0.0:
            return 0.0, self._seconds / self._squared(self._num_tokens)
        return a, b
