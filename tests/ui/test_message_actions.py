"""What a person does with the chat, and texts that mean harm."""

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAction, QContextMenuEvent, QGuiApplication
from PySide6.QtWidgets import QApplication, QLabel, QWidget

from app.conversation import Message, MessageId
from tests.ui.reply_helpers import (
    any_view,
    button_named,
    collected,
    make_list,
    make_message,
    make_theme,
    own_view,
    reply_view,
    settle,
)
from ui.controls.buttons import Button
from ui.controls.menus import Menu
from ui.replies.message_list import MessageList
from ui.replies.reply_table import FIRST_ROWS


def is_at_end(shown: MessageList) -> bool:
    bar = shown.verticalScrollBar()
    return bool(bar.value() == bar.maximum())


def long_chat(num_messages: int) -> list[Message]:
    return [
        make_message(n, "user" if n % 2 else "assistant", f"message {n}\n\n" + "word " * 40)
        for n in range(1, num_messages + 1)
    ]


# ---------------------------------------------------------------- what is asked for


def test_list_again_asks_for_another_version(qtbot):
    shown = make_list(qtbot, make_message(1, "user", "q"), make_message(2, content="a"))
    asked = collected(shown.regenerate_requested)
    qtbot.mouseClick(button_named(reply_view(shown, 2), "Reply again"), Qt.MouseButton.LeftButton)
    assert asked == [(2,)]


def test_list_version_switch_asks_for_the_neighbour(qtbot):
    shown = make_list(qtbot, make_message(1, "user", "q"))
    ids = [MessageId(5), MessageId(2), MessageId(8)]
    shown.update_message(make_message(2, content="a"), ids)
    settle(qtbot, shown)
    asked = collected(shown.version_requested)
    view = reply_view(shown, 2)
    qtbot.mouseClick(button_named(view, "Earlier version"), Qt.MouseButton.LeftButton)
    qtbot.mouseClick(button_named(view, "Later version"), Qt.MouseButton.LeftButton)
    assert asked == [(5,), (8,)]


def test_list_error_card_asks_for_its_actions(qtbot):
    # The words name a model and its template, and decide nothing.
    failed = make_message(
        2, status="error", error="The model's template is lost.", failure_kind="context_full"
    )
    shown = make_list(qtbot, make_message(1, "user", "q"), failed)
    asked = collected(shown.action_requested)
    for child in reply_view(shown, 2).findChildren(QLabel):
        assert child.textFormat() == Qt.TextFormat.PlainText
    for button in reply_view(shown, 2).findChildren(Button):
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert asked == [("new_chat", 2), ("details", 2)]


def test_list_link_is_asked_for_and_not_opened(qtbot):
    shown = make_list(qtbot, make_message(2, content="[here](https://e.org/a)"))
    asked = collected(shown.link_activated)
    (leaf,) = reply_view(shown, 2).leaves()
    qtbot.mouseClick(leaf, Qt.MouseButton.LeftButton, pos=QPoint(10, 12))
    qtbot.mouseClick(leaf, Qt.MouseButton.LeftButton, pos=QPoint(400, 12))
    assert asked == [("https://e.org/a",)]


# ---------------------------------------------------------------- selection and keys


