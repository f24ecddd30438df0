"""What a decode step costs by its number of rows. Pure Python; engine thread.

Weights are unpacked once for several rows, so a step of a few rows takes little longer than one of a single row: that
is what guessing ahead lives on. How much longer depends on model and machine, so it is measured at load
and refined with every step. It is kept in two parts, as they change at different pace: the *shape*, how many times as
long as one row so many rows take, which is nearly constant; and the *scale*, the milliseconds of one row now, which
grow with the history that attention reads and when other programs take cores.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from itertools import accumulate

PRIOR_SHAPE: Mapping[int, float] = {1: 1.0, 2: 1.07, 4: 1.2, 8: 1.6, 16: 3.2, 32: 6.4, 64: 12.8}
PRIOR_MS = 20.0
_SCALE_SHARE = 0.25  # of the newest step of one row in the scale
_SCALE_SHARE_OF_MANY = 0.1  # of one of more rows: part of what it says may be the shape's
_SHAPE_SHARE = 0.03
_NUM_FIRST = 4  # so many steps are averaged where nothing was measured
_DEAREST_ROW = 0.5  # of a step: what a further row counts as if none was measured
_MOST_TIMES_SCALE = (
    1.5  # a step counts as if it had taken at most so many times what was expected, or as little
)
_MOST_TIMES_SHAPE = 1.25
_MOST_TIMES_FIRST = 4.0


class StepCosts:
    """Milliseconds of a decode step by its number of rows, over all its sequences."""

    def __init__(self) -> None:
        """Begin with what is usual where weights are unpacked once for up to eight rows."""
        self._set(dict(PRIOR_SHAPE), PRIOR_MS)
        self._is_measured = False

    @property
    def plain_ms(self) -> float:
        """Milliseconds of a step of one row."""
        return self._scale

    def ms(self, num_rows: int) -> float:
        """What a step of so many rows, at least 1, takes: never less than one of fewer rows."""
        ratio = self._ratios.get(num_rows)
        if ratio is None:
            ratio = self._ratios[num_rows] = self._ratio(num_rows)
        return self._scale * ratio

    def calibrate(self, measured: Mapping[int, float]) -> None:
        """Take over what was measured.

        Args:
            measured: Milliseconds, best medians of a few steps, by number of rows. Below what was measured
                the shape is the usual one; beyond, further rows are at least as dear as those measured, and
                very dear if only one row was: a guess that was thought cheap costs the reply. What cannot be
                a duration is left out; an empty mapping changes nothing.
        """
        usable = {
            rows: ms for rows, ms in sorted(measured.items()) if rows >= 1 and _is_duration(ms)
        }
        if not usable:
            return
        usual = StepCosts()
        first, last = min(usable), max(usable)
        scale = usable[first] / usual._ratio(first)
        shape = {1: 1.0} | {rows: ms / scale for rows, ms in usable.items()}
        beyond = shape[last] / usual._ratio(last)
        row = (shape[last] - 1) / (last - 1) if last > 1 else _DEAREST_ROW
        shape |= {
            rows: max(beyond * times, shape[last] + row * (rows - last))
            for rows, times in PRIOR_SHAPE.items()
            if rows > last
        }
        self._set(shape, scale, known=[rows for rows in shape if rows <= last])
        self._is_measured = True

    def record(self, num_rows: int, ms: float) -> None:
        """Tell what one step of so many rows took. A pause of the machine counts as a slow step at most."""
        if num_rows < 1 or not _is_duration(ms):
            return
        if not self._is_measured:
            self._scale = ms / self._ratio(num_rows)
            self._is_measured = True
            return
        times = ms / self.ms(num_rows)
        if self._is_known(num_rows):  # or it tells of the shape alone
            share = _SCALE_SHARE if num_rows == 1 else _SCALE_SHARE_OF_MANY
            self._scale *= 1 + share * (_clamped(times, _MOST_TIMES_SCALE) - 1)
        if 1 < num_rows <= self._rows[-1]:
            self._refine(num_rows, ms / self.ms(num_rows))

    def _set(self, shape: Mapping[int, float], scale: float, known: Collection[int] = (1,)) -> None:
        self._rows = sorted(shape)
        self._seen = [_NUM_FIRST if rows in known else 0.0 for rows in self._rows]
        self._times = [shape[rows] for rows in self._rows]
        self._scale = scale
        self._level()

    def _level(self) -> None:
        # More rows never take less: noise in what was measured must not make them attractive.
        self._rising = list(accumulate(self._times, max))
        self._ratios: dict[int, float] = {}  # those that were asked for: dozens in each step

    def _ratio(self, num_rows: int) -> float:
        last = self._rows[-1]
        if num_rows >= last:
            return self._rising[-1] * num_rows / last
        above = bisect_left(self._rows, num_rows)
        if above == 0:
            return self._rising[0]
        weight = self._weight_above(num_rows, above)
        return (1 - weight) * self._rising[above - 1] + weight * self._rising[above]

    def _weight_above(self, num_rows: int, above: int) -> float:
        below_rows, above_rows = self._rows[above - 1 : above + 1]
        return (num_rows - below_rows) / (above_rows - below_rows)

    def _is_known(self, num_rows: int) -> bool:
        """Whether steps of about so many rows were seen."""
        above = min(bisect_left(self._rows, num_rows), len(self._rows) - 1)
        return self._seen[above] >= _NUM_FIRST

    def _refine(self, num_rows: int, times: float) -> None:
        """Move the two points around `num_rows`, each as near as it is; one row stays 1.

        A point of which little was seen becomes the average of its first steps.
        """
        above = bisect_left(self._rows, num_rows)
        weight = self._weight_above(num_rows, above)
        for index, part in ((above, weight), (above - 1, 1 - weight)):
            if index == 0 or part == 0.0:
                continue
            is_first = self._seen[index] < _NUM_FIRST
            share = 1 / (1 + self._seen[index]) if is_first else _SHAPE_SHARE
            most = _MOST_TIMES_FIRST if is_first else _MOST_TIMES_SHAPE
            self._times[index] *= 1 + share * part * (_clamped(times, most) - 1)
            self._seen[index] += part
        self._level()


def _is_duration(ms: float) -> bool:
    return math.isfinite(ms) and ms > 0.0


def _clamped(times: float, most: float) -> float:
    return min(max(times, 1 / most), most)
