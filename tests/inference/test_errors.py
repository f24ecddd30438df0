"""Errors carry their facts in fields, say them in words, and travel between threads."""

import pickle
from pathlib import Path

import pytest

from inference import errors
from inference.errors import (
    ChatTemplateError,
    ComputeError,
    ContextOverflowError,
    CpuOnlyError,
    EngineError,
    InvalidRequestError,
    ModelFileError,
    NotEnoughMemoryError,
    UnsupportedModelError,
)
from inference.model.library_errors import first_line

EXAMPLES: list[EngineError] = [
    EngineError("It failed.", hint="Try again."),
    ModelFileError(Path("models/a.gguf"), "The file is cut off.", hint="Download it again."),
    CpuOnlyError("/models/gptoss.gguf", "It is for the CPU.", hint="Choose the device cpu."),
    UnsupportedModelError("models/b.gguf", "The architecture is not known."),
    NotEnoughMemoryError(12_340_000_000, 4_000_000_000, is_for_chats=True),
    InvalidRequestError("top_k", "must be a whole number.", hint="Take 40."),
    ContextOverflowError(9000, 8192, is_set=True),
    ChatTemplateError("The template takes too long.", hint="Choose another model."),
    ComputeError("The device is gone."),
]


def test_examples_are_all_errors_there_are():
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    defined = {kind for kind in classes if kind.__module__ == errors.__name__}
    assert {type(error) for error in EXAMPLES} == defined


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_error_pickled_keeps_type_message_and_fields(error, protocol):
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_error_is_caught_as_an_engine_error(error):
    with pytest.raises(EngineError):
        raise error


def test_model_file_error_names_file_and_reason_and_keeps_the_path():
    error = ModelFileError("some/folder/a.gguf", "The file is cut off.", hint="Download it again.")
    assert str(error) == "a.gguf: The file is cut off."
    assert error.path == Path("some/folder/a.gguf")
    assert (error.reason, error.hint) == ("The file is cut off.", "Download it again.")


def test_not_enough_memory_error_says_both_numbers():
    error = NotEnoughMemoryError(12_340_000_000, 4_000_000_000)
    assert str(error) == "The model needs 12.3 GB and 4.0 GB are free."
    assert (error.needed_bytes, error.free_bytes) == (12_340_000_000, 4_000_000_000)
    assert error.hint == "Close other programs, or choose a smaller model."


def test_invalid_request_error_names_the_field():
    error = InvalidRequestError("top_k", "must be a whole number.")
    assert str(error) == "top_k: must be a whole number."
    assert (error.field, error.reason, error.hint) == ("top_k", "must be a whole number.", "")


def test_context_overflow_error_says_both_numbers():
    error = ContextOverflowError(9000, 8192)
    assert str(error) == (
        "messages: The prompt has 9,000 tokens and the context holds 8,192, one of them for the "
        "reply."
    )
    assert (error.prompt_tokens, error.context_tokens, error.field) == (9000, 8192, "messages")
    assert error.hint == "Shorten the message, or start a new chat."


def test_context_overflow_error_says_so_if_the_context_was_set_to_so_little():
    error = ContextOverflowError(40, 10, is_set=True)
    assert error.hint == (
        "Raise context_tokens in the settings, or shorten the message, or start a new chat."
    )


def test_unsupported_model_error_is_a_model_file_error():
    assert isinstance(UnsupportedModelError("a", "b"), ModelFileError)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("It is wrong"), "It is wrong."),
        (ValueError("It is wrong.\nMore of it"), "It is wrong."),
        (
            ValueError("Error for field 'eps':\n  must be a number\n  and more"),
            "Error for field 'eps': must be a number.",
        ),
        (KeyError("zzz"), "'zzz' is not known."),
        (RuntimeError(), "RuntimeError."),
        (ValueError("x" * 400), "x" * 300 + "."),
    ],
)
def test_words_of_libraries_are_whole_sentences(error: Exception, text: str) -> None:
    assert first_line(error) == text