def test_list_selection_reaches_over_blocks_and_messages(qtbot):
    shown = make_list(
        qtbot,
        make_message(1, "user", "question"),
        make_message(2, content="first\n\n```\ncode\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |"),
    )
    shown.setFocus()
    qtbot.keyClick(shown, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    qtbot.keyClick(shown, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == "question\n\nfirst\n\ncode\n\na\tb\n1\t2"


def test_list_drag_selects_from_the_press_to_the_pointer(qtbot):
    shown = make_list(qtbot, make_message(2, content="first words\n\nsecond words"))
    first, second = reply_view(shown, 2).leaves()
    qtbot.mousePress(first, Qt.MouseButton.LeftButton, pos=QPoint(0, 12))
    qtbot.mouseMove(second, QPoint(600, 12))
    qtbot.mouseRelease(second, Qt.MouseButton.LeftButton, pos=QPoint(600, 12))
    shown.copy_selection()
    assert QGuiApplication.clipboard().text() == "first words\n\nsecond words"
    qtbot.mouseClick(first, Qt.MouseButton.LeftButton, pos=QPoint(5, 12))
    assert (first.selected_text(), second.selected_text()) == ("", "")


def test_list_double_click_selects_the_word(qtbot):
    shown = make_list(qtbot, make_message(2, content="some words of text"))
    (leaf,) = reply_view(shown, 2).leaves()
    qtbot.mouseDClick(leaf, Qt.MouseButton.LeftButton, pos=QPoint(60, 12))
    shown.copy_selection()
    assert QGuiApplication.clipboard().text() == "words"


def test_list_drag_beyond_the_edge_scrolls_along(qtbot):
    shown = make_list(qtbot, *long_chat(20))
    bar = shown.verticalScrollBar()
    bar.setValue(0)
    (leaf, *_rest) = own_view(shown, 1).leaves()
    qtbot.mousePress(leaf, Qt.MouseButton.LeftButton, pos=QPoint(0, 5))
    qtbot.mouseMove(leaf, leaf.mapFromGlobal(shown.mapToGlobal(QPoint(300, 700))))
    qtbot.waitUntil(lambda: bar.value() > 200)
    qtbot.mouseRelease(leaf, Qt.MouseButton.LeftButton, pos=QPoint(0, 5))
    shown.copy_selection()
    assert QGuiApplication.clipboard().text().startswith("message 1")
    assert "message 2" in QGuiApplication.clipboard().text()


def open_context_menu(shown: MessageList, view: QWidget) -> dict[str, QAction]:
    place = view.rect().center()
    event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, place, view.mapToGlobal(place))
    QApplication.sendEvent(view, event)
    menu = shown.findChildren(Menu)[-1]
    return {action.text(): action for action in menu.actions()}


def test_list_context_menu_copies_the_message_or_the_selection(qtbot):
    shown = make_list(qtbot, make_message(1, "user", "why"), make_message(2, content="**so**"))
    actions = open_context_menu(shown, reply_view(shown, 2))
    assert not actions["Copy"].isEnabled()
    actions["Copy message"].trigger()
    assert QGuiApplication.clipboard().text() == "**so**"
    actions["Select all"].trigger()
    actions = open_context_menu(shown, own_view(shown, 1))
    actions["Copy"].trigger()
    assert QGuiApplication.clipboard().text() == "why\n\nso"
    for menu in shown.findChildren(Menu):
        menu.close()


def test_list_selection_goes_when_its_text_goes(qtbot):
    shown = make_list(qtbot, make_message(2, content="a\n\nb"))
    qtbot.keyClick(shown, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    shown.update_message(make_message(2, content="c"), [MessageId(2)])
    settle(qtbot, shown)
    QGuiApplication.clipboard().setText("before")
    shown.copy_selection()
    assert QGuiApplication.clipboard().text() == "before"


def test_list_control_arrows_go_from_message_to_message(qtbot):
    shown = make_list(qtbot, *long_chat(6))
    shown.setFocus()
    control = Qt.KeyboardModifier.ControlModifier
    qtbot.keyClick(shown, Qt.Key.Key_Up, control)
    qtbot.waitUntil(lambda: any_view(shown, 6).hasFocus())
    qtbot.keyClick(any_view(shown, 6), Qt.Key.Key_Up, control)
    assert any_view(shown, 5).hasFocus()
    qtbot.keyClick(any_view(shown, 5), Qt.Key.Key_Down, control)
    assert any_view(shown, 6).hasFocus()


def test_list_home_and_end_go_to_the_ends(qtbot):
    shown = make_list(qtbot, *long_chat(20))
    qtbot.keyClick(shown, Qt.Key.Key_Home)
    assert shown.verticalScrollBar().value() == 0
    qtbot.keyClick(shown, Qt.Key.Key_End)
    assert is_at_end(shown)


def test_list_names_each_message_for_screen_readers(qtbot):
    shown = make_list(qtbot, make_message(1, "user", "why?"), make_message(2, content="so"))
    assert own_view(shown, 1).accessibleName() == "You: why?"
    assert reply_view(shown, 2).accessibleName() == "Reply: so"


# ---------------------------------------------------------------- hostile text


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize(
    "text",
    [
        '<img src="file:///etc/passwd"><script>x</script>',
        "![x](file:///etc/passwd) ![y](http://127.0.0.1:1/x.png)",
        "[a](javascript:alert(1)) [b](data:text/html,x)",
        "> " * 3000 + "deep",
        "\u202e" * 2000 + "abc \u2066 \u2069",
        "\0" * 3000,
        "```html\n<b>never closed",
        "a\u0301" * 3000,
        "\ud83d lone half",
    ],
)
def test_list_hostile_text_is_shown_as_text(qtbot, role, text):
    shown = make_list(qtbot, make_message(2, role, text))
    assert any_view(shown, 2).height() > 20
    assert not shown.grab().isNull()


def test_list_megabyte_paragraph_settles_in_slices(qtbot):
    shown = make_list(qtbot, make_message(1, content="x"))
    shown.show_path([make_message(2, content="lorem ipsum " * 20_000)], {})
    assert not shown.is_settled
    settle(qtbot, shown)
    assert sum(leaf.text_length() for leaf in reply_view(shown, 2).leaves()) > 239_000


def test_list_table_of_a_thousand_rows_grows_in_slices(qtbot):
    rows = "| some text | 12.5 |\n" * 1000
    shown = make_list(qtbot, make_message(2, content=f"| a | b |\n|---|--:|\n{rows}"))
    (table,) = reply_view(shown, 2).leaves()
    assert table.height() == 32 * 1001


def test_list_shows_all_rows_of_a_table_at_every_width_and_text_size(qtbot):
    rows = "| some text | 12.5 |\n" * (FIRST_ROWS + 20)  # parsed within the first frame
    theme = make_theme()
    shown = MessageList(theme)
    qtbot.addWidget(shown)
    shown.resize(800, 600)
    shown.show()
    shown.show_path([make_message(2, content=f"| a | b |\n|---|--:|\n{rows}")], {})
    settle(qtbot, shown)
    (table,) = reply_view(shown, 2).leaves()
    assert table.height() == 32 * (FIRST_ROWS + 21)
    shown.resize(600, 600)
    settle(qtbot, shown)
    assert table.height() == 32 * (FIRST_ROWS + 21)
    theme.set_text_size(200)
    settle(qtbot, shown)
    assert table.height() == 64 * (FIRST_ROWS + 21)
