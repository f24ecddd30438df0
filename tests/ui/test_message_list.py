"""The chat as a person sees it: what is shown, what stays in view, what is asked for."""

from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication

from app.conversation import ConversationId, Message, MessageId
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
from ui.replies.message_list import MessageList
from ui.replies.reply_buttons import ToEndButton

PARAGRAPH = "Some words of a paragraph that is long enough to fill more than one line of the chat."


def long_chat(num_messages: int) -> list[Message]:
    return [
        make_message(n, "user" if n % 2 else "assistant", f"message {n}\n\n{PARAGRAPH}")
        for n in range(1, num_messages + 1)
    ]


def stream(shown: MessageList, text: str = "", message_id: int = 90) -> None:
    shown.begin_reply(make_message(message_id, status="streaming"))
    if text:
        shown.append_text(MessageId(message_id), text)


def is_at_end(shown: MessageList) -> bool:
    bar = shown.verticalScrollBar()
    return bool(bar.value() == bar.maximum())


# ---------------------------------------------------------------- content


def test_text_for_a_reply_whose_view_is_not_made_yet_is_not_lost(qtbot, monkeypatch):
    shown = make_list(qtbot, *long_chat(20))
    shown.verticalScrollBar().setValue(0)
    monkeypatch.setattr("ui.replies.reply_column.SLICE_S", -1.0)  # one view per frame
    reply = make_message(21, content="so far, ", status="streaming")
    shown.show_path([*long_chat(20), reply], {})
    assert shown.view_of(MessageId(21)) is None
    shown.append_text(MessageId(21), "one, ")
    shown.append_text(MessageId(21), "two")
    monkeypatch.undo()
    settle(qtbot, shown)
    assert reply_view(shown, 21).text == "so far, one, two"


def test_chat_shown_again_fills_its_end_first(qtbot, monkeypatch):
    chat = long_chat(20)
    other = [
        replace(m, id=MessageId(m.id + 100), conversation_id=ConversationId("d"))
        for m in long_chat(2)
    ]
    shown = make_list(qtbot, *chat)
    shown.show_path(other, {})
    monkeypatch.setattr("ui.replies.reply_column.SLICE_S", -1.0)
    shown.show_path(chat, {})
    assert shown.view_of(MessageId(20)) is not None
    assert shown.view_of(MessageId(1)) is None


def test_list_shows_messages_below_each_other_in_the_column(qtbot):
    shown = make_list(qtbot, *long_chat(4), width=1000, height=1200)
    views = [any_view(shown, n) for n in (1, 2, 3, 4)]
    assert all(view.isVisible() for view in views)
    tops = [view.y() for view in views]
    assert tops == sorted(tops)
    assert tops[0] == 14
    assert tops[1] == views[0].y() + views[0].height() + 14  # question to reply
    assert tops[2] == views[1].y() + views[1].height() + 20  # reply to question
    assert {view.width() for view in views} == {680 + 16}
    assert views[0].x() == (1000 - 680) // 2 - 8


@pytest.mark.parametrize(("width", "column"), [(1000, 680), (700, 700 - 56), (600, 600 - 32)])
def test_list_column_leaves_margins_that_shrink_below_640(qtbot, width, column):
    shown = make_list(qtbot, make_message(1, content="x"), width=width)
    assert reply_view(shown, 1).width() == column + 16


def test_list_that_is_empty_shows_nothing_and_settles(qtbot):
    shown = make_list(qtbot)
    assert shown.is_settled


def test_list_keeps_views_of_messages_that_stay(qtbot):
    messages = long_chat(4)
    shown = make_list(qtbot, *messages)
    first = shown.view_of(MessageId(1))
    shown.show_path([*messages[:3], make_message(7, content="another version")], {})
    settle(qtbot, shown)
    assert shown.view_of(MessageId(1)) is first
    assert shown.view_of(MessageId(4)) is None
    assert shown.view_of(MessageId(7)) is not None


def test_list_of_two_hundred_messages_shows_the_end_with_the_first_frame(qtbot):
    shown = make_list(qtbot, make_message(1, content="x"))
    shown.show_path(long_chat(240), {})
    assert shown.view_of(MessageId(240)) is not None
    assert not shown.is_settled  # the rest comes in slices
    settle(qtbot, shown)
    assert all(shown.view_of(MessageId(n)) is not None for n in range(1, 241))
    assert is_at_end(shown)


def test_list_is_filled_on_a_computer_where_each_piece_takes_longer_than_a_slice(
    qtbot, monkeypatch
):
    monkeypatch.setattr("ui.replies.reply_column.SLICE_S", -1.0)
    rows = "| some text | 12.5 |\n" * 60
    table = make_message(30, content=f"| a | b |\n|---|--:|\n{rows}")
    shown = make_list(qtbot, *long_chat(20), make_message(29, "user", "a " * 3000), table)
    assert all(shown.view_of(MessageId(n)) is not None for n in (*range(1, 21), 29, 30))
    assert reply_view(shown, 30).leaves()[0].height() == 32 * 61
    assert is_at_end(shown)


