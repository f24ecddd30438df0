"""What a person does with the list of chats."""

import threading
from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit

from app.conversation import ConversationId
from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow, wait_for

Opener = Callable[..., OpenWindow]
CTRL = Qt.KeyboardModifier.ControlModifier


@pytest.fixture
def two_chats(open_window: Opener) -> OpenWindow:
    window = open_window(FakeScript(replies=["About Lisbon.", "About taxes."]))
    window.start_engine()
    window.say("Travel")
    window.press(Qt.Key.Key_N, CTRL)
    window.say("Money")
    return window


def test_list_shows_the_last_used_chat_first_and_the_open_one_marked(two_chats: OpenWindow) -> None:
    assert two_chats.titles == ["Money", "Travel"]
    chats = two_chats.sidebar.chat_list
    assert "open" in chats.row_state(chats.rows.index_of(two_chats.chat_id("Money")))
    assert "open" not in chats.row_state(chats.rows.index_of(two_chats.chat_id("Travel")))


def test_click_opens_the_chat(two_chats: OpenWindow) -> None:
    two_chats.click_chat("Travel")
    assert two_chats.texts == ["Travel", "About Lisbon."]
    assert two_chats.chat.header.title.text == "Travel"


def test_enter_in_the_list_opens_the_current_chat(two_chats: OpenWindow) -> None:
    chats = two_chats.sidebar.chat_list
    chats.setFocus()
    two_chats.press(Qt.Key.Key_Down)
    two_chats.press(Qt.Key.Key_Return)
    assert two_chats.texts == ["Travel", "About Lisbon."]


def test_rename_by_f2_in_the_list_changes_the_title(two_chats: OpenWindow) -> None:
    chats = two_chats.sidebar.chat_list
    chats.setFocus()
    chats.setCurrentIndex(chats.rows.index_of(two_chats.chat_id("Travel")))
    two_chats.press(Qt.Key.Key_F2)
    field = chats.findChild(QLineEdit)
    assert field is not None
    assert field.text() == "Travel"
    field.setText("  Lisbon   in May ")
    QTest.keyClick(field, Qt.Key.Key_Return)
    two_chats.wait(lambda: two_chats.titles == ["Money", "Lisbon in May"])


@pytest.mark.parametrize("key", [Qt.Key.Key_Return, Qt.Key.Key_Escape])
def test_rename_in_the_list_gives_the_focus_back_to_the_row(
    two_chats: OpenWindow, key: Qt.Key
) -> None:
    chats = two_chats.sidebar.chat_list
    chats.setFocus()
    chat_id = two_chats.chat_id("Travel")
    chats.setCurrentIndex(chats.rows.index_of(chat_id))  # not the open one
    two_chats.press(Qt.Key.Key_F2)
    field = chats.findChild(QLineEdit)
    assert field is not None
    QTest.keyClicks(field, "Lisbon")
    QTest.keyClick(field, key)
    two_chats.wait(lambda: chats.findChild(QLineEdit) is None)
    assert ("Lisbon" in two_chats.titles) is (key == Qt.Key.Key_Return)
    assert two_chats.chat.header.title.text == "Money"
    assert two_chats.window.focusWidget() is chats
    assert chats.currentIndex() == chats.rows.index_of(chat_id)
    assert "focused" in chats.row_state(chats.currentIndex())
    two_chats.press(Qt.Key.Key_Delete)
    assert two_chats.titles == ["Money"]


def test_title_that_is_typed_outlives_a_new_order_of_the_list(two_chats: OpenWindow) -> None:
    chats = two_chats.sidebar.chat_list
    two_chats.click_chat("Travel")
    chats.setCurrentIndex(chats.rows.index_of(two_chats.chat_id("Money")))
    chats.setFocus()
    two_chats.press(Qt.Key.Key_F2)
    field = chats.findChild(QLineEdit)
    assert field is not None
    QTest.keyClicks(field, "Taxes")
    two_chats.session.send("More")  # as a reply that ends: the chat goes to the top
    two_chats.wait(lambda: not two_chats.session.is_replying)
    assert field.isVisible()
    QTest.keyClick(field, Qt.Key.Key_Return)
    two_chats.wait(lambda: two_chats.titles == ["Travel", "Taxes"])


