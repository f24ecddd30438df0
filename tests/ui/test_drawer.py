"""The list of chats that lies over the chat in a narrow window: Escape closes it, whatever has the focus."""

from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit

from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow
from ui.replies.message_view import OwnMessageView

Opener = Callable[..., OpenWindow]
ESCAPE = Qt.Key.Key_Escape

FOCUSES: dict[str, Callable[[OpenWindow], object]] = {
    "composer": lambda window: window.chat.composer.input.setFocus(),
    "search": lambda window: window.sidebar.search_field.setFocus(),
    "list": lambda window: window.sidebar.chat_list.setFocus(),
    "fold button": lambda window: window.sidebar.fold_button.setFocus(),
    "settings": lambda window: window.sidebar.settings_button.setFocus(),
    "model": lambda window: window.chat.header.model_button.setFocus(),
    "messages": lambda window: window.chat.messages.setFocus(),
    "title": lambda window: window.chat.header.edit_title(),
    "status bar": lambda window: window.window.status.private_button.setFocus(),
    "message editor": lambda window: own(window).start_editing("Edited"),
    "nothing": lambda window: window.window.focusWidget().clearFocus(),
}


def own(window: OpenWindow) -> OwnMessageView:
    view = window.view(window.messages[0].id)
    assert isinstance(view, OwnMessageView)
    return view


@pytest.fixture
def narrow(open_window: Opener) -> OpenWindow:
    """800 by 600 at 150 %, with a chat and the drawer open."""
    window = open_window(FakeScript(replies=["One."]))
    window.start_engine()
    window.say("Mine")
    window.window.resize(640, 480)
    window.window.toggle_sidebar()
    assert window.window.is_sidebar_open
    return window


@pytest.mark.parametrize("focus", FOCUSES)
def test_escape_closes_the_drawer_whatever_has_the_focus(narrow: OpenWindow, focus: str) -> None:
    FOCUSES[focus](narrow)
    QTest.keyClick(narrow.window.windowHandle(), ESCAPE)
    assert not narrow.window.is_sidebar_open
    assert not narrow.sidebar.isVisible()
    if focus == "message editor":
        assert own(narrow).edited_text == "Edited"  # what lies behind is left alone


@pytest.mark.parametrize("focus", ["search", "list", "settings"])
def test_focus_does_not_stay_behind_in_a_drawer_that_closes(narrow: OpenWindow, focus: str) -> None:
    FOCUSES[focus](narrow)
    narrow.press(ESCAPE)
    assert narrow.window.focusWidget() is narrow.chat.composer.input


def test_escape_clears_the_search_before_it_closes_the_drawer(narrow: OpenWindow) -> None:
    narrow.sidebar.search_field.setFocus()
    narrow.sidebar.search_field.setText("Mi")
    narrow.press(ESCAPE)
    assert narrow.sidebar.search_field.text() == ""
    assert narrow.window.is_sidebar_open
    narrow.press(ESCAPE)
    assert not narrow.window.is_sidebar_open


def test_escape_gives_up_a_title_in_the_drawer_before_it_closes_it(narrow: OpenWindow) -> None:
    chats = narrow.sidebar.chat_list
    chats.setFocus()
    assert chats.rename(narrow.chat_id("Mine"))
    field = chats.findChild(QLineEdit)
    assert field is not None
    QTest.keyClicks(field, "Yours")
    QTest.keyClick(field, ESCAPE)
    assert narrow.window.is_sidebar_open
    assert narrow.titles == ["Mine"]
    narrow.press(ESCAPE)
    assert not narrow.window.is_sidebar_open


def test_escape_stops_a_reply_once_the_drawer_is_closed(narrow: OpenWindow) -> None:
    stopped: list[bool] = []
    narrow.chat.composer.stop_requested.connect(lambda: stopped.append(True))
    narrow.chat.composer.set_replying(True)
    narrow.chat.composer.input.setFocus()
    narrow.press(ESCAPE)
    assert not narrow.window.is_sidebar_open
    assert stopped == []
    narrow.press(ESCAPE)
    assert stopped == [True]


def test_escape_in_a_wide_window_leaves_the_sidebar(open_window: Opener) -> None:
    window = open_window()
    window.chat.composer.input.setFocus()
    window.press(ESCAPE)
    assert window.window.is_sidebar_open
