"""Typed, checked access to the metadata of a GGUF file. Pure Python."""

import math
from collections.abc import Mapping
from pathlib import Path

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.gguf_types import GgufTensor, GgufValue
from inference.model.size_limits import MAX_INT

_RANGE = (1, MAX_INT)


class GgufMetadata:
    """Reads keys of one architecture, such as "llama.block_count", and says what is wrong.

    Attributes:
        architecture: The word that all keys start with.
        path: The file, for messages.
        tensors: The file's tensor table; some properties are only visible there.
    """

    def __init__(
        self,
        metadata: Mapping[str, GgufValue],
        tensors: Mapping[str, GgufTensor],
        path: Path,
    ) -> None:
        self.path = path
        self.tensors = tensors
        self._metadata = metadata
        self.architecture = self.text("general.architecture")

    def fail(self, reason: str) -> ModelFileError:
        """Make the error for a value that contradicts the rest of the file."""
        return ModelFileError(self.path, reason, hint="Download the file again, or another one.")

    def unsupported(self, reason: str) -> UnsupportedModelError:
        """Make the error for a sound model of a kind that is not known here."""
        return UnsupportedModelError(self.path, reason, hint="Choose another model.")

    def with_first_of(self, *keys: str) -> "GgufMetadata":
        """The same where these keys' arrays are their first items: for layers that may differ."""
        changes: dict[str, GgufValue] = {}
        for key in keys:
            full_key = f"{self.architecture}.{key}"
            value = self._metadata.get(full_key)
            if isinstance(value, list) and value:
                changes[full_key] = value[0]
        return GgufMetadata({**self._metadata, **changes}, self.tensors, self.path)

    def text(self, full_key: str) -> str:
        """Give a string by its whole key.

        Raises:
            ModelFileError: It is missing, empty or not a string.
        """
        value = self._metadata.get(full_key)
        if not isinstance(value, str) or not value:
            raise self._bad(full_key, value, "text")
        return value

    def has(self, key: str) -> bool:
        """Whether "<architecture>.<key>" is there."""
        return f"{self.architecture}.{key}" in self._metadata

    def word(self, key: str) -> str | None:
        """Give a string, or None if it is missing."""
        value = self._metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, str) else None

    def integer(
        self, key: str, default: int | None = None, *, within: tuple[int, int] = _RANGE
    ) -> int:
        """Give a whole number; an array stands for one number if all its items are equal.

        Raises:
            ModelFileError: It is missing without a default, not whole, or not `within` the bounds.
            UnsupportedModelError: It differs from layer to layer.
        """
        full_key = f"{self.architecture}.{key}"
        value = self._metadata.get(full_key, default)
        if isinstance(value, list) and value:
            if any(item != value[0] for item in value):
                raise self.unsupported(f"'{full_key}' differs between layers; Quire cannot run it.")
            value = value[0]
        low, high = within
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._bad(full_key, value, f"a whole number from {low:,} to {high:,}")
        return value

    def integers(
        self, key: str, count: int, default: int | None = None, *, within: tuple[int, int] = _RANGE
    ) -> list[int]:
        """Give `count` whole numbers; one number stands for all of them.

        Raises:
            ModelFileError: It is missing without a default, or there are fewer, or other things.
        """
        full_key = f"{self.architecture}.{key}"
        value = self._metadata.get(full_key, default)
        items = value[:count] if isinstance(value, list) else [value] * count
        low, high = within
        if len(items) < count or not all(
            isinstance(item, int) and not isinstance(item, bool) and low <= item <= high
            for item in items
        ):
            raise self._bad(full_key, value, f"{count} whole numbers from {low:,} to {high:,}")
        return [item for item in items if isinstance(item, int)]

    def number(self, key: str, default: float | None = None) -> float:
        """Give a finite number > 0.

        Raises:
            ModelFileError: It is missing without a default, or not such a number.
        """
        full_key = f"{self.architecture}.{key}"
        value = self._metadata.get(full_key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or value <= 0
        ):
            raise self._bad(full_key, value, "a number above 0")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """Give a finite number > 0, or None if it is missing; 0 stands for missing, as some writers mean it.

        Raises:
            ModelFileError: It is another value.
        """
        value = self._metadata.get(f"{self.architecture}.{key}")
        return None if value is None or value == 0 else self.number(key)

    def is_no(self, key: str) -> bool:
        """Whether "<architecture>.<key>" is there and says no."""
        return self._metadata.get(f"{self.architecture}.{key}") is False

    def flags(self, key: str) -> list[bool] | None:
        """Give a list of yes and no, or None if the key is missing or of another kind."""
        value = self._metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, list) and value and all(isinstance(item, bool) for item in value):
            return [bool(item) for item in value]
        return None

    def token_id(self, key: str) -> int | None:
        """Give the id under "tokenizer.ggml.<key>", or None if it is missing."""
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _bad(self, full_key: str, value: object, wanted: str) -> ModelFileError:
        if value is None:
            return self.fail(f"The metadata key '{full_key}' is missing.")
        return self.fail(
            f"The metadata key '{full_key}' must be {wanted}, not {str(value)[:60]!r}."
        )
