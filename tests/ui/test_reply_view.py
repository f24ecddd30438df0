"""States of a reply: reading, streaming, done, stopped, cut, failed, thought."""

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetrics, QGuiApplication
from pytestqt.qtbot import QtBot

from app.conversation import MessageId
from inference.metrics import RequestMetrics
from tests.ui.reply_helpers import (
    button_named,
    collected,
    make_list,
    make_message,
    make_theme,
    reply_view,
    settle,
)
from ui.controls.labels import Label
from ui.controls.menus import Menu
from ui.look.theme import Theme
from ui.replies.error_card import (
    DETAILS,
    NEW_CHAT,
    OPEN_MODEL,
    PLAIN_TEXT,
    TRY_AGAIN,
    ErrorCard,
    actions_for,
    split_error,
)
from ui.replies.message_list import MessageList
from ui.replies.reply_caret import Caret, prefill_text
from ui.replies.reply_footer import ReplyFooter, fitting_numbers, numbers_text
from ui.replies.reply_view import ReplyView

METRICS = RequestMetrics(
    prompt_tokens=1391,
    reused_tokens=1204,
    completion_tokens=85,
    ttft_ms=210.0,
    decode_ms=1000.0,
)


def begin(qtbot: QtBot, text: str = "") -> tuple[MessageList, ReplyView]:
    shown = make_list(qtbot, make_message(1, "user", "question"))
    shown.begin_reply(make_message(2, status="streaming"))
    shown.append_text(MessageId(2), text)
    settle(qtbot, shown)
    return shown, reply_view(shown, 2)


def visible_texts(view: ReplyView) -> list[str]:
    return [label.text() for label in view.findChildren(Label) if not label.isHidden()]


def footer_of(view: ReplyView) -> ReplyFooter:
    return view.findChildren(ReplyFooter)[0]


def caret_of(view: ReplyView) -> Caret:
    return view.findChildren(Caret)[0]


# ---------------------------------------------------------------- streaming


def test_reply_caret_stands_behind_the_last_character(qtbot):
    _shown, view = begin(qtbot, "one\n\ntwo words")
    caret = caret_of(view)
    leaf = view.leaves()[-1]
    end = leaf.mapTo(view, leaf.caret_point().toPoint())
    assert not caret.isHidden()
    assert (caret.width(), caret.height()) == (3, 18)
    assert abs(caret.x() - end.x() - 3) <= 1
    assert caret.y() == end.y() + 3


def test_reply_caret_goes_with_the_end_of_the_reply(qtbot):
    shown, view = begin(qtbot, "text")
    shown.update_message(make_message(2, content="text"), [MessageId(2)])
    settle(qtbot, shown)
    assert caret_of(view).isHidden()
    assert not footer_of(view).isHidden()


def test_reply_footer_is_hidden_while_text_comes(qtbot):
    _shown, view = begin(qtbot, "text")
    assert footer_of(view).isHidden()


def test_reply_caret_stands_still_when_motion_is_reduced(qtbot):
    theme = make_theme()
    shown = make_list(qtbot, make_message(1, "user", "q"))
    theme.reduce_motion = True
    caret = Caret(theme, shown)
    caret.start()
    assert not caret._timer.isActive()


def test_reply_caret_stands_in_code_and_tables_too(qtbot):
    shown, view = begin(qtbot, "```py\nx = 1")
    assert caret_of(view).y() > view.leaves()[0].y()
    shown.append_text(MessageId(2), "\n```\n\n| a | b |\n|---|---|\n| 1 | 2")
    settle(qtbot, shown)
    table = view.leaves()[1]
    assert caret_of(view).y() > table.y() + 32
    assert caret_of(view).x() > table.width() / 2


def test_reply_is_the_same_streamed_and_at_once(qtbot):
    text = "# a\n\ntext *b*\n\n- c\n- d\n\n```py\ne\n```\n\n| f |\n|---|\n| g |\n"
    shown, view = begin(qtbot)
    for char in text:
        shown.append_text(MessageId(2), char)
    shown.update_message(make_message(2, content=text), [MessageId(2)])
    shown.update_message(make_message(3, content=text), [MessageId(3)])
    settle(qtbot, shown)
    assert view.plain_text() == reply_view(shown, 3).plain_text()
    assert view.height() == reply_view(shown, 3).height()


@pytest.mark.parametrize("slice_s", [0.002, -1.0])
def test_reply_link_that_is_defined_at_the_end_is_one_above_too(qtbot, monkeypatch, slice_s):
    monkeypatch.setattr("ui.replies.reply_column.SLICE_S", slice_s)
    shown, view = begin(qtbot)
    text = "see [it]\n\nmore\n\nand [it]\n\nend\n\n[it]: http://e.org\n"
    for char in text:
        shown.append_text(MessageId(2), char)
    settle(qtbot, shown)
    assert view.plain_text().startswith("see [it]\n\nmore")  # nobody knows yet
    shown.update_message(make_message(2, content=text), [MessageId(2)])
    settle(qtbot, shown)
    assert view.plain_text() == "see it\n\nmore\n\nand it\n\nend"


