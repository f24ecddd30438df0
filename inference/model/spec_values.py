"""Typed reading of a model's configuration for a `ModelSpec`. Pure Python."""

import math
from collections.abc import Mapping

from inference.model.spec import UnsupportedSpecError


class SpecValues:
    """Reads values of transformers' names; what is not as it should be is nothing for us."""

    def __init__(
        self, values: Mapping[str, object], defaults: Mapping[str, object] | None = None
    ) -> None:
        """Take values and what stands for those that are missing.

        Args:
            values: Plain values, as in a config.json.
            defaults: Used for keys that are not there at all; a null counts as there.
        """
        self._values = {**(defaults or {}), **values}

    def has(self, key: str) -> bool:
        """Whether there is a value other than null."""
        return self._values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number > 0; `default` stands for null and missing.

        Raises:
            UnsupportedSpecError: It is none.
        """
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise _odd(key, value)
        return value

    def count(self, key: str) -> int:
        """A whole number >= 0; 0 stands for null and missing.

        Raises:
            UnsupportedSpecError: It is none.
        """
        return self.integer(key) if self._get(key, 0) != 0 else 0

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number > 0; `default` stands for null and missing.

        Raises:
            UnsupportedSpecError: It is none.
        """
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _odd(key, value)
        if not math.isfinite(value) or value <= 0:
            raise _odd(key, value)
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A finite number > 0, or None for null and missing."""
        return self.number(key) if self.has(key) else None

    def flag(self, key: str, default: bool) -> bool:
        """Yes or no; `default` stands for null and missing."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise _odd(key, value)
        return value

    def word(self, key: str, default: str | None = None) -> str:
        """A text; `default` stands for null and missing."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise _odd(key, value)
        return value

    def numbers(self, key: str) -> list[float]:
        """A list of numbers."""
        value = self._get(key, None)
        if not isinstance(value, list) or not all(
            isinstance(item, int | float) and not isinstance(item, bool) for item in value
        ):
            raise _odd(key, value)
        return [float(item) for item in value]

    def words(self, key: str) -> list[str]:
        """A list of texts."""
        value = self._get(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _odd(key, value)
        return [str(item) for item in value]

    def table(self, key: str) -> dict[str, object]:
        """Values inside a value; empty for null and missing."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise _odd(key, value)
        return dict(value)

    def _get(self, key: str, default: object) -> object:
        value = self._values.get(key)
        return default if value is None else value


def _odd(key: str, value: object) -> UnsupportedSpecError:
    return UnsupportedSpecError(f"the value {str(value)[:40]!r} of {key!r:.60}")
