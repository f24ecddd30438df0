"""Own messages: shown as typed, edited in place."""

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication

from app.conversation import MessageId
from tests.ui.reply_helpers import (
    button_named,
    collected,
    make_list,
    make_message,
    own_view,
    settle,
)
from ui.controls.buttons import Button
from ui.replies.message_view import OwnMessageView
from ui.replies.reply_buttons import RevealedButton
from ui.replies.reply_editor import MessageEditor
from ui.replies.reply_typed import typed_blocks


def shown_text(view: OwnMessageView) -> str:
    return "\n".join(leaf.plain_text() for leaf in view.leaves())


@pytest.mark.parametrize(
    "text",
    [
        "**not bold** `x` # no\n\n  - kept",
        "   spaces   inside\tand tabs",
        "<b>html</b> &amp; [a](http://b)",
        "emoji 👨‍👩‍👧 and 中文",
        "",
    ],
)
def test_own_message_is_shown_exactly_as_typed(qtbot, text):
    shown = make_list(qtbot, make_message(1, "user", text))
    assert shown_text(own_view(shown, 1)) == text


def test_own_message_stands_right_and_takes_at_most_78_percent(qtbot):
    shown = make_list(qtbot, make_message(1, "user", "word " * 200), make_message(2, "user", "hi"))
    (long_leaf,), (short_leaf,) = own_view(shown, 1).leaves(), own_view(shown, 2).leaves()
    assert long_leaf.width() <= int(680 * 0.78) - 32
    assert short_leaf.width() < 40
    right = 8 + 680 - 16
    for leaf in (long_leaf, short_leaf):
        edge = leaf.mapTo(leaf.window(), leaf.rect().topRight()).x() + 1
        assert edge == own_view(shown, 1).x() + right


@pytest.mark.parametrize("text", ["a" * 9000, "word " * 3000, "line\n" * 500, "\n" * 300])
def test_typed_blocks_lose_nothing(text):
    pieces = [block.runs[0].text for block in typed_blocks(text)]
    assert len(pieces) > 1
    assert max(map(len, pieces)) <= 2000
    rest = text
    for piece in pieces:
        assert rest.startswith(piece)
        rest = rest[len(piece) :].removeprefix("\n")
    assert rest == ""


def test_typed_blocks_of_a_growing_text_stay():
    text = "some words and\nlines " * 400
    before, after = typed_blocks(text[:5000]), typed_blocks(text)
    assert after[: len(before) - 1] == before[:-1]


def test_own_message_actions_show_for_pointer_and_keyboard(qtbot):
    shown = make_list(qtbot, make_message(1, "user", "question"))
    button = button_named(own_view(shown, 1), "Copy message", RevealedButton)
    seen = [button.is_seen]
    button.set_revealed(True)
    seen.append(button.is_seen)
    button.set_revealed(False)
    seen.append(button.is_seen)
    shown.activateWindow()
    button.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.waitUntil(button.hasFocus)
    seen.append(button.is_seen)
    assert seen == [False, True, False, True]
    button.grab()


def test_own_message_copy_takes_the_text_as_typed(qtbot):
    shown = make_list(qtbot, make_message(1, "user", " **a** "))
    qtbot.mouseClick(button_named(own_view(shown, 1), "Copy message"), Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == " **a** "


@pytest.fixture
def editing(qtbot):
    shown = make_list(qtbot, make_message(1, "user", "first"), make_message(2, content="reply"))
    asked = collected(shown.edit_requested)
    qtbot.mouseClick(button_named(own_view(shown, 1), "Edit message"), Qt.MouseButton.LeftButton)
    settle(qtbot, shown)
    (editor,) = own_view(shown, 1).findChildren(MessageEditor)
    return shown, editor, asked


def test_edit_enter_saves_the_new_text(qtbot, editing):
    shown, editor, asked = editing
    qtbot.keyClicks(editor.field, " more")
    qtbot.keyClick(editor.field, Qt.Key.Key_Return)
    assert asked == [(1, "first more")]
    assert own_view(shown, 1).leaves() != []


def test_edit_shift_enter_is_a_new_line_and_the_field_grows(qtbot, editing):
    shown, editor, asked = editing
    before = editor.height()
    for _ in range(3):
        qtbot.keyClick(editor.field, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    settle(qtbot, shown)
    assert editor.field.toPlainText() == "first\n\n\n"
    assert editor.height() > before
    assert asked == []


def test_edit_escape_keeps_the_message(qtbot, editing):
    shown, editor, asked = editing
    qtbot.keyClicks(editor.field, " more")
    qtbot.keyClick(editor.field, Qt.Key.Key_Escape)
    settle(qtbot, shown)
    assert asked == []
    assert shown_text(own_view(shown, 1)) == "first"


def test_edit_buttons_save_and_cancel(qtbot, editing):
    shown, editor, asked = editing
    editor.field.setPlainText("other")
    buttons = {button.text(): button for button in editor.findChildren(Button)}
    qtbot.mouseClick(buttons["Cancel"], Qt.MouseButton.LeftButton)
    assert asked == []
    own_view(shown, 1).start_editing()
    settle(qtbot, shown)
    editor = own_view(shown, 1).findChildren(MessageEditor)[-1]
    editor.field.setPlainText("other")
    buttons = {button.text(): button for button in editor.findChildren(Button)}
    qtbot.mouseClick(buttons["Save"], Qt.MouseButton.LeftButton)
    assert asked == [(1, "other")]


@pytest.mark.parametrize("text", ["first", "   "])
def test_edit_same_or_empty_text_asks_for_nothing(qtbot, editing, text):
    _shown, editor, asked = editing
    editor.field.setPlainText(text)
    qtbot.keyClick(editor.field, Qt.Key.Key_Return)
    assert asked == []


def test_edit_started_twice_keeps_one_editor(qtbot, editing):
    shown, _editor, _asked = editing
    own_view(shown, 1).start_editing()
    assert len(own_view(shown, 1).findChildren(MessageEditor)) == 1


def test_own_message_versions_can_be_switched(qtbot):
    shown = make_list(qtbot, make_message(1, "user", "q"))
    shown.update_message(make_message(1, "user", "q"), [MessageId(1), MessageId(4)])
    settle(qtbot, shown)
    asked = collected(shown.version_requested)
    qtbot.mouseClick(button_named(own_view(shown, 1), "Later version"), Qt.MouseButton.LeftButton)
    assert asked == [(4,)]
