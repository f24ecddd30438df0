"""Bounds on what a chat template may cost. Pure Python; any thread.

A template is a program out of a model file. Jinja's sandbox keeps it from Python's insides, not
from running for hours or asking for a string of a terabyte. Three bounds do that, all checked
*before* an operation, since an operation in C cannot be interrupted:

    time     looked at with every turn of a loop and every call (`Budget.tick`)
    volume   characters made by all operations together (`Budget.spend`)
    width    numbers that only blow text up: of `center`, `*`, `%099d` (`Budget.check_width`)
"""

import re
import time
from collections.abc import Callable

from inference.errors import ChatTemplateError

HINT = "Choose another model."
MAX_WALKED = 300_000
MAX_WIDTH = 10_000
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{5})")  # %099999d, %*d
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(?:\{|\d{5})")  # {:099999d}, {:{width}}


class TemplateBoundsError(ChatTemplateError):
    """A template took too long or would write too much; trying again would not help."""


class Budget:
    """What one rendering may still use."""

    def __init__(
        self, max_seconds: float, max_chars: int, clock: Callable[[], float] = time.thread_time
    ) -> None:
        """Start the clock.

        Args:
            max_seconds: From now on.
            max_chars: Characters that all operations may make together, results in between too.
            clock: Seconds, never going back: of this thread's work, as a busy machine is no fault of a template.
        """
        self._clock = clock
        self._max_seconds = max_seconds
        self._deadline = clock() + max_seconds
        self._chars_left = max_chars

    def tick(self) -> None:
        """Stop the rendering if its time is over."""
        if self._clock() > self._deadline:
            raise TemplateBoundsError(
                f"The model's chat template took longer than {self._max_seconds:g} s.",
                hint=HINT,
            )

    def spend(self, num_chars: int) -> None:
        """Take characters off the budget before they are made."""
        self.tick()
        self._chars_left -= num_chars
        if self._chars_left < 0:
            raise too_much_text()

    def check_width(self, value: object) -> None:
        """Refuse a number that, as a width or count, would only blow the text up."""
        if isinstance(value, int) and abs(value) > MAX_WIDTH:
            self.spend(abs(value))

    def check_size(self, value: object) -> None:
        """Refuse to walk through a container that is endless on paper; text is free."""
        self.tick()
        if isinstance(value, (list, tuple, dict, set, frozenset)):
            self.size_of(value)

    def check_percent_format(self, pattern: str) -> None:
        """Refuse a format for `%` with a huge or variable width."""
        if _WIDE_PERCENT.search(pattern.replace("%%", "")):
            raise _too_wide()

    def check_brace_format(self, pattern: str) -> None:
        """Refuse a format for `str.format` with a huge or variable width."""
        if _WIDE_BRACES.search(pattern.replace("{{", "").replace("}}", "")):
            raise _too_wide()

    def check_count(self, value: object) -> None:
        """Refuse a number of parts that no chat needs."""
        if isinstance(value, int) and abs(value) > MAX_WIDTH:
            raise too_much_text()

    def size_of(self, value: object) -> int:
        """About how many characters the value has as text.

        Containers are walked, since shared parts count each time they would be written: a list that
        holds another twice, forty levels deep, is small in memory and endless on paper.
        """
        if isinstance(value, (str, bytes)):
            return len(value)
        if not isinstance(value, (list, tuple, dict, set, frozenset)):
            return 16
        total = num_walked = 0
        open_parts: list[object] = [value]
        while open_parts:
            part = open_parts.pop()
            if isinstance(part, dict):
                open_parts += part.keys()
                open_parts += part.values()
            elif isinstance(part, (list, tuple, set, frozenset)):
                open_parts += part
            total += len(part) if isinstance(part, (str, bytes)) else 2
            num_walked += 1
            if num_walked > MAX_WALKED:
                raise too_much_text()
        return total


def too_much_text() -> TemplateBoundsError:
    """The error for a template that would write too much."""
    return TemplateBoundsError("The model's chat template writes too much text.", hint=HINT)


def _too_wide() -> TemplateBoundsError:
    return TemplateBoundsError(
        "The model's chat template uses a format that is too wide.", hint=HINT
    )


def check_power(base: object, exponent: object) -> None:
    """Refuse a power with thousands of digits."""
    if not (isinstance(base, int) and isinstance(exponent, int)):
        return
    if abs(base) > 1:
        check_num_bits(base.bit_length() * abs(exponent))


def check_num_bits(num_bits: int) -> None:
    """Refuse a whole number of that many bits, if they are thousands."""
    if num_bits > MAX_WIDTH:
        raise TemplateBoundsError(
            "The model's chat template computes a number that is too big.", hint=HINT
        )
