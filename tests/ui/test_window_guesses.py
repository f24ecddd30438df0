"""What a person sees of guessing ahead: the model menu, toasts, the button, the footer."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint
from PySide6.QtGui import QAction, QFontMetrics
from PySide6.QtWidgets import QWidget

from app.settings import SettingsStore
from inference.errors import InvalidRequestError, ModelFileError
from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow, wait_for
from ui.chat.model_guess_words import EXPLANATION, NO_MATCH
from ui.controls.menus import Menu
from ui.look.style import menu_margins
from ui.replies.reply_footer import ReplyFooter

Opener = Callable[..., OpenWindow]


def guess_menu(window: OpenWindow) -> Menu:
    """The choices below "Guess ahead"."""
    return window.controller.models._guesses.add_to(window.controller.models.build_menu())


def row_of(menu: Menu, text: str) -> QAction:
    return next(action for action in menu.actions() if action.text().partition("\t")[0] == text)


def state_of(menu: Menu, text: str) -> str:
    """What stands at the right of this row."""
    return row_of(menu, text).text().partition("\t")[2]


def ticked(menu: Menu) -> list[str]:
    return [action.text() for action in menu.actions() if action.isChecked()]


def texts(menu: Menu) -> list[str]:
    return [action.text().replace("\n", " ") for action in menu.actions() if action.text()]


def mark_of(window: OpenWindow) -> str:
    """The mark of the model button."""
    return window.chat.header.model_button._label.mark


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A model with two smaller ones in its folder."""
    for name, size in (("model", 9), ("small", 2), ("tiny", 1)):
        (tmp_path / f"{name}.gguf").write_bytes(bytes(size))
    return {name: str(tmp_path / f"{name}.gguf") for name in ("model", "small", "tiny")}


def open_with(
    open_window: Opener, files: dict[str, str], script: FakeScript | None = None
) -> OpenWindow:
    """The model is open, and it is known which others could guess for it."""
    script = script or FakeScript()
    script.drafts = script.drafts or (files["small"], files["tiny"])
    window: OpenWindow = open_window(script)
    window.start_engine(files["model"])
    window.wait(lambda: bool(window.session.models.guesses.state.matching))
    return window