def test_list_where_replies_grew_looks_like_one_that_was_opened_so(qtbot):
    def places(of: MessageList) -> list[tuple[int, int, int]]:
        views = [any_view(of, n) for n in (*range(1, 9), 90)]
        return [(view.y(), view.height(), view.width()) for view in views]

    grown = make_list(qtbot, *long_chat(8))
    stream(grown, f"{PARAGRAPH} " * 5)
    settle(qtbot, grown)
    grown.append_text(MessageId(90), "\n\nand more")
    grown.update_message(make_message(4, content=f"{PARAGRAPH} " * 9), [])
    settle(qtbot, grown)
    chat = [replace(m, content=f"{PARAGRAPH} " * 9) if m.id == 4 else m for m in long_chat(8)]
    text = f"{PARAGRAPH} " * 5 + "\n\nand more"
    reply = make_message(90, content=text, status="streaming")
    opened = make_list(qtbot, *chat, reply)
    assert places(grown) == places(opened)
    assert is_at_end(grown)


def test_list_fills_what_is_on_screen_first_though_it_begins_above(qtbot, monkeypatch):
    long = make_message(1, content=f"{PARAGRAPH} " * 400)
    shown = make_list(qtbot, make_message(99, content="x"))
    monkeypatch.setattr("ui.replies.reply_column.SLICE_S", -1.0)  # one view per frame
    shown.show_path([long, *(replace(m, id=MessageId(m.id + 1)) for m in long_chat(60))], {})
    shown.verticalScrollBar().setValue(900)
    qtbot.waitUntil(lambda: shown.view_of(MessageId(1)) is not None, timeout=5000)
    assert not shown.is_settled
    assert shown.view_of(MessageId(20)) is None


def test_list_place_in_a_long_reply_stays_at_another_text_size_and_theme(qtbot):
    theme = make_theme()
    rows = "".join(f"| row {n} | x |\n" for n in range(200))
    text = "\n\n".join(f"{n} {PARAGRAPH}" for n in range(40))
    shown = MessageList(theme)
    qtbot.addWidget(shown)
    shown.resize(800, 600)
    shown.show()
    chat = [make_message(1, content=f"{text}\n\n| a | b |\n|---|---|\n{rows}"), *long_chat(9)[1:]]
    shown.show_path(chat, {})
    settle(qtbot, shown)
    leaf = reply_view(shown, 1).leaves()[30]

    def top() -> int:
        return leaf.mapTo(shown.viewport(), QPoint()).y()

    shown.verticalScrollBar().setValue(shown.verticalScrollBar().value() - 1)
    shown.verticalScrollBar().setValue(reply_view(shown, 1).y() + leaf.y())
    assert abs(top()) <= 40
    for size in (150, 100):
        theme.set_text_size(size)
        settle(qtbot, shown)
        assert abs(top()) <= 60
    shown.resize(640, 600)
    settle(qtbot, shown)
    assert abs(top()) <= 60
    table = reply_view(shown, 1).leaves()[40]
    shown.verticalScrollBar().setValue(reply_view(shown, 1).y() + table.y() + 100 * 32)
    before = shown.verticalScrollBar().value()
    theme.set_choice("dark")
    settle(qtbot, shown)
    assert shown.verticalScrollBar().value() == before


def test_list_place_in_a_table_whose_rows_wrap_stays_at_other_text_sizes_and_widths(qtbot):
    theme = make_theme()
    rows = "".join(f"| {n} | {PARAGRAPH if n % 2 else ''} {PARAGRAPH} |\n" for n in range(120))
    shown = MessageList(theme)
    qtbot.addWidget(shown)
    shown.resize(800, 600)
    shown.show()
    chat = [make_message(1, content=f"| a | b |\n|---|---|\n{rows}"), *long_chat(9)[1:]]
    shown.show_path(chat, {})
    settle(qtbot, shown)
    table = reply_view(shown, 1).leaves()[0]

    def share() -> float:
        return -table.mapTo(shown.viewport(), QPoint()).y() / table.height()

    bar = shown.verticalScrollBar()
    bar.setValue(reply_view(shown, 1).y() + round(0.7 * table.height()))
    assert share() == pytest.approx(0.7, abs=0.001)
    for size, width in ((125, 800), (150, 800), (100, 800), (100, 480), (100, 800)):
        theme.set_text_size(size)
        shown.resize(width, 600)
        settle(qtbot, shown)
        assert share() == pytest.approx(0.7, abs=0.01)
    theme.set_text_size(150)
    bar.setValue(bar.value() - 2000)  # the person goes elsewhere while it is laid out
    moved = share()
    settle(qtbot, shown)
    assert share() < 0.69
    assert moved < 0.69