def test_row_loses_its_ring_with_the_focus(two_chats: OpenWindow) -> None:
    chats = two_chats.sidebar.chat_list
    chats.setFocus()
    assert "focused" in chats.row_state(chats.currentIndex())
    two_chats.chat.composer.input.setFocus()
    assert "focused" not in chats.row_state(chats.currentIndex())


def test_rename_in_the_header_changes_the_title_everywhere(two_chats: OpenWindow) -> None:
    two_chats.chat.composer.input.setFocus()
    two_chats.press(Qt.Key.Key_F2)
    field = two_chats.chat.header.findChild(QLineEdit)
    assert field is not None
    assert two_chats.window.focusWidget() is field
    field.setText("Taxes")
    QTest.keyClick(field, Qt.Key.Key_Return)
    assert two_chats.chat.header.title.text == "Taxes"
    assert two_chats.titles == ["Taxes", "Travel"]


def test_rename_in_the_header_is_seen_where_the_list_lay_over_it(two_chats: OpenWindow) -> None:
    two_chats.window.resize(800, 600)
    two_chats.window.open_sidebar()
    assert two_chats.window.is_sidebar_open
    two_chats.chat.composer.input.setFocus()
    two_chats.press(Qt.Key.Key_F2)
    field = two_chats.chat.header.findChild(QLineEdit)
    assert two_chats.window.focusWidget() is field
    assert not two_chats.window.is_sidebar_open


def test_rename_in_the_header_by_escape_changes_nothing(two_chats: OpenWindow) -> None:
    two_chats.chat.composer.input.setFocus()
    two_chats.press(Qt.Key.Key_F2)
    field = two_chats.chat.header.findChild(QLineEdit)
    assert field is not None
    field.setText("Taxes")
    QTest.keyClick(field, Qt.Key.Key_Escape)
    assert two_chats.chat.header.title.text == "Money"
    assert two_chats.titles == ["Money", "Travel"]


def test_delete_by_key_and_undo_brings_the_chat_back(two_chats: OpenWindow) -> None:
    chats = two_chats.sidebar.chat_list
    chats.setFocus()
    chats.setCurrentIndex(chats.rows.index_of(two_chats.chat_id("Travel")))
    two_chats.press(Qt.Key.Key_Delete)
    assert two_chats.titles == ["Money"]
    assert two_chats.chat.toast.isVisible()
    assert two_chats.chat.toast.text == "Chat deleted"
    two_chats.click("Undo", two_chats.chat.toast)
    assert two_chats.titles == ["Money", "Travel"]
    assert not two_chats.chat.toast.isVisible()