@pytest.mark.parametrize(
    ("status", "shown_text"),
    [
        ("complete", "so **much"),
        ("stopped", "so much"),
        ("length", "so much"),
        ("error", "so much"),
    ],
)
def test_reply_that_was_cut_in_bold_text_shows_no_marks(qtbot, status, shown_text):
    shown, view = begin(qtbot, "so **much")
    shown.update_message(make_message(2, content="so **much", status=status), [MessageId(2)])
    settle(qtbot, shown)
    assert view.plain_text() == shown_text


def test_reply_content_that_differs_is_shown_anew(qtbot):
    shown, view = begin(qtbot, "something else")
    shown.update_message(make_message(2, content="the reply"), [MessageId(2)])
    settle(qtbot, shown)
    assert view.plain_text() == "the reply"


def test_reply_state_that_is_behind_the_text_loses_nothing(qtbot):
    shown, view = begin(qtbot, "some text")
    shown.update_message(make_message(2, content="some", status="streaming"), [MessageId(2)])
    settle(qtbot, shown)
    assert view.plain_text() == "some text"


def test_reply_that_goes_on_after_it_was_shown_as_stopped_has_no_break(qtbot):
    # Another process writes it, and was slow for a while.
    stopped = make_message(2, content="<think>so</think>Once", status="stopped")
    shown = make_list(qtbot, make_message(1, "user", "q"), stopped)
    settle(qtbot, shown)
    view = reply_view(shown, 2)
    text = "<think>so</think>Once upon a time"
    shown.update_message(make_message(2, content=text, status="streaming"), [MessageId(2)])
    settle(qtbot, shown)
    assert view.plain_text() == "Once upon a time"
    shown.append_text(MessageId(2), " there was\n\na fox")
    settle(qtbot, shown)
    assert view.plain_text() == "Once upon a time there was\n\na fox"
    assert view.text == text + " there was\n\na fox"
    shown.update_message(make_message(2, content=view.text), [MessageId(2)])
    settle(qtbot, shown)
    assert view.plain_text() == "Once upon a time there was\n\na fox"


def test_reply_that_was_stopped_before_its_first_word_comes_whole(qtbot):
    shown = make_list(qtbot, make_message(1, "user", "q"), make_message(2, status="stopped"))
    settle(qtbot, shown)
    shown.update_message(make_message(2, content="see [a]\n\n[a]: x\n\n```\ncode"), [MessageId(2)])
    settle(qtbot, shown)
    whole = make_list(qtbot, make_message(1, "user", "q"))
    whole.begin_reply(make_message(3, status="streaming"))
    whole.append_text(MessageId(3), "see [a]\n\n[a]: x\n\n```\ncode")
    whole.update_message(make_message(3, content="see [a]\n\n[a]: x\n\n```\ncode"), [MessageId(3)])
    settle(qtbot, whole)
    assert reply_view(shown, 2).plain_text() == reply_view(whole, 3).plain_text()
    assert "code" in reply_view(shown, 2).plain_text()


def test_reply_tried_again_starts_empty(qtbot):
    failed = make_message(2, content="half", status="error", error="It stopped.")
    shown = make_list(qtbot, make_message(1, "user", "q"), failed)
    shown.begin_reply(make_message(2, status="streaming"))
    shown.append_text(MessageId(2), "whole")
    settle(qtbot, shown)
    view = reply_view(shown, 2)
    assert view.plain_text() == "whole"
    assert "It stopped" not in "".join(visible_texts(view))


# ---------------------------------------------------------------- before the first word


def test_reply_prefill_shows_after_half_a_second_and_goes_with_the_first_word(qtbot):
    shown, view = begin(qtbot)
    shown.set_prefill(MessageId(2), 100, 1000)
    assert visible_texts(view) == []
    view._started -= 1.0  # as if a second had passed
    shown.set_prefill(MessageId(2), 620, 1000)
    (text,) = visible_texts(view)
    assert text.startswith("Reading your message… 62%")
    shown.append_text(MessageId(2), "word")
    settle(qtbot, shown)
    assert visible_texts(view) == []


@pytest.mark.parametrize(
    ("done", "total", "left", "text"),
    [
        (620, 1000, 3.2, "Reading your message… 62% · 3 s left"),
        (620, 1000, 0.2, "Reading your message… 62%"),
        (0, 1000, None, "Reading your message… 0%"),
        (0, 0, None, "Reading your message… 0%"),
    ],
)
def test_prefill_text_names_share_and_time(done, total, left, text):
    assert prefill_text(done, total, left) == text


# ---------------------------------------------------------------- how it ended


@pytest.mark.parametrize(
    ("status", "note"),
    [
        ("complete", []),
        ("stopped", ["Stopped. This is the reply so far."]),
        ("length", ["Reached the length limit. This is the reply so far."]),
    ],
)
def test_reply_note_says_how_it_ended(qtbot, status, note):
    shown = make_list(qtbot, make_message(2, content="text", status=status))
    assert visible_texts(reply_view(shown, 2)) == note


