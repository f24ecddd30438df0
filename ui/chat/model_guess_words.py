"""What the window says about guessing ahead. Pure but for the locale's numbers."""

from pathlib import Path

from app.messages import Failure
from app.session_changes import GuessState
from ui.chat.model_words import path_name

EXPLANATION = (
    "Quire guesses several words ahead and checks them together. Replies stay exactly the same."
)
NO_MATCH = (
    "A smaller model of the same family could guess too. It is offered here once it was opened, or"
    " if it lies in the folder of this one."
)


def state_word(state: GuessState) -> str:
    """How it stands, in a word or two."""
    if not state.is_on:
        return "Off"
    return "Loading…" if state.is_loading else "Automatic"


def refused_words(path: str, failure: Failure) -> str:
    """Why a draft model is not used."""
    reason = failure.message.removeprefix(f"{Path(path).name}: ")
    return f"{path_name(path)} cannot guess ahead. {reason} {failure.hint}".strip()
