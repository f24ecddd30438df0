"""Every dialog on a screen of 800 x 600: all of it is there, and what does not fit scrolls."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QRect, QUrl
from PySide6.QtWidgets import QLabel

from tests.ui.open_window import OpenWindow
from ui.dialogs.about import AboutDialog
from ui.dialogs.base import Dialog
from ui.dialogs.error import ErrorDialog
from ui.dialogs.link import LinkDialog
from ui.dialogs.preferences import PreferencesDialog
from ui.dialogs.unstored import UnstoredDialog

Opener = Callable[..., OpenWindow]
ROOM = QRect(0, 0, 800, 600)


class _LowScreen:
    def availableGeometry(self) -> QRect:  # noqa: N802  # Qt's name
        return ROOM


@pytest.fixture(params=[100, 150])
def low(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> OpenWindow:
    """A window as large as the screen, with text of 100 % and of 150 %."""
    monkeypatch.setattr(Dialog, "screen", lambda _: _LowScreen())
    window = open_window()
    window.window.setGeometry(ROOM)
    window.controller.appearance.choose_text_size(request.param)
    return window


def _is_all_there(dialog: Dialog) -> bool:
    buttons = dialog._buttons.geometry()
    return ROOM.contains(dialog.frameGeometry()) and dialog.rect().contains(buttons)


def _shown(window: OpenWindow, dialog: Dialog) -> Dialog:
    window.controller._open(dialog)
    return dialog


OPENERS: dict[str, Callable[[OpenWindow], object]] = {
    "settings": lambda window: window.controller.open_settings(),
    "chat": lambda window: window.controller.open_chat_settings(),
    "about": lambda window: window.controller.open_about(),
    "bug": lambda window: window.controller.tell_bug("ValueError"),
    "connections": lambda window: window.controller._open_connections(),
    "link": lambda window: _shown(
        window, LinkDialog(window.program.theme, QUrl("https://x.org/" + "a" * 3000), window.window)
    ),
    "unstored": lambda window: _shown(
        window, UnstoredDialog(window.program.theme, "A reply", window.window)
    ),
    "long": lambda window: _shown(
        window, ErrorDialog(window.program.theme, "T", "Long. " * 800, parent=window.window)
    ),
}


@pytest.mark.parametrize("name", OPENERS)
def test_dialog_is_on_the_screen_with_its_buttons(low: OpenWindow, name: str) -> None:
    OPENERS[name](low)
    dialog = low.controller.dialog
    assert isinstance(dialog, Dialog)
    low.wait(lambda: _is_all_there(dialog))


def test_settings_that_grow_move_up(low: OpenWindow) -> None:
    low.controller.open_settings()
    dialog = low.controller.dialog
    assert isinstance(dialog, PreferencesDialog)
    place, height = dialog.y(), dialog.height()
    assert place > 0
    dialog.show_page("memory")
    assert dialog.height() > height
    assert _is_all_there(dialog)
    assert dialog.y() < place
    dialog.move(500, 400)
    dialog.show_page("look")
    dialog.show_page("memory")
    assert _is_all_there(dialog)
    assert dialog.frameGeometry().right() == ROOM.right()


def test_text_that_is_made_larger_keeps_the_dialog_on_the_screen(low: OpenWindow) -> None:
    low.controller.open_about()
    dialog = low.controller.dialog
    assert isinstance(dialog, AboutDialog)
    low.controller.appearance.choose_text_size(200)
    low.wait(dialog.area.verticalScrollBar().isVisible)
    low.wait(lambda: _is_all_there(dialog))


def test_long_details_scroll_and_nothing_of_them_is_cut(low: OpenWindow) -> None:
    details, log = "What happened. " * 200, Path("/p/quire.log")
    dialog = ErrorDialog(
        low.program.theme, "T", "Short.", details=details, log_file=log, parent=low.window
    )
    low.controller._open(dialog)
    height = dialog.height()
    assert not dialog.area.verticalScrollBar().isVisible()
    low.click("Details", dialog)
    low.wait(dialog.area.verticalScrollBar().isVisible)
    assert _is_all_there(dialog)
    (label,) = [one for one in dialog.findChildren(QLabel) if one.text().startswith("What")]
    assert label.height() >= label.heightForWidth(label.width())
    low.click("Details", dialog)
    assert dialog.height() == height