def test_what_was_read_of_a_deleted_chat_is_kept_as_long_as_undo_is_offered(
    two_chats: OpenWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []
    session = two_chats.program.session
    monkeypatch.setattr(session, "forget_deleted", forgotten.append)
    chats = two_chats.sidebar.chat_list
    chats.setFocus()
    deleted = two_chats.chat_id("Travel")
    chats.setCurrentIndex(chats.rows.index_of(deleted))
    two_chats.press(Qt.Key.Key_Delete)
    assert forgotten == []
    two_chats.click("Close", two_chats.chat.toast)
    assert forgotten == [deleted]


def test_the_last_of_several_deletions_is_undone(two_chats: OpenWindow) -> None:
    chats = two_chats.sidebar.chat_list
    chats.setFocus()
    for title in ("Travel", "Money"):
        chats.setCurrentIndex(chats.rows.index_of(two_chats.chat_id(title)))
        two_chats.press(Qt.Key.Key_Delete)
    assert two_chats.titles == []
    two_chats.click("Undo", two_chats.chat.toast)
    assert two_chats.titles == ["Money"]


@pytest.mark.parametrize("by_key", [True, False])
@pytest.mark.parametrize("place", ["list", "composer"])
def test_undo_gives_the_focus_back_to_where_it_was(
    two_chats: OpenWindow, place: str, by_key: bool
) -> None:
    chats = two_chats.sidebar.chat_list
    before = chats if place == "list" else two_chats.chat.composer.input
    before.setFocus()
    two_chats.controller.delete()
    undo = two_chats.button("Undo", two_chats.chat.toast)
    if by_key:
        undo.setFocus(Qt.FocusReason.TabFocusReason)
        QTest.keyClick(undo, Qt.Key.Key_Space)
    else:
        two_chats.click("Undo", two_chats.chat.toast)
    assert two_chats.titles == ["Money", "Travel"]
    assert two_chats.window.focusWidget() is before
    money = chats.rows.index_of(two_chats.chat_id("Money"))
    assert ("focused" in chats.row_state(money)) is (place == "list" and by_key)


def test_closed_toast_gives_the_focus_to_the_composer_if_the_list_is_folded(
    two_chats: OpenWindow,
) -> None:
    two_chats.sidebar.chat_list.setFocus()
    two_chats.controller.delete()
    close = two_chats.button("Close", two_chats.chat.toast)
    close.setFocus(Qt.FocusReason.TabFocusReason)
    two_chats.window.toggle_sidebar()
    two_chats.press(Qt.Key.Key_Space)
    assert not two_chats.chat.toast.isVisible()
    assert two_chats.window.focusWidget() is two_chats.chat.composer.input


def test_delete_of_the_shown_chat_shows_a_new_one_and_undo_shows_it_again(
    two_chats: OpenWindow,
) -> None:
    two_chats.controller.delete()
    assert two_chats.titles == ["Travel"]
    assert two_chats.chat.empty.isVisible()
    two_chats.chat.toast.act()
    assert two_chats.texts == ["Money", "About taxes."]


def test_search_finds_titles_and_contents_and_escape_ends_it(two_chats: OpenWindow) -> None:
    two_chats.press(Qt.Key.Key_K, CTRL)
    field = two_chats.sidebar.search_field
    assert two_chats.window.focusWidget() is field
    QTest.keyClicks(field, "lisbon")
    two_chats.wait(lambda: two_chats.titles == ["Travel"])
    QTest.keyClick(field, Qt.Key.Key_Escape)
    two_chats.wait(lambda: two_chats.titles == ["Money", "Travel"])


def test_search_without_a_hit_says_so(two_chats: OpenWindow) -> None:
    two_chats.sidebar.search_field.setText("zebra")
    two_chats.wait(lambda: two_chats.titles == [])
    hints = [
        label.text() for label in two_chats.sidebar.findChildren(type(two_chats.sidebar._hint))
    ]
    assert "Nothing found." in hints


def test_chat_of_a_running_reply_has_a_live_mark(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["word " * 2000], tokens_per_s=200.0))
    window.start_engine()
    window.type("Go")
    window.press(Qt.Key.Key_Return)
    chats = window.sidebar.chat_list
    index = chats.rows.index_of(window.chat_id("Go"))
    assert "replying" in chats.row_state(index)
    window.session.stop()
    window.wait(lambda: not window.session.is_replying)
    assert "replying" not in chats.row_state(chats.rows.index_of(window.chat_id("Go")))


def test_live_mark_stays_while_a_new_chat_is_shown_and_goes_with_the_reply(
    open_window: Opener,
) -> None:
    gate = threading.Event()
    window = open_window(FakeScript(before_step=lambda: wait_for(gate)))
    window.start_engine()
    window.type("Go")
    window.press(Qt.Key.Key_Return)
    window.press(Qt.Key.Key_N, CTRL)
    assert window.session.conversation is None
    chats = window.sidebar.chat_list

    def state() -> frozenset[str]:
        return chats.row_state(chats.rows.index_of(window.chat_id("Go")))

    assert state() == {"replying"}
    gate.set()
    window.wait(lambda: state() == frozenset())


def test_chats_are_there_after_the_next_start(open_window: Opener) -> None:
    first = open_window(FakeScript(replies=["Stored."]))
    first.start_engine()
    first.say("Remember")
    chat_id = first.chat_id("Remember")
    first.close()
    second = open_window()
    assert second.titles == ["Remember"]
    second.session.open_chat(ConversationId(chat_id))
    assert second.texts == ["Remember", "Stored."]
