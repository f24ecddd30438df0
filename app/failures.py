"""The engine's errors in words for people. Pure Python; any thread."""

from app.messages import Failure
from inference.errors import (
    ChatTemplateError,
    ContextOverflowError,
    EngineError,
    InvalidRequestError,
    ModelFileError,
    NotEnoughMemoryError,
)

BUG = Failure(
    "bug",
    "Something went wrong inside Quire.",
    "Open the model again; the log says more.",
)
NO_MODEL = Failure("model_file", "No model is open.", "Choose a model, then make the reply again.")

LESS_MEMORY = (
    "Close other programs, choose a smaller model, or make the memory of the model smaller in the"
    " settings."
)

# Errors whose field's name in front of the reason would mean nothing to a person.
_NAMELESS = ("kv_scheme", "draft_model")


def failure_from(error: EngineError) -> Failure:
    """What happened, and of which kind, so that the window can offer the next step."""
    message = str(error)
    match error:
        case ModelFileError():
            return Failure("model_file", message, error.hint)
        case NotEnoughMemoryError():
            return Failure("memory", message, error.hint)
        case ContextOverflowError():
            return Failure("context_full", error.reason, error.hint)
        case ChatTemplateError():
            return Failure("template", message, error.hint)
        case InvalidRequestError() if error.field in _NAMELESS:
            return Failure("request", error.reason, error.hint)
        case InvalidRequestError():
            return Failure("request", message, error.hint)
        case _:
            return Failure("compute", message, error.hint)


def terminal_words(error: EngineError) -> str:
    """What happened and what to do, in one line; a terminal has room for the whole path of a file."""
    failure = failure_from(error)
    message = with_path(error) if isinstance(error, ModelFileError) else failure.message
    return f"{message} {failure.hint}".strip()


def with_path(error: ModelFileError) -> str:
    """The message with the whole path."""
    return f"{error.path}: {error.reason}"


def is_scheme_refused(error: EngineError) -> bool:
    """Whether a model would open if its keys and values were stored in another way."""
    return isinstance(error, InvalidRequestError) and error.field == "kv_scheme"
