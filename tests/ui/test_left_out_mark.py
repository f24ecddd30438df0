"""The line above the first message that the model still sees."""

from PySide6.QtGui import QAccessible
from pytestqt.qtbot import QtBot

from app.conversation import MessageId
from tests.ui.reply_helpers import any_view, make_list, make_message, settle
from ui.replies.left_out_mark import FAILED_TEXT, TEXT, LeftOutMark
from ui.replies.message_list import MessageList


def _chat(qtbot: QtBot) -> tuple[MessageList, LeftOutMark]:
    shown = make_list(
        qtbot,
        make_message(1, "user", "first"),
        make_message(2, content="one"),
        make_message(3, "user", "second"),
        make_message(4, content="two"),
    )
    return shown, shown.findChildren(LeftOutMark)[0]


def _mark(qtbot: QtBot, shown: MessageList, message_id: int | None) -> None:
    shown.mark_left_out(None if message_id is None else MessageId(message_id))
    settle(qtbot, shown)


def _bottom(shown: MessageList, message_id: int) -> int:
    view = any_view(shown, message_id)
    return view.y() + view.height()


def test_no_mark_where_nothing_is_left_out(qtbot: QtBot) -> None:
    _shown, mark = _chat(qtbot)
    assert not mark.isVisible()


def test_mark_stands_between_left_out_and_seen_messages(qtbot: QtBot) -> None:
    shown, mark = _chat(qtbot)
    before = any_view(shown, 3).y()
    _mark(qtbot, shown, 3)
    assert mark.isVisible()
    assert _bottom(shown, 2) + 20 == mark.y()
    assert any_view(shown, 3).y() == mark.y() + mark.height() + 20
    assert any_view(shown, 3).y() - before == mark.height() + 20
    assert mark.width() == 680
    mark.grab()


def test_mark_moves_and_goes(qtbot: QtBot) -> None:
    shown, mark = _chat(qtbot)
    _mark(qtbot, shown, 3)
    shown.update_message(make_message(5, "user", "third"), [])
    _mark(qtbot, shown, 5)
    assert _bottom(shown, 4) < mark.y() < any_view(shown, 5).y()
    _mark(qtbot, shown, None)
    assert not mark.isVisible()


def test_mark_of_a_message_that_is_not_shown_is_out_of_sight(qtbot: QtBot) -> None:
    shown, mark = _chat(qtbot)
    _mark(qtbot, shown, 99)
    assert not mark.isVisible()


def test_mark_tells_a_screen_reader_what_it_means(qtbot: QtBot) -> None:
    shown, mark = _chat(qtbot)
    _mark(qtbot, shown, 3)
    told = QAccessible.queryAccessibleInterface(mark)
    assert told.text(QAccessible.Text.Name) == TEXT == "Messages above are left out"
    assert "does not see" in told.text(QAccessible.Text.Description)


def test_mark_grows_with_the_text(qtbot: QtBot) -> None:
    shown, mark = _chat(qtbot)
    _mark(qtbot, shown, 3)
    before = mark.height()
    shown._theme.set_text_size(200)
    settle(qtbot, shown)
    assert mark.height() == 2 * before
    assert any_view(shown, 3).y() == mark.y() + mark.height() + 20
    shown.resize(200, 600)
    settle(qtbot, shown)
    mark.grab()


def _failed_chat(qtbot: QtBot) -> MessageList:
    return make_list(
        qtbot,
        make_message(1, "user", "first"),
        make_message(2, content="one"),
        make_message(3, "user", "too long"),
        make_message(4, content="", status="error"),
        make_message(5, "user", "third"),
        make_message(6, content="three"),
    )


def _visible(shown: MessageList) -> list[LeftOutMark]:
    return [mark for mark in shown.findChildren(LeftOutMark) if mark.isVisible()]


def test_turn_that_failed_at_once_has_a_line_below_it(qtbot: QtBot) -> None:
    shown = _failed_chat(qtbot)
    (mark,) = _visible(shown)
    assert mark.text == mark.accessibleName() == FAILED_TEXT == "The message above is left out"
    assert _bottom(shown, 4) + 20 == mark.y()
    assert any_view(shown, 5).y() == mark.y() + mark.height() + 20
    told = QAccessible.queryAccessibleInterface(mark)
    assert "does not see" in told.text(QAccessible.Text.Description)
    shown.show_path([make_message(1, "user", "first"), make_message(2, content="one")], {})
    settle(qtbot, shown)
    assert _visible(shown) == []


def test_failed_turn_has_no_line_before_another_message_follows(qtbot: QtBot) -> None:
    shown = make_list(
        qtbot, make_message(1, "user", "too long"), make_message(2, content="", status="error")
    )
    assert _visible(shown) == []
    shown.update_message(make_message(3, "user", "shorter"), [])
    settle(qtbot, shown)
    (mark,) = _visible(shown)
    assert _bottom(shown, 2) < mark.y() < any_view(shown, 3).y()


def test_failed_turn_needs_no_line_of_its_own_in_a_beginning_that_is_left_out(
    qtbot: QtBot,
) -> None:
    shown = _failed_chat(qtbot)
    _mark(qtbot, shown, 5)
    (mark,) = _visible(shown)
    assert mark.text == TEXT
    _mark(qtbot, shown, 3)
    beginning, failed = sorted(_visible(shown), key=lambda each: each.y())
    assert (beginning.text, failed.text) == (TEXT, FAILED_TEXT)


def test_reply_that_failed_later_or_was_stopped_at_once_leaves_its_question_in_sight(
    qtbot: QtBot,
) -> None:
    shown = make_list(
        qtbot,
        make_message(1, "user", "first"),
        make_message(2, content="half", status="error"),
        make_message(3, "user", "second"),
        make_message(4, content="", status="stopped"),
        make_message(5, "user", "third"),
    )
    assert _visible(shown) == []
