"""How many CPU threads a decode step takes, found out while decoding. Pure Python; engine thread.

A step of one token reads all weights once. Often one core can read almost all that the memory gives;
a second one then adds waiting at some two hundred small products, and gets in the way of the window
and of other programs. Where memory is faster, more cores pay. No table knows which machine this is
and what else runs on it, so steps of a reply themselves are timed: each number of threads gets a few
steps, the fewest threads that are about as fast as any are kept, and now and then it is asked again.

The number of threads changes how long a step takes, never what it computes (see `linear`).
"""

import math

_STEPS_OF_TRIAL = 3
_STEPS_BETWEEN_TRIALS = 500
_WORTH_MORE_THREADS = 0.85  # more threads must take at most this share of the time
_HOPELESS = 1.5  # a first step this much slower than the best ends its trial


class StepThreads:
    """Chooses for each step of one token.

    Use: `choose()`, run the step, `record(seconds)`.
    """

    def __init__(self, most: int) -> None:
        """Begin with a trial.

        Args:
            most: Threads there may be, at least 1.
        """
        self._counts = _thread_counts(most)
        self._best = most
        self._steps_left = 0
        self._begin_trial()

    def choose(self) -> int:
        """Threads for the next step."""
        return self._counts[self._on_trial] if self._on_trial is not None else self._best

    def record(self, seconds: float) -> None:
        """Tell how long the step took that ran with the last choice."""
        if self._on_trial is None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self._begin_trial()
            return
        times = self._times[self._on_trial]
        times.append(seconds)
        fastest = min((min(known) for known in self._times if known), default=math.inf)
        if len(times) == _STEPS_OF_TRIAL or seconds > _HOPELESS * fastest:
            self._go_on()

    def _begin_trial(self) -> None:
        self._times: list[list[float]] = [[] for _ in self._counts]
        self._on_trial: int | None = 0
        if len(self._counts) == 1:
            self._finish_trial()

    def _go_on(self) -> None:
        assert self._on_trial is not None, "only a trial goes on"
        if self._on_trial + 1 < len(self._counts):
            self._on_trial += 1
        else:
            self._finish_trial()

    def _finish_trial(self) -> None:
        best, best_seconds = self._counts[0], min(self._times[0], default=0.0)
        for count, times in zip(self._counts[1:], self._times[1:], strict=True):
            if min(times) < best_seconds * _WORTH_MORE_THREADS:
                best, best_seconds = count, min(times)
        self._best = best
        self._on_trial = None
        self._steps_left = _STEPS_BETWEEN_TRIALS


def _thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... and the most."""
    counts = [2**power for power in range(most.bit_length()) if 2**power < most]
    return [*counts, most]
