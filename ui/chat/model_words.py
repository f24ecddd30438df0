"""What the window says about a model in each state. Pure but for the locale's numbers."""

import re
from pathlib import Path

from app.session_changes import GuessState, ModelState
from inference.metrics import COMPATIBILITY_KERNELS, ModelInfo
from ui.chat.model_button import ModelLabel
from ui.controls.numbers import percent
from ui.dialogs.error import failure_words

_TUNINGS = frozenset({"instruct", "it", "chat"})


def model_label(state: ModelState, guesses: GuessState | None = None) -> ModelLabel:
    """The words and the mark of the model button; while a draft model is loaded, replies wait."""
    name = model_name(state)
    if state.kind == "ready":
        guesses = guesses or GuessState()
        tip = f"{ready_words(name, guesses)} Choose another model (Ctrl+M)"
        return ModelLabel("loading" if guesses.is_loading else "ready", short_name(name), tip=tip)
    if state.kind == "loading":
        tip = f"{name}: {state.stage}" if state.stage else name
        return ModelLabel("loading", f"Loading {percent(state.fraction)}", tip=tip)
    if state.kind == "failed":
        words = failure_words(state.failure).title if state.failure else "It could not be opened"
        return ModelLabel("failed", "Model not loaded", tip=f"{name}: {words}")
    return ModelLabel("none", "Choose a model", tip="Open a model to chat with (Ctrl+M)")


def draft_name(state: GuessState) -> str:
    """The draft model's own name, or that of its file until it is open; "" without one."""
    if state.draft is not None and not state.is_loading:
        return short_name(state.draft.name)
    return path_name(state.draft_path)


def ready_words(name: str, state: GuessState) -> str:
    """That a model is ready, and which one guesses for it: a sentence with its stop."""
    if state.is_loading:
        return f"{name} is ready; {draft_name(state)} is being loaded to guess ahead."
    if state.draft is not None:
        return f"{name} is ready; {draft_name(state)} guesses ahead."
    return f"{name} is ready."


def model_name(state: ModelState) -> str:
    """The model's own name, or that of its file while it is not open."""
    if state.info is not None:
        return state.info.name
    return path_name(state.path) if state.path else "No model"


def computed_by(info: ModelInfo) -> str:
    """Which way a model is computed, and by what: "transformers: blocks (CPU)"."""
    if info.compute_path == "bridge":
        return f"transformers: {info.backend}"
    if info.kernels == COMPATIBILITY_KERNELS:
        return f"{COMPATIBILITY_KERNELS}: {info.backend}"
    return info.backend


def short_name(name: str) -> str:
    """A model's name as people say it: spaces between words, no last word for its tuning."""
    words = re.split(r"[-_\s]+", name.strip("-_ "))
    if words[-1].lower() in _TUNINGS:
        words.pop()
    return " ".join(words) or name


def path_name(path: str) -> str:
    """A name for people of a model file or folder."""
    name = Path(path).name
    return name[: -len(".gguf")] if name.lower().endswith(".gguf") else name


def going_on_words(state: ModelState) -> str:
    """The sentence about the model that goes on in place of one that cannot be opened."""
    name = short_name(model_name(state))
    return f"{name} is open." if state.kind == "ready" else f"{name} is being opened again."


def composer_hint(state: ModelState, *, has_messages: bool) -> str:
    """What the empty composer says."""
    if has_messages:
        return "Write the next message"
    is_ready = state.kind == "ready"
    return f"Message {short_name(model_name(state))}" if is_ready else "Write a message"


def headline(state: ModelState, *, lacks_model: bool) -> str:
    """The greeting of an empty chat; `lacks_model` if there is none that could be opened."""
    if lacks_model:
        return "Open a model to begin"
    return "No model is open" if state.kind == "failed" else "Ready when you are"


def greeting(state: ModelState) -> str:
    """The sentence below the greeting of an empty chat."""
    if state.kind == "ready":
        return (
            f"{short_name(model_name(state))} runs on this computer. Nothing you write leaves it."
        )
    return "Nothing you write leaves this computer."
