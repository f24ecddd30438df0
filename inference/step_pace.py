"""How many tokens a step may have, so that none takes long. Pure Python; engine thread.

A step cannot be broken off, and other chats wait for their next token until it ends. How long a given
number of tokens takes depends on model and machine, from 0.1 s to several seconds, so it is measured while
prompts are read. Only where a token's values do not depend on the step it is computed in: elsewhere the
last digits of a reply would depend on how busy the machine was.
"""

TARGET_S = 0.3
FEWEST = 32  # a step of fewer rows wastes what many rows share
_MULTIPLE = 16
_OLD_SHARE = 0.5  # of the rate known so far; the rest is the last step's


def usual_step_tokens(device_type: str, *, has_paged_kernel: bool) -> int:
    """Most tokens of a step if nobody says.

    On a GPU weights that stay packed are unpacked once per step, which pays from several hundred rows on. Where
    attention has no kernel of its own there, it keeps the scores of all rows in memory.

    Args:
        device_type: torch's word for where the model is.
        has_paged_kernel: Whether a kernel reads the blocks.
    """
    if device_type != "cuda":
        return 256
    return 2048 if has_paged_kernel else 512


class StepPace:
    """Chooses the token budget of the next step.

    Attributes:
        budget: Most tokens of the next step.
    """

    def __init__(self, most: int) -> None:
        """Begin with `most` tokens, at least 1, or fewer until something is known."""
        self._most = most
        self._rate = 0.0
        self.budget = min(most, 4 * FEWEST)

    def record(self, num_tokens: int, seconds: float) -> None:
        """Tell how long a step of so many tokens took; short ones say nothing about long ones."""
        if num_tokens < min(FEWEST, self._most) or seconds <= 0.0:
            return
        rate = num_tokens / seconds
        self._rate = rate if not self._rate else _OLD_SHARE * self._rate + (1 - _OLD_SHARE) * rate
        wanted = int(self._rate * TARGET_S) // _MULTIPLE * _MULTIPLE
        self.budget = max(min(FEWEST, self._most), min(wanted, self._most))