def test_model_menu_says_how_guessing_stands(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    assert state_of(window.controller.models.build_menu(), "Guess ahead") == "Automatic"
    row_of(guess_menu(window), "Off").trigger()
    assert state_of(window.controller.models.build_menu(), "Guess ahead") == "Off"


def test_switch_holds_at_once_and_opens_nothing_again(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    menu = guess_menu(window)
    assert ticked(menu) == ["Automatic", "No second model"]
    assert EXPLANATION in texts(menu)
    row_of(menu, "Off").trigger()
    window.wait(lambda: window.engine.guess == "off")
    assert ticked(guess_menu(window)) == ["Off", "No second model"]
    assert len(window.factory.calls) == 1
    assert window.session.model.kind == "ready"


def test_switch_can_be_used_before_a_model_is_open(open_window: Opener) -> None:
    window = open_window()
    menu = guess_menu(window)
    assert "Guess ahead with" not in texts(menu)
    row_of(menu, "Off").trigger()
    window.start_engine()
    assert window.engine.guess == "off"


def test_models_that_match_are_offered_by_themselves(
    open_window: Opener, files: dict[str, str]
) -> None:
    window = open_with(open_window, files)
    menu = guess_menu(window)
    assert texts(menu) == [
        "Automatic",
        "Off",
        "Guess ahead with",
        "No second model",
        "small",
        "tiny",
        EXPLANATION,
    ]
    assert ticked(menu) == ["Automatic", "No second model"]


def test_where_no_model_matches_it_is_said_which_would(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    assert NO_MATCH in texts(guess_menu(window))


def test_chosen_draft_model_is_loaded_at_once_and_kept(
    open_window: Opener, files: dict[str, str]
) -> None:
    gate = threading.Event()
    window = open_with(open_window, files, FakeScript(before_draft=lambda: wait_for(gate)))
    button, toast = window.chat.header.model_button, window.chat.toast
    row_of(guess_menu(window), "tiny").trigger()
    assert toast.text == "Loading tiny to guess ahead…"
    assert button.toolTip().startswith("Fake 1B is ready; tiny is being loaded to guess ahead.")
    assert mark_of(window) == "loading"
    assert button.text() == "Fake 1B"
    menu = guess_menu(window)
    assert (state_of(menu, "tiny"), state_of(menu, "small")) == ("Loading…", "")
    assert state_of(window.controller.models.build_menu(), "Guess ahead") == "Loading…"
    gate.set()
    window.wait(lambda: window.engine.draft == files["tiny"])
    window.wait(lambda: toast.text == "Draft tiny guesses ahead from now on.")
    assert button.toolTip().startswith("Fake 1B is ready; Draft tiny guesses ahead.")
    assert mark_of(window) == "ready"
    assert ticked(guess_menu(window)) == ["Automatic", "tiny"]
    assert len(window.factory.calls) == 1
    window.program.settings.flush()
    kept = SettingsStore(window.paths.settings_file).value.draft_models
    assert kept == ((files["model"], files["tiny"]),)


def test_draft_model_is_given_up_again(open_window: Opener, files: dict[str, str]) -> None:
    window = open_with(open_window, files)
    row_of(guess_menu(window), "tiny").trigger()
    window.wait(lambda: window.session.models.guesses.state.draft is not None)
    row_of(guess_menu(window), "No second model").trigger()
    window.wait(lambda: window.session.models.guesses.state.draft is None)
    assert window.engine.draft is None
    assert ticked(guess_menu(window)) == ["Automatic", "No second model"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ModelFileError("/d/tiny.gguf", "The file is cut.", hint="Copy it again."),
            "tiny cannot guess ahead. The file is cut. Copy it again.",
        ),
        (
            InvalidRequestError("draft_model", "It has another vocabulary."),
            "tiny cannot guess ahead. It has another vocabulary.",
        ),
    ],
)
def test_draft_model_that_cannot_be_used_is_told_and_the_choice_undone(
    open_window: Opener,
    files: dict[str, str],
    error: ModelFileError | InvalidRequestError,
    words: str,
) -> None:
    window = open_with(open_window, files, FakeScript(draft_error=error))
    row_of(guess_menu(window), "tiny").trigger()
    window.wait(lambda: window.chat.toast.text == words)
    assert ticked(guess_menu(window)) == ["Automatic", "No second model"]
    assert window.session.model.kind == "ready"
    window.say("Hello")
    assert window.texts[-1] == window.script.replies[0]


def test_set_draft_model_is_there_after_a_start_and_a_missing_one_is_told(
    open_window: Opener, files: dict[str, str], tmp_path: Path
) -> None:
    profile = tmp_path / "profile"
    profile.mkdir()
    settings = SettingsStore(profile / "settings.json")
    settings.change(draft_models=((files["model"], files["tiny"]),))
    settings.flush()
    first = open_window(profile=profile)
    first.start_engine(files["model"])
    first.wait(lambda: first.session.models.guesses.state.draft is not None)
    assert not first.chat.toast.isVisible()
    first.close()
    Path(files["tiny"]).unlink()
    second = open_window(profile=profile)
    second.start_engine(files["model"])
    told = "tiny cannot guess ahead. The file is not where it was."
    second.wait(lambda: second.chat.toast.text == told)
    assert second.session.model.kind == "ready"
    second.say("Hello")
    assert second.texts[-1] == second.script.replies[0]


def test_footer_says_what_guessing_brought_also_after_a_restart(
    open_window: Opener, tmp_path: Path
) -> None:
    window = open_window(FakeScript(guessed_tokens=40))
    window.start_engine()
    window.say("Hello")
    words = "Guessed ahead: 40 tokens, 75% accepted, 1.6× as fast"
    footer = window.view(window.messages[-1].id).findChildren(ReplyFooter)[0]
    assert footer.guesses == words
    window.close()
    again = open_window(profile=window.paths.settings_file.parent)
    again.session.open_chat(again.session.conversations()[0].id)
    footer = again.view(again.messages[-1].id).findChildren(ReplyFooter)[0]
    assert footer.guesses == words


def test_status_bar_names_the_draft_model_in_its_tip(
    open_window: Opener, files: dict[str, str]
) -> None:
    window = open_with(open_window, files)
    row_of(guess_menu(window), "tiny").trigger()
    window.wait(lambda: window.session.models.guesses.state.draft is not None)
    tips = [child.toolTip() for child in window.window.status.findChildren(QWidget)]
    assert any(tip.endswith("; Draft tiny guesses ahead") for tip in tips)


def test_note_of_a_menu_has_room_for_all_its_lines(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    menu = guess_menu(window)
    menu.popup(QPoint(0, 0))
    note = next(action for action in menu.actions() if action.text().startswith("Quire guesses"))
    room = menu.actionGeometry(note)
    metrics = QFontMetrics(window.program.theme.font("small"))
    lines = note.text().split("\n")
    assert len(lines) > 1
    assert room.height() >= metrics.boundingRect(room, 0, note.text()).height()
    assert room.width() - 20 >= max(metrics.horizontalAdvance(line) for line in lines)
    assert menu.width() < 420 + 2 * menu_margins().left()
    menu.close()


def test_models_that_were_removed_meanwhile_are_offered_no_more(
    open_window: Opener, files: dict[str, str]
) -> None:
    window = open_with(open_window, files)
    Path(files["small"]).unlink()
    offered = ["No second model", "tiny"]
    assert [text for text in texts(guess_menu(window)) if text in (*offered, "small")] == offered
    row_of(guess_menu(window), "tiny").trigger()
    window.wait(lambda: window.engine.draft == files["tiny"])
    Path(files["tiny"]).unlink()
    assert ticked(guess_menu(window)) == ["Automatic", "tiny\tMissing"]  # it is in use still
    row_of(guess_menu(window), "No second model").trigger()
    window.wait(lambda: window.engine.draft is None)
    assert NO_MATCH in texts(guess_menu(window))
    assert ticked(guess_menu(window)) == ["Automatic", "No second model"]
