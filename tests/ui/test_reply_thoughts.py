"""What a model thought: one row that unfolds."""

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.conversation import MessageId
from tests.ui.reply_helpers import make_list, make_message, reply_view, settle
from ui.replies.message_list import MessageList
from ui.replies.reply_thoughts import ThoughtsRow
from ui.replies.reply_view import ReplyView


def begin(qtbot: QtBot, text: str = "") -> tuple[MessageList, ReplyView]:
    shown = make_list(qtbot, make_message(1, "user", "question"))
    shown.begin_reply(make_message(2, status="streaming"))
    shown.append_text(MessageId(2), text)
    settle(qtbot, shown)
    return shown, reply_view(shown, 2)


def test_reply_thoughts_are_folded_and_unfold(qtbot):
    shown, view = begin(qtbot, "<think>first\n\nthat")
    (row,) = view.findChildren(ThoughtsRow)
    assert row.text() == "Thinking…"
    assert view.leaves() == []
    shown.append_text(MessageId(2), "</think>\n\nAnswer")
    settle(qtbot, shown)
    assert row.text() == "Thought"
    assert view.plain_text() == "Answer"
    before = view.height()
    qtbot.mouseClick(row, Qt.MouseButton.LeftButton)
    settle(qtbot, shown)
    assert view.height() > before
    assert [leaf.plain_text() for leaf in view.leaves()] == ["first\n\nthat", "Answer"]
    qtbot.mouseClick(row, Qt.MouseButton.LeftButton)
    settle(qtbot, shown)
    assert view.height() == before


def test_reply_thoughts_that_are_open_grow(qtbot):
    shown, view = begin(qtbot, "<think>a")
    (row,) = view.findChildren(ThoughtsRow)
    qtbot.mouseClick(row, Qt.MouseButton.LeftButton)
    shown.append_text(MessageId(2), " b")
    settle(qtbot, shown)
    assert [leaf.plain_text() for leaf in view.leaves()] == ["a b"]


def test_reply_again_after_thoughts_forgets_them(qtbot):
    shown, view = begin(qtbot, "<think>a</think>b")
    shown.update_message(make_message(2, content="c"), [MessageId(2)])
    settle(qtbot, shown)
    assert [row for row in view.findChildren(ThoughtsRow) if row.isVisible()] == []
    assert view.plain_text() == "c"