def test_list_copies_all_though_it_is_not_filled_yet(qtbot, monkeypatch):
    shown = make_list(qtbot, make_message(99, content="x"))
    monkeypatch.setattr("ui.replies.reply_column.SLICE_S", -1.0)
    rows = "".join(f"| row {n} | x |\n" for n in range(60))
    chat = [make_message(90, content=f"| a | b |\n|---|---|\n{rows}"), *long_chat(12)]
    QGuiApplication.clipboard().setText("before")
    shown.show_path(chat, {})
    qtbot.keyClick(shown, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    qtbot.keyClick(shown, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == "before"  # and not a part
    settle(qtbot, shown)
    copied = QGuiApplication.clipboard().text()
    assert copied.startswith("a\tb\nrow 0\tx\n")
    assert "row 59\tx" in copied
    assert all(f"message {n}\n\n{PARAGRAPH}" in copied for n in range(1, 13))


def test_list_new_message_follows_the_last_one(qtbot):
    shown = make_list(qtbot, make_message(1, "user", "question"))
    shown.update_message(make_message(2, "user", "another"), [MessageId(2)])
    settle(qtbot, shown)
    assert own_view(shown, 2).y() > own_view(shown, 1).y()


def test_list_text_for_an_unknown_message_is_ignored(qtbot):
    shown = make_list(qtbot, make_message(1, "user", "question"))
    shown.append_text(MessageId(77), "text")
    shown.append_text(MessageId(1), "text")
    shown.set_prefill(MessageId(77), 1, 2)
    settle(qtbot, shown)
    assert shown.view_of(MessageId(77)) is None


def test_list_another_theme_and_text_size_lay_out_again(qtbot):
    theme = make_theme()
    shown = MessageList(theme)
    qtbot.addWidget(shown)
    shown.resize(800, 600)
    shown.show()
    shown.show_path([make_message(1, "user", "question"), make_message(2, content=PARAGRAPH)], {})
    settle(qtbot, shown)
    before = reply_view(shown, 2).height()
    light = shown.grab().toImage().pixelColor(5, 300).name()
    theme.set_text_size(200)
    settle(qtbot, shown)
    assert reply_view(shown, 2).height() >= 2 * before - 40
    theme.set_choice("dark")
    settle(qtbot, shown)
    assert shown.grab().toImage().pixelColor(5, 300).name() != light


# ---------------------------------------------------------------- streaming


def test_list_text_of_many_deltas_is_shown_in_one_frame(qtbot):
    shown = make_list(qtbot, make_message(1, "user", "question"))
    stream(shown)
    settle(qtbot, shown)
    view = reply_view(shown, 90)
    for word in ("several ", "words ", "of ", "one ", "reply"):
        shown.append_text(MessageId(90), word)
    assert view.leaves() == []  # collected, not shown yet
    settle(qtbot, shown)
    assert view.plain_text() == "several words of one reply"


def test_list_follows_the_end_while_text_comes(qtbot):
    shown = make_list(qtbot, *long_chat(20))
    stream(shown)
    for _ in range(5):
        shown.append_text(MessageId(90), PARAGRAPH + "\n\n")
        settle(qtbot, shown)
        assert is_at_end(shown)
    assert shown.follows_end


def test_list_stays_where_the_person_scrolled_to(qtbot):
    shown = make_list(qtbot, *long_chat(20))
    stream(shown, PARAGRAPH)
    settle(qtbot, shown)
    bar = shown.verticalScrollBar()
    bar.setValue(bar.maximum() - 300)
    value = bar.value()
    shown.append_text(MessageId(90), ("\n\n" + PARAGRAPH) * 5)
    settle(qtbot, shown)
    assert bar.value() == value
    states = [shown.follows_end]
    button = button_named(shown, "Go to the end", ToEndButton)
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    states.append(shown.follows_end)
    assert states == [False, True]
    assert is_at_end(shown)
    assert button.isHidden()


def test_list_follows_again_once_the_person_scrolls_back_to_the_end(qtbot):
    shown = make_list(qtbot, *long_chat(20))
    bar = shown.verticalScrollBar()
    bar.setValue(0)
    states = [shown.follows_end]
    bar.setValue(bar.maximum())
    states.append(shown.follows_end)
    assert states == [False, True]


def test_list_begin_reply_goes_to_the_end(qtbot):
    shown = make_list(qtbot, *long_chat(20))
    shown.verticalScrollBar().setValue(0)
    stream(shown, "text")
    settle(qtbot, shown)
    assert is_at_end(shown)


def test_list_keeps_what_is_on_screen_when_older_messages_grow(qtbot):
    messages = long_chat(30)
    shown = make_list(qtbot, *messages)
    bar = shown.verticalScrollBar()
    bar.setValue(bar.maximum() // 2)
    settle(qtbot, shown)
    seen = next(n for n in range(1, 31) if any_view(shown, n).y() >= bar.value())
    before = any_view(shown, seen).y() - bar.value()
    shown.update_message(make_message(2, content=("\n\n" + PARAGRAPH) * 9), [MessageId(2)])
    settle(qtbot, shown)
    assert any_view(shown, seen).y() - bar.value() == before


def test_list_says_when_something_lies_above(qtbot):
    shown = make_list(qtbot, *long_chat(20))
    said = collected(shown.scrolled)
    shown.verticalScrollBar().setValue(0)
    shown.verticalScrollBar().setValue(50)
    assert said == [(False,), (True,)]
