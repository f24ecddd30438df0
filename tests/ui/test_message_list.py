"""The chat as a person sees it: what is shown, what stays in view, what is asked for."""

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QLabel

from app.conversation import MessageId
from tests.ui.reply_helpers import (
    button_named,
    collected,
    make_list,
    make_message,
    make_theme,
    own_view,
    reply_view,
    settle,
)
from ui.message_list import MessageList

PARAGRAPH = "Some words of a paragraph that is long enough to fill more than one line of the chat."


def long_chat(num_messages: int) -> list:
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


def test_list_shows_messages_below_each_other_in_the_column(qtbot):
    shown = make_list(qtbot, *long_chat(4), width=1000, height=1200)
    views = [shown.view_of(MessageId(n)) for n in (1, 2, 3, 4)]
    assert all(view is not None and view.isVisible() for view in views)
    tops = [view.y() for view in views if view is not None]
    assert tops == sorted(tops)
    assert tops[0] == 14
    assert tops[1] == views[0].y() + views[0].height() + 14  # question to reply
    assert tops[2] == views[1].y() + views[1].height() + 20  # reply to question
    assert {view.width() for view in views if view is not None} == {680 + 16}
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
    assert not shown.follows_end
    button = button_named(shown, "Go to the end")
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert is_at_end(shown)
    assert shown.follows_end
    assert button.isHidden()


def test_list_follows_again_once_the_person_scrolls_back_to_the_end(qtbot):
    shown = make_list(qtbot, *long_chat(20))
    bar = shown.verticalScrollBar()
    bar.setValue(0)
    assert not shown.follows_end
    bar.setValue(bar.maximum())
    assert shown.follows_end


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
    seen = next(n for n in range(1, 31) if shown.view_of(MessageId(n)).y() >= bar.value())
    before = shown.view_of(MessageId(seen)).y() - bar.value()
    shown.update_message(make_message(2, content=("\n\n" + PARAGRAPH) * 9), [MessageId(2)])
    settle(qtbot, shown)
    assert shown.view_of(MessageId(seen)).y() - bar.value() == before


def test_list_says_when_something_lies_above(qtbot):
    shown = make_list(qtbot, *long_chat(20))
    said = collected(shown.scrolled)
    shown.verticalScrollBar().setValue(0)
    shown.verticalScrollBar().setValue(50)
    assert said == [(False,), (True,)]


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
    failed = make_message(2, status="error", error="The device stopped. Open the model again.")
    shown = make_list(qtbot, make_message(1, "user", "q"), failed)
    asked = collected(shown.action_requested)
    for child in reply_view(shown, 2).findChildren(QLabel):
        assert child.textFormat() == Qt.TextFormat.PlainText
    buttons = [b for b in reply_view(shown, 2).findChildren(object) if hasattr(b, "kind")]
    for button in buttons:
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert asked == [("open_model", 2), ("try_again", 2), ("details", 2)]


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


def test_list_control_arrows_go_from_message_to_message(qtbot):
    shown = make_list(qtbot, *long_chat(6))
    shown.setFocus()
    control = Qt.KeyboardModifier.ControlModifier
    qtbot.keyClick(shown, Qt.Key.Key_Up, control)
    qtbot.waitUntil(lambda: own_or_reply(shown, 6).hasFocus())
    qtbot.keyClick(own_or_reply(shown, 6), Qt.Key.Key_Up, control)
    assert own_or_reply(shown, 5).hasFocus()
    qtbot.keyClick(own_or_reply(shown, 5), Qt.Key.Key_Down, control)
    assert own_or_reply(shown, 6).hasFocus()


def own_or_reply(shown: MessageList, message_id: int):
    view = shown.view_of(MessageId(message_id))
    assert view is not None
    return view


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
    assert own_or_reply(shown, 2).height() > 20
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