def test_reply_note_takes_the_room_of_its_text_size_at_once(qtbot):
    theme = make_theme()
    stopped = make_message(2, status="stopped")
    heights = []
    for percents in ((80, 200), (200,)):  # changed while it is shown, or before
        theme.set_text_size(percents[0])
        shown = MessageList(theme)
        qtbot.addWidget(shown)
        shown.resize(800, 600)
        shown.show()
        shown.show_path([stopped], {})
        settle(qtbot, shown)
        theme.set_text_size(200)
        settle(qtbot, shown)
        heights.append(reply_view(shown, 2).height())
    assert heights[0] == heights[1]


def test_reply_numbers_are_in_the_footer(qtbot):
    shown = make_list(qtbot, make_message(2, content="text", metrics=METRICS))
    text = footer_of(reply_view(shown, 2)).text
    assert text.startswith("84 tok/s · first word after 0.21 s · 1")
    assert text.endswith("204 tokens reused (memory)")


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        (None, ""),
        (RequestMetrics(), ""),
        (RequestMetrics(ttft_ms=1500.0, completion_tokens=1), "first word after 1.50 s"),
    ],
)
def test_numbers_text_leaves_out_what_is_not_known(metrics, text):
    assert numbers_text(metrics) == text


def test_reply_copy_takes_the_markdown(qtbot):
    shown = make_list(qtbot, make_message(2, content="**bold** text"))
    qtbot.mouseClick(button_named(reply_view(shown, 2), "Copy reply"), Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == "**bold** text"


def test_reply_more_offers_copies_and_another_version(qtbot):
    shown = make_list(qtbot, make_message(2, content="**bold** `code`"))
    asked = collected(shown.regenerate_requested)
    qtbot.mouseClick(button_named(reply_view(shown, 2), "More"), Qt.MouseButton.LeftButton)
    (menu,) = shown.findChildren(Menu)
    actions = {action.text(): action for action in menu.actions()}
    actions["Copy as plain text"].trigger()
    assert QGuiApplication.clipboard().text() == "bold code"
    actions["Copy as Markdown"].trigger()
    assert QGuiApplication.clipboard().text() == "**bold** `code`"
    actions["Reply again"].trigger()
    assert asked == [(2,)]
    menu.close()


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("kind", "actions"),
    [
        ("template", (PLAIN_TEXT, OPEN_MODEL, DETAILS)),
        ("context_full", (NEW_CHAT, DETAILS)),
        ("memory", (OPEN_MODEL, TRY_AGAIN, DETAILS)),
        ("model_file", (OPEN_MODEL, TRY_AGAIN, DETAILS)),
        ("request", (TRY_AGAIN, OPEN_MODEL, DETAILS)),
        ("compute", (TRY_AGAIN, OPEN_MODEL, DETAILS)),
        ("bug", (TRY_AGAIN, OPEN_MODEL, DETAILS)),
        (None, (TRY_AGAIN, OPEN_MODEL, DETAILS)),
    ],
)
def test_actions_for_puts_the_best_first_and_details_last(kind, actions):
    assert actions_for(kind) == actions


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        ("It needs 6.1 GB. Close programs.", ("It needs 6.1 GB", "Close programs.")),
        ("No sentence", ("The reply could not be finished", "No sentence")),
        ("x" * 120 + ". y", ("The reply could not be finished", "x" * 120 + ". y")),
    ],
)
def test_split_error_gives_title_and_rest(error, parts):
    assert split_error(error) == parts


def test_reply_error_card_says_what_is_kept(qtbot):
    failed = make_message(2, status="error", error="The device stopped. Try it again.")
    half = make_message(3, content="half", status="error")
    shown = make_list(qtbot, make_message(1, "user", "q"), failed, half, width=640)
    names = [card.accessibleName() for card in _cards(shown)]
    assert names == [
        "The device stopped. Try it again. Your message is kept.",
        "The reply could not be finished. Above is the reply so far.",
    ]


def _cards(shown: MessageList) -> list[ErrorCard]:
    return [card for n in (2, 3) for card in reply_view(shown, n).findChildren(ErrorCard)]


def test_reply_stopped_before_its_first_word_says_so(qtbot):
    shown, view = begin(qtbot)
    shown.update_message(make_message(2, status="stopped"), [MessageId(2)])
    settle(qtbot, shown)
    assert "Stopped before the first word." in visible_texts(view)


def test_what_was_reused_is_the_last_number_that_gives_way() -> None:
    metrics = QFontMetrics(Theme().font("small"))
    numbers = "394 tok/s · first word after 0.04 s · 1,204 tokens reused (disk)"
    width = metrics.horizontalAdvance
    for first in (0, numbers.index("first"), numbers.index("1,204")):
        kept = numbers[first:]
        assert fitting_numbers(numbers, metrics, width(kept)) == kept
    assert fitting_numbers(numbers, metrics, width("1,204 tokens reused (disk)") - 1) == ""
