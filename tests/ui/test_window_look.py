"""Theme, text size, folding, shortcuts and ways for the keyboard."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QLineEdit
from shiboken6 import delete

from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow
from ui.controls.buttons import Button
from ui.dialogs.preferences import PreferencesDialog
from ui.look.field_look import FIELD_HEIGHT
from ui.look.tokens import CONTRAST, DARK, LIGHT

Opener = Callable[..., OpenWindow]
CTRL = Qt.KeyboardModifier.ControlModifier


def _pixel(window: OpenWindow, x: int, y: int) -> str:
    return window.window.grab().toImage().pixelColor(x, y).name().upper()


def test_theme_choice_in_the_menu_changes_colours_and_is_kept(open_window: Opener) -> None:
    window = open_window()
    for name, palette in (("Dark", DARK), ("Light", LIGHT), ("High contrast", CONTRAST)):
        menu = window.controller.build_chat_menu()
        themes = next(a for a in menu.actions() if a.text() == "Theme").menu()
        assert themes is not None
        next(a for a in themes.actions() if a.text() == name).trigger()  # type: ignore[attr-defined]
        assert window.program.theme.palette is palette
        assert _pixel(window, 262, 600) == palette.surface.upper()
        assert _pixel(window, 5, 400) == palette.sidebar.upper()
    window.program.settings.flush()
    kept = json.loads(window.paths.settings_file.read_text(encoding="utf-8"))
    assert kept["theme"] == "contrast"


def test_settings_that_cannot_be_used_are_told_at_the_start(
    open_window: Opener, tmp_path: Path
) -> None:
    file = tmp_path / "profile" / "settings.json"
    file.parent.mkdir()
    file.write_text("{", "utf-8")
    window = open_window(profile=file.parent)
    window.wait(lambda: bool(window.chat.toast.text))  # with the first paint
    assert window.chat.toast.text == (
        f"Not all settings in {file} are used. The file is not JSON; all settings have their defaults."
        " The file as it was is kept as settings.json.bak."
    )


def test_settings_dialog_changes_theme_and_text_size_at_once(open_window: Opener) -> None:
    window = open_window()
    window.press(Qt.Key.Key_Comma, CTRL)
    dialog = window.controller.dialog
    assert isinstance(dialog, PreferencesDialog)
    dialog.look.theme_choice.setFocus()
    dialog.look.theme_choice.set_key("light")
    QTest.keyClick(dialog.look.theme_choice, Qt.Key.Key_Right)
    assert window.program.theme.palette is DARK
    dialog.look.text_size.setValue(150)
    assert window.program.theme.text_size_percent == 150
    assert window.chat.composer.input.font().pixelSize() == 22
    assert window.program.settings.value.text_size_percent == 150


def test_text_size_shortcuts_stay_in_range(open_window: Opener) -> None:
    window = open_window()
    for _ in range(15):
        window.press(Qt.Key.Key_Plus, CTRL)
    assert window.program.theme.text_size_percent == 200
    window.press(Qt.Key.Key_0, CTRL)
    assert window.program.theme.text_size_percent == 100
    for _ in range(5):
        window.press(Qt.Key.Key_Minus, CTRL)
    assert window.program.theme.text_size_percent == 80


@pytest.mark.parametrize("percent", [80, 100, 150, 200])
def test_every_text_size_leaves_the_composer_in_the_window(
    open_window: Opener, percent: int
) -> None:
    window = open_window()
    window.window.resize(640, 480)
    window.program.theme.set_text_size(percent)
    window.chat.composer.set_text("\n".join("line" for _ in range(12)))
    composer = window.chat.composer
    assert composer.geometry().bottom() <= window.chat.height() + composer.margins().bottom()
    assert window.chat.composer.button.isVisible()


def test_sidebar_folds_by_shortcut_and_the_header_takes_its_buttons(open_window: Opener) -> None:
    window = open_window()
    assert window.sidebar.isVisible()
    assert not window.chat.header.sidebar_button.isVisible()
    window.press(Qt.Key.Key_B, CTRL)
    assert not window.sidebar.isVisible()
    assert window.chat.x() == 0
    assert window.chat.header.sidebar_button.isVisible()
    assert window.program.settings.value.sidebar_visible is False
    window.click("Show the sidebar", window.chat.header)
    assert window.sidebar.isVisible()
    assert window.chat.x() == 252


def test_narrow_window_folds_the_sidebar_and_opens_it_over_the_chat(open_window: Opener) -> None:
    window = open_window(FakeScript())
    window.window.resize(899, 600)
    assert not window.sidebar.isVisible()
    window.click("Show the sidebar", window.chat.header)
    assert window.sidebar.isVisible()
    assert window.chat.x() == 0
    assert window.window._scrim.isVisible()
    QTest.mouseClick(window.window._scrim, Qt.MouseButton.LeftButton)
    assert not window.sidebar.isVisible()
    window.window.resize(1000, 600)
    assert window.sidebar.isVisible()
    assert not window.window._scrim.isVisible()
    assert window.program.settings.value.sidebar_visible is True


def test_escape_closes_the_sidebar_over_the_chat(open_window: Opener) -> None:
    window = open_window()
    window.window.resize(800, 600)
    window.window.toggle_sidebar()
    window.sidebar.settings_button.setFocus()
    window.press(Qt.Key.Key_Escape)
    assert not window.sidebar.isVisible()


def test_opened_chat_closes_the_sidebar_over_the_chat(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("Hello")
    window.window.resize(800, 600)
    window.window.toggle_sidebar()
    window.click_chat("Hello")
    assert not window.sidebar.isVisible()


def test_status_items_drop_from_the_right_but_never_private(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("Hello")
    status = window.window.status
    status.show_memory("Memory 0.4 of 15.6 GB")
    items = (status.model, status.context, status.speed, status.first_word, status.memory)
    assert all(item.isVisible() for item in items)
    shown_before = len(items)
    for width in (900, 800, 700, 640):
        window.window.resize(width, 500)
        shown = [item.isVisible() for item in items]
        assert shown == sorted(shown, reverse=True), "only from the right"
        assert sum(shown) <= shown_before
        shown_before = sum(shown)
        assert status.private_button.isVisible()
    assert shown_before < len(items)


def test_context_over_85_percent_warns(open_window: Opener) -> None:
    window = open_window()
    window.window.status.show_context(850, 1000)
    assert window.window.status.context.role == "text_2"
    window.window.status.show_context(851, 1000)
    assert window.window.status.context.role == "warn"


def test_every_control_has_a_name_and_icon_buttons_a_tooltip(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("Hello")
    controls = window.window.findChildren(QAbstractButton)
    assert len(controls) > 10
    nameless = [control for control in controls if not (control.accessibleName() or control.text())]
    assert nameless == []
    without_tip = [c.accessibleName() for c in controls if not c.text() and not c.toolTip()]
    assert without_tip == []
    fields = window.window.findChildren(QLineEdit)
    assert [field for field in fields if not field.accessibleName()] == []


def test_f6_goes_from_area_to_area(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("Hello")
    window.chat.composer.input.setFocus()
    reached = []
    for _ in range(3):
        window.press(Qt.Key.Key_F6)
        reached.append(window.window.focusWidget())
    assert reached == [
        window.sidebar.chat_list,
        window.chat.messages,
        window.chat.composer.input,
    ]


def test_focus_ring_follows_the_keyboard_and_not_the_mouse(open_window: Opener) -> None:
    window = open_window()
    ring = window.window._ring
    window.chat.header.menu_button.setFocus(Qt.FocusReason.TabFocusReason)
    assert ring.isVisible()
    place = window.chat.header.menu_button
    corner = place.mapTo(window.window, place.rect().topLeft())
    assert (ring.x(), ring.y()) == (corner.x() - 4, corner.y() - 4)
    window.sidebar.new_chat_button.setFocus(Qt.FocusReason.MouseFocusReason)
    assert not ring.isVisible()


def test_focus_ring_survives_the_deletion_of_its_control(open_window: Opener) -> None:
    window = open_window()
    button = Button(window.program.theme, "Short-lived", parent=window.window)
    button.show()
    button.setFocus(Qt.FocusReason.TabFocusReason)
    assert window.window._ring.isVisible()
    delete(button)
    window.chat.composer.input.setFocus(Qt.FocusReason.TabFocusReason)
    assert not window.window._ring.isVisible()


def test_private_button_lists_connections(open_window: Opener) -> None:
    window = open_window()
    QTest.mouseClick(window.window.status.private_button, Qt.MouseButton.LeftButton)
    assert window.controller.dialog is not None
    assert window.controller.dialog.windowTitle() == "No connections"


def test_window_size_and_sidebar_are_as_they_were(open_window: Opener) -> None:
    first = open_window()
    first.window.toggle_sidebar()
    first.window.resize(780, 560)
    first.close()
    second = open_window()
    assert (second.window.width(), second.window.height()) == (780, 560)
    second.window.resize(1000, 560)
    assert not second.sidebar.isVisible()


@pytest.mark.parametrize("percent", [100, 150, 200])
def test_field_for_the_title_is_as_high_as_other_fields_and_in_the_middle(
    open_window: Opener, percent: int
) -> None:
    window = open_window(FakeScript(replies=["One."]))
    window.start_engine()
    window.say("Hello")
    window.controller.appearance.choose_text_size(percent)
    header = window.chat.header
    header.edit_title()
    window.wait(header._field.isVisible)
    top = header._field.mapTo(header, QPoint(0, 0)).y()
    assert header._field.height() == window.program.theme.px(FIELD_HEIGHT)
    assert abs(top - (header.height() - top - header._field.height())) <= 1
