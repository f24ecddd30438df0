"""What the window says about a model in each state. Pure but for the locale's numbers."""

from pathlib import Path

from app.session_changes import ModelState
from ui.chat.model_button import ModelLabel
from ui.controls.numbers import percent
from ui.dialogs.error import failure_words


def model_label(state: ModelState) -> ModelLabel:
    """The words and the mark of the model button."""
    name = model_name(state)
    if state.kind == "ready":
        return ModelLabel("ready", name, tip=f"{name} is ready. Choose another model (Ctrl+M)")
    if state.kind == "loading":
        tip = f"{name}: {state.stage}" if state.stage else name
        return ModelLabel("loading", f"Loading {percent(state.fraction)}", tip=tip)
    if state.kind == "failed":
        words = failure_words(state.failure).title if state.failure else "It could not be opened"
        return ModelLabel("failed", "Model not loaded", tip=f"{name}: {words}")
    return ModelLabel("none", "Choose a model", tip="Open a model to chat with (Ctrl+M)")


def model_name(state: ModelState) -> str:
    """The model's own name, or that of its file while it is not open."""
    if state.info is not None:
        return state.info.name
    return path_name(state.path) if state.path else "No model"


def path_name(path: str) -> str:
    """A name for people of a model file or folder."""
    name = Path(path).name
    return name[: -len(".gguf")] if name.lower().endswith(".gguf") else name


def composer_hint(state: ModelState) -> str:
    """What the empty composer says."""
    return f"Message {model_name(state)}" if state.kind == "ready" else "Write a message"


def greeting(state: ModelState) -> str:
    """The sentence below the greeting of an empty chat."""
    if state.kind == "ready":
        return f"{model_name(state)} runs on this computer. Nothing you write leaves it."
    return "Nothing you write leaves this computer."
