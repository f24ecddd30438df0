"""The dialog with a chat's own settings, and the form behind it."""

import dataclasses
from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.conversation import ChatSettings
from inference.config import SamplingParams
from tests.ui.open_window import OpenWindow
from ui.dialogs.chat_settings import ChatSettingsDialog
from ui.dialogs.sampling_form import FORM_FIELDS, read_form, texts_of

Opener = Callable[..., OpenWindow]


def _open(window: OpenWindow) -> ChatSettingsDialog:
    window.controller.open_chat_settings()
    dialog = window.controller.dialog
    assert isinstance(dialog, ChatSettingsDialog)
    return dialog


def _retype(dialog: ChatSettingsDialog, name: str, text: str) -> None:
    field = dialog.fields[name].input
    field.selectAll()
    QTest.keyClicks(field, text)
    if not text:
        QTest.keyClick(field, Qt.Key.Key_Delete)


def test_saved_settings_reach_the_engine(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    dialog = _open(window)
    dialog.prompt_field.input.setPlainText("Answer in French.")
    _retype(dialog, "temperature", "0")
    _retype(dialog, "max_tokens", "9")
    _retype(dialog, "stop", "END, \\n\\n")
    QTest.mouseClick(dialog.save_button, Qt.MouseButton.LeftButton)
    assert not dialog.isVisible()
    window.say("Hello")
    request = window.engine.requests[0]
    assert window.prompts[0] == ["Answer in French.", "Hello"]
    assert request.params.temperature == 0.0
    assert request.params.max_tokens == 9
    assert request.params.stop == ("END", "\n\n")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("temperature", "-1", "from 0 to 100"),
        ("temperature", "warm", "Must be a number from 0 to 100."),
        ("temperature", "nan", "from 0 to 100"),
        ("top_k", "1.5", "whole number"),
        ("top_p", "1.01", "from 0 to 1"),
        ("min_p", "-0.1", "from 0 to 1"),
        ("repetition_penalty", "0", "from 0.01 to 100"),
        ("presence_penalty", "3", "from -2 to 2"),
        ("frequency_penalty", "-3", "from -2 to 2"),
        ("seed", "-1", "from 0"),
        ("max_tokens", "0", "from 1"),
    ],
)
def test_wrong_value_is_told_at_its_field_and_cannot_be_saved(
    open_window: Opener, name: str, text: str, words: str
) -> None:
    window = open_window()
    dialog = _open(window)
    _retype(dialog, name, text)
    assert words in dialog.fields[name].problem
    others = [
        other for key, field in dialog.fields.items() if key != name and (other := field.problem)
    ]
    assert others == []
    assert not dialog.save_button.isEnabled()
    _retype(dialog, name, texts_of(SamplingParams())[name] or "1")
    assert dialog.fields[name].problem == ""
    assert dialog.save_button.isEnabled()


def test_reset_brings_the_defaults_back(open_window: Opener) -> None:
    window = open_window()
    own = ChatSettings("Be brief.", dataclasses.replace(SamplingParams(), top_k=3))
    window.session.set_chat_settings(own)
    dialog = _open(window)
    assert dialog.fields["top_k"].text == "3"
    QTest.mouseClick(dialog.reset_button, Qt.MouseButton.LeftButton)
    assert dialog.fields["top_k"].text == "40"
    QTest.mouseClick(dialog.save_button, Qt.MouseButton.LeftButton)
    assert window.session.chat_settings == ChatSettings()


def test_cancel_changes_nothing(open_window: Opener) -> None:
    window = open_window()
    dialog = _open(window)
    _retype(dialog, "temperature", "1.5")
    window.click("Cancel", dialog)
    assert window.session.chat_settings == ChatSettings()


def test_form_reads_back_what_it_shows() -> None:
    params = SamplingParams(
        temperature=1.25,
        top_k=7,
        seed=123456789012,
        max_tokens=64,
        stop=("a,b", "\n", "\\n", "tab\there"),
    )
    assert read_form(texts_of(params)) == (params, {})


@pytest.mark.parametrize(("text", "wanted"), [("0,5", 0.5), ("0.5", 0.5), ("1,000.5", None)])
def test_form_understands_a_decimal_comma(text: str, wanted: float | None) -> None:
    params, problems = read_form(texts_of(SamplingParams()) | {"temperature": text})
    assert (params.temperature == wanted) is (wanted is not None)
    assert set(problems) == (set() if wanted is not None else {"temperature"})


def test_form_has_a_field_for_every_sampling_parameter() -> None:
    shown = {field.name for field in FORM_FIELDS}
    assert shown == {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize(("percent", "scrolls"), [(100, False), (200, True)])
def test_dialog_is_never_higher_than_the_screen(
    open_window: Opener, percent: int, scrolls: bool
) -> None:
    window = open_window()
    window.controller.appearance.choose_text_size(percent)
    dialog = _open(window)
    _retype(dialog, "temperature", "-1")
    window.wait(lambda: dialog.area.verticalScrollBar().isVisible() == scrolls)
    assert dialog.height() < dialog.screen().availableGeometry().height()
    assert dialog.rect().contains(dialog.save_button.geometry())
    last = dialog.fields[FORM_FIELDS[-1].name].input
    last.setFocus(Qt.FocusReason.TabFocusReason)
    dialog.area.ensureWidgetVisible(last)
    assert not last.visibleRegion().isEmpty()
