from pathlib import Path

import pytest

from app.failures import failure_from, is_scheme_refused
from app.messages import Failure
from inference.errors import (
    ChatTemplateError,
    ComputeError,
    ContextOverflowError,
    EngineError,
    InvalidRequestError,
    ModelFileError,
    NotEnoughMemoryError,
    UnsupportedModelError,
)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (
            ModelFileError(Path("/m/a.gguf"), "It is empty.", hint="Take another."),
            Failure("model_file", "a.gguf: It is empty.", "Take another."),
        ),
        (UnsupportedModelError("/m/a", "New."), Failure("model_file", "a: New.")),
        (
            NotEnoughMemoryError(6_100_000_000, 3_100_000_000),
            Failure(
                "memory",
                "The model needs 6.1 GB and 3.1 GB are free.",
                "Close other programs, or choose a smaller model.",
            ),
        ),
        (
            ContextOverflowError(9000, 8192),
            Failure(
                "context_full",
                "The prompt has 9,000 tokens and the context holds 8,192, one of them for the "
                "reply.",
                "Shorten the message, or start a new chat.",
            ),
        ),
        (ChatTemplateError("No template."), Failure("template", "No template.")),
        (InvalidRequestError("seed", "is bad."), Failure("request", "seed: is bad.")),
        (InvalidRequestError("kv_scheme", "It is bad."), Failure("request", "It is bad.")),
        (ComputeError("Lost.", hint="Again."), Failure("compute", "Lost.", "Again.")),
        (EngineError("Odd."), Failure("compute", "Odd.")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_becomes_a_failure_of_its_kind(error: EngineError, failure: Failure) -> None:
    assert failure_from(error) == failure


def test_refused_scheme_is_known_by_its_field() -> None:
    assert is_scheme_refused(InvalidRequestError("kv_scheme", "It is bad."))
    assert not is_scheme_refused(InvalidRequestError("seed", "is bad."))
    assert not is_scheme_refused(ComputeError("Lost."))
