"""What a person does with models."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.messages import ModelUnloaded
from inference.errors import ModelFileError
from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow, wait_for
from ui.controls.labels import Label
from ui.dialogs.open_model import ModelFileDialog, ModelFolderDialog

Opener = Callable[..., OpenWindow]


def _answer(path: str | None) -> classmethod:  # type: ignore[type-arg]
    return classmethod(lambda _cls, _parent, _folder: path)


def _shown_texts(window: OpenWindow) -> list[str]:
    """What the empty chat says, top to bottom."""
    return [label.text() for label in window.chat.empty.findChildren(Label) if label.isVisible()]


def test_open_model_file_loads_the_chosen_file(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    window = open_window()
    window.start_engine()
    path = str(tmp_path / "other.gguf")
    monkeypatch.setattr(ModelFileDialog, "ask", _answer(path))
    window.controller.models.ask_for_file()
    window.wait(lambda: window.session.model.kind == "ready" and window.session.model.path == path)
    assert [call[0] for call in window.factory.calls] == ["/models/fake.gguf", path]


def test_open_model_folder_loads_the_chosen_folder(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    window = open_window()
    window.start_engine()
    monkeypatch.setattr(ModelFolderDialog, "ask", _answer(str(tmp_path)))
    window.controller.models.ask_for_folder()
    window.wait(lambda: window.session.model.path == str(tmp_path))
    window.wait(lambda: window.session.model.kind == "ready")


@pytest.mark.parametrize("kind", [ModelFileDialog, ModelFolderDialog])
def test_keys_go_to_the_window_again_when_a_file_dialog_is_left(
    open_window: Opener, tmp_path: Path, kind: type[ModelFileDialog | ModelFolderDialog]
) -> None:
    window = open_window()
    window.chat.composer.input.setFocus()

    def leave() -> None:
        dialog = QApplication.activeModalWidget()
        assert dialog is not None
        QTest.keyClick(dialog, Qt.Key.Key_Escape)

    QTimer.singleShot(0, leave)
    assert kind.ask(window.window, str(tmp_path)) is None
    window.wait(lambda: QApplication.activeWindow() is window.window)
    assert QApplication.focusWidget() is window.chat.composer.input


def test_cancelled_dialog_loads_nothing(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = open_window()
    window.start_engine()
    monkeypatch.setattr(ModelFileDialog, "ask", _answer(None))
    window.controller.models.ask_for_file()
    assert len(window.factory.calls) == 1
    assert window.session.model.kind == "ready"


def test_model_menu_ticks_the_open_model_and_loads_another(
    open_window: Opener, tmp_path: Path
) -> None:
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    one.touch()
    two.touch()
    window = open_window()
    window.start_engine(str(one))
    window.session.load_model(str(two))
    window.wait(lambda: window.session.model.kind == "ready" and "two" in window.session.model.path)
    menu = window.controller.models.build_menu()
    ticked = {a.text(): a.isChecked() for a in menu.actions() if a.isCheckable()}
    assert ticked["two"] is True
    assert ticked["one"] is False
    next(a for a in menu.actions() if a.text() == "one").trigger()
    window.wait(lambda: window.session.model.kind == "ready" and "one" in window.session.model.path)


def test_load_shows_its_progress_on_the_button(open_window: Opener) -> None:
    gate = threading.Event()
    script = FakeScript(
        load_stages=("Reading the file", "Loading weights", "Checking", "Warming up"),
        before_stage=lambda stage: wait_for(gate) if stage == "Checking" else None,
    )
    window = open_window(script)
    window.program.worker.start()
    window.session.load_model("/models/fake.gguf")
    button = window.chat.header.model_button
    window.wait(lambda: button.text() == "Loading 25%")
    gate.set()
    window.wait(lambda: button.text() == "Fake 1B")
    assert window.chat.composer.input.accessibleDescription() == "Message Fake 1B"


def test_failed_load_tells_why_and_offers_the_next_step(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = FakeScript(
        load_error=ModelFileError("bad.gguf", "the file ends too early.", hint="Get it again.")
    )
    window = open_window(script)
    window.start_engine("/models/bad.gguf")
    notice = window.chat.notice
    assert notice.isVisible()
    assert "the file ends too early." in notice.text
    assert "Get it again." in notice.text
    assert window.chat.header.model_button.text() == "Model not loaded"
    assert _shown_texts(window)[0] == "No model is open"
    script.load_error = None
    good = str(tmp_path / "good.gguf")
    monkeypatch.setattr(ModelFileDialog, "ask", _answer(good))
    window.click("Open another model…", notice)
    window.wait(lambda: window.session.model.kind == "ready")
    assert not notice.isVisible()


def test_failed_load_takes_the_numbers_of_the_model_before_it_away(open_window: Opener) -> None:
    script = FakeScript(replies=["a b c d"])
    window = open_window(script)
    window.start_engine()
    window.say("Question")
    status = window.window.status
    assert (status.speed.text, status.first_word.text) == ("50 tok/s", "First word after 0.10 s")
    script.load_error = ModelFileError("bad.gguf", "no.")
    window.session.load_model("/models/bad.gguf")
    window.wait(lambda: window.session.model.kind == "failed")
    assert (status.context.text, status.speed.text, status.first_word.text) == ("", "", "")
    window.say("Again")
    assert (status.speed.text, status.first_word.text) == ("", "")


def test_unload_takes_the_numbers_of_the_last_reply_away(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["a b c d"]))
    window.start_engine()
    window.say("Question")
    status = window.window.status
    assert status.speed.text == "50 tok/s"
    window.session.handle_event(ModelUnloaded())
    assert (status.context.text, status.speed.text, status.first_word.text) == ("", "", "")


def test_failed_load_can_be_tried_again(open_window: Opener) -> None:
    script = FakeScript(load_error=ModelFileError("bad.gguf", "the file is locked."))
    window = open_window(script)
    window.start_engine("/models/bad.gguf")
    script.load_error = None
    window.chat.composer.input.setFocus()
    window.click("Try again", window.chat.notice)
    window.wait(lambda: window.session.model.kind == "ready")
    assert window.session.model.path == "/models/bad.gguf"
    assert window.window.focusWidget() is window.chat.composer.input


def test_starter_model_is_offered_after_a_failed_load(
    open_window: Opener, starter_model_path: Path
) -> None:
    script = FakeScript(load_error=ModelFileError("bad.gguf", "no."))
    window = open_window(script)
    window.start_engine("/models/bad.gguf")
    script.load_error = None
    window.click("Use the starter model", window.chat.notice)
    window.wait(lambda: window.session.model.kind == "ready")
    assert window.session.model.path == str(starter_model_path)


def test_without_any_model_the_first_screen_offers_to_open_one(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = open_window()
    assert window.chat.empty.cards[0].isVisible()
    monkeypatch.setattr("ui.program.find_starter_model", lambda: None)
    window.program.start_engine()
    assert _shown_texts(window)[0] == "Open a model to begin"
    assert not any(card.isVisible() for card in window.chat.empty.cards)
    button = window.button("Open a model…", window.chat.empty)
    assert button.isVisible()
    window.session.load_model("/models/fake.gguf")
    window.wait(lambda: window.session.model.kind == "ready")
    assert window.chat.empty.cards[0].isVisible()
    assert _shown_texts(window)[0] == "Ready when you are"


BROKEN = ModelFileError("bad.gguf", "the file ends too early.", hint="Get it again.")


@pytest.mark.parametrize("shows", ["before", "while loading"])
def test_model_before_goes_on_when_another_cannot_be_opened(
    open_window: Opener, shows: str
) -> None:
    path = "/models/bad.gguf"
    script = FakeScript(replies=["One."])
    errors = script.check_errors if shows == "before" else script.load_errors
    errors[path] = BROKEN
    window = open_window(script)
    window.start_engine()
    window.say("First")
    window.controller.models._load(path)
    notice = window.chat.notice
    window.wait(lambda: window.session.model.kind == "ready" and notice.isVisible())
    assert window.session.model.path == "/models/fake.gguf"
    assert window.chat.header.model_button.text() == "Fake 1B"
    assert notice.text == (
        "This model cannot be opened\n"
        "bad.gguf: the file ends too early. Get it again. Fake 1B is open."
    )
    assert [button.text() for button in notice.buttons] == [
        "Open another model…",
        "Try again",
        "Close",
    ]
    assert len(window.factory.calls) == (1 if shows == "before" else 3)
    window.click("Try again", notice)
    window.wait(lambda: window.session.model.kind == "ready" and notice.isVisible())
    window.click("Close", notice)
    assert not notice.isVisible()
    window.say("Second")
    assert window.texts == ["First", "One.", "Second", "One."]


def test_note_about_a_refused_model_goes_when_one_goes_on(open_window: Opener) -> None:
    path = "/models/bad.gguf"
    window = open_window(FakeScript(check_errors={path: BROKEN}))
    window.start_engine()
    notice = window.chat.notice
    window.session.load_model(path)
    window.wait(notice.isVisible)
    window.say("First")  # of a new chat
    assert not notice.isVisible()
    window.session.load_model(path)
    window.wait(notice.isVisible)
    window.say("Second")
    assert not notice.isVisible()
    window.session.load_model(path)
    window.wait(notice.isVisible)
    window.controller.models._load("/models/good.gguf")
    window.wait(lambda: window.session.model.path == "/models/good.gguf")
    window.wait(lambda: window.session.model.kind == "ready")
    assert not notice.isVisible()
