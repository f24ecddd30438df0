"""Everything that the engine may raise on purpose. Pure Python; any thread.

    EngineError
    ├── ModelFileError           a model file or folder cannot be used: path, reason, hint
    │   └── UnsupportedModelError    it is sound, but of a kind that Quire does not know
    ├── NotEnoughMemoryError     the model would not fit: both numbers
    ├── InvalidRequestError      a field of a request has a value out of range
    │   └── ContextOverflowError     the prompt is longer than the context: both numbers
    ├── ChatTemplateError        the model's template is missing, broken, or exceeds its bounds
    └── ComputeError             the device failed while a request ran

Each carries `hint`: what a person can do next, one sentence, or "" if there is nothing.
"""

from pathlib import Path


class EngineError(Exception):
    """Base of all errors of the engine.

    Attributes:
        hint: One sentence that says what to do next; may be empty.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ModelFileError(EngineError):
    """A model file or folder cannot be read, or does not hold what it should.

    Attributes:
        path: The file or folder at fault.
        reason: What is wrong with it, a sentence without the path.
    """

    def __init__(self, path: Path | str, reason: str, *, hint: str = "") -> None:
        self.path = Path(path)
        self.reason = reason
        super().__init__(f"{self.path.name}: {reason}", hint=hint)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_model_file_error, (type(self), self.path, self.reason, self.hint))


class UnsupportedModelError(ModelFileError):
    """The file is sound, but its architecture or weight type is not known."""


class CpuOnlyError(UnsupportedModelError):
    """The model is known, but computed on the CPU alone."""


class NotEnoughMemoryError(EngineError):
    """The model needs more memory than is free.

    Attributes:
        needed_bytes: What the load would take.
        free_bytes: What is there.
        is_for_chats: The model itself fits, but not the memory for chats that was set.
    """

    def __init__(self, needed_bytes: int, free_bytes: int, is_for_chats: bool = False) -> None:
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
        self.is_for_chats = is_for_chats
        what = "The memory of the model that is set for chats" if is_for_chats else "The model"
        remedy = "set less memory" if is_for_chats else "choose a smaller model"
        super().__init__(
            f"{what} needs {needed_bytes / 1e9:.1f} GB and {free_bytes / 1e9:.1f} GB are free.",
            hint=f"Close other programs, or {remedy}.",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.needed_bytes, self.free_bytes, self.is_for_chats))


class InvalidRequestError(EngineError):
    """A field of a request is out of range.

    Attributes:
        field: The field's name.
        reason: What is allowed and what was given.
    """

    def __init__(self, field: str, reason: str, *, hint: str = "") -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}", hint=hint)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_invalid_request, (self.field, self.reason, self.hint))


class ContextOverflowError(InvalidRequestError):
    """The prompt does not fit into the model's context; nothing was computed.

    Attributes:
        prompt_tokens: Length of the prompt.
        context_tokens: The most that the engine can hold, prompt and reply together.
        is_set: Whether that is so little because somebody set it so.
    """

    def __init__(self, prompt_tokens: int, context_tokens: int, is_set: bool = False) -> None:
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens
        self.is_set = is_set
        larger = "Raise context_tokens in the settings, or shorten" if is_set else "Shorten"
        super().__init__(
            "messages",
            f"The prompt has {prompt_tokens:,} tokens and the context holds {context_tokens:,}, "
            "one of them for the reply.",
            hint=f"{larger} the message, or start a new chat.",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.prompt_tokens, self.context_tokens, self.is_set))


class ChatTemplateError(EngineError):
    """The model's chat template is missing, wrong, too slow, or writes too much."""


class ComputeError(EngineError):
    """The device failed while a request ran; the engine goes on with other requests."""


def _rebuild_model_file_error(
    kind: type[ModelFileError], path: Path, reason: str, hint: str
) -> ModelFileError:
    return kind(path, reason, hint=hint)


def _rebuild_invalid_request(field: str, reason: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(field, reason, hint=hint)


def as_sentence(text: str) -> str:
    """Words of somebody else with a stop at their end, as more words follow."""
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
