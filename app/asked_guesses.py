"""How `ask` guesses ahead: with a draft model that was asked for, or with the one that is set. No Qt."""

import argparse
import logging
import os
from pathlib import Path

from app.cli import complain
from app.engine_like import EngineLike
from app.engine_setup import draft_model_of
from app.failures import failure_from
from app.settings import Settings
from inference.errors import EngineError, InvalidRequestError

logger = logging.getLogger(__name__)


def asked_draft(options: argparse.Namespace, model: str, settings: Settings) -> str | None:
    """The draft model without which there is to be no reply; None if none was asked for.

    Args:
        options: What `parse_ask_arguments` gave.
        model: The model, as it is named in the settings.
        settings: The general settings.

    Raises:
        InvalidRequestError: A draft model is to guess, and none is known.
    """
    asked: Path | None = options.draft_model
    if asked is not None:
        return os.path.abspath(os.path.expanduser(asked))
    if options.guess != "draft":
        return None
    known = draft_model_of(settings, model)
    if not known:
        raise InvalidRequestError("draft_model", "must be given with --guess draft.")
    return known


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
        complain(f"the draft model that is set is left out. {failure_from(error).message}")
