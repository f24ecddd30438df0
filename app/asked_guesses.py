"""How `ask` guesses ahead: with a draft model that was asked for, or with the one that is set. No Qt."""

import argparse
import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from app.cli import complain
from app.engine_like import EngineLike
from app.engine_setup import draft_model_of
from app.failures import failure_from, with_path
from app.settings import Settings
from inference.errors import EngineError, InvalidRequestError, ModelFileError

logger = logging.getLogger(__name__)

_HINT = "Give the path of a smaller model of the same family, or leave the option out."


def asked_draft(options: argparse.Namespace, model: str, settings: Settings) -> str | None:
    """The draft model without which there is to be no reply; None if none was asked for.

    Args:
        options: What `parse_ask_arguments` gave.
        model: The model, as it is named in the settings.
        settings: The general settings.

    Raises:
        InvalidRequestError: A draft model is to guess, and none is known, or it is the model itself.
    """
    asked: Path | None = options.draft_model
    if asked is not None:
        path = os.path.abspath(os.path.expanduser(asked))
        if os.path.realpath(path) == os.path.realpath(model):
            raise InvalidRequestError("draft_model", "is the model itself.", hint=_HINT)
        return path
    if options.guess != "draft":
        return None
    known = draft_model_of(settings, model)
    if not known:
        raise InvalidRequestError("draft_model", "must be given with --guess draft.")
    return known


@contextlib.contextmanager
def errors_name_draft(options: argparse.Namespace, draft: str | None) -> Iterator[None]:
    """Errors about a draft model name it: two models are opened.

    Args:
        options: As in `asked_draft`.
        draft: What that gave.

    Raises:
        InvalidRequestError: In place of the error about the draft model.
    """
    try:
        yield
    except ModelFileError as error:
        if draft is None or Path(draft) not in (error.path, *error.path.parents):
            raise
        hint = _HINT
        if options.draft_model is None:
            hint = "It was chosen in the window. Name another one here, or choose one there."
        raise InvalidRequestError("draft_model", with_path(error), hint=hint) from error
    except InvalidRequestError as error:
        if draft is None or error.field != "draft_model":
            raise
        reason = f"{draft} cannot guess ahead. {error.reason}"
        raise InvalidRequestError("draft_model", reason, hint=error.hint or _HINT) from error


def use_set_draft(
    engine: EngineLike, options: argparse.Namespace, model: str, settings: Settings
) -> None:
    """Guess with the draft model that is set for this model; the reply is the same without it.

    Args:
        engine: The model, open; it has a draft model already if one was asked for.
        options: As in `asked_draft`.
        model: As in `asked_draft`.
        settings: As in `asked_draft`.
    """
    guess = options.guess or ("auto" if settings.guess_ahead else "off")
    path = draft_model_of(settings, model)
    if not path or guess != "auto" or options.draft_model is not None:
        return
    try:
        engine.use_draft(path)
    except EngineError as error:
        logger.warning("A draft model cannot be used: %s", error)
        failure = failure_from(error)
        told = f"the draft model that is set, {path}, is left out."
        complain(f"{told} {failure.message} {failure.hint}".strip())
