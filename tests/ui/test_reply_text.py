"""Running text: lines, looks, links by mouse and key, what is copied."""

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from pytestqt.qtbot import QtBot

from tests.ui.reply_helpers import collected, make_parent, make_theme
from ui.markdown.blocks import Code, Frame, Heading, Paragraph, Rule, Run
from ui.replies.reply_layout import RunLayout, utf16_length, utf16_slice
from ui.replies.reply_leaf import RuleLine
from ui.replies.reply_text import TextBlock, shown_address


def make_layout(*runs: Run) -> RunLayout:
    return RunLayout(runs, make_theme(), "body", strong_style="body_strong")


def make_block(qtbot: QtBot, *runs: Run, frames: tuple[Frame, ...] = ()) -> TextBlock:
    parent = make_parent(qtbot, 500, 300)
    block = TextBlock(Paragraph(runs, frames), make_theme(), parent)
    block.resize(500, block.layout_to(500))
    parent.show()
    return block


def test_layout_lines_are_24_high_whatever_is_in_them(qapp):
    layout = make_layout(
        Run("plain "), Run("code", code=True), Run("\n漢字\n"), Run("b", bold=True)
    )
    assert layout.set_width(500) == 3 * 24
    assert layout.num_lines == 3


def test_layout_empty_text_is_one_line_high(qapp):
    layout = make_layout()
    assert layout.set_width(500) == 24
    assert layout.end_point() == QPointF(0, 0)
    assert layout.position_at(QPointF(3, 3)) == 0


def test_layout_long_word_breaks_anywhere(qapp):
    layout = make_layout(Run("x" * 300))
    layout.set_width(100)
    assert layout.num_lines > 10
    assert layout.natural_width <= 100


def test_layout_padding_of_code_is_not_copied(qapp):
    layout = make_layout(Run("a "), Run("b c", code=True), Run(" d\ne"))
    assert layout.copied_text(0, layout.length) == "a b c d\ne"
    assert layout.copied_text(3, 6) == "b c"


def test_layout_pills_lie_on_each_line_they_cross(qapp):
    layout = make_layout(Run("word " * 6), Run("code that is wrapped " * 4, code=True))
    layout.set_width(300)
    start, end = layout._pills[0]
    rects = layout.rects(start, end)
    assert len(rects) > 1
    assert {rect.height() for rect in rects} == {24}


@pytest.mark.parametrize(
    ("text", "is_rtl"),
    [("abc", False), ("שלום", True), ("123 שלום", True), ("é שלום", False), ("١٢", False)],
)
def test_layout_right_to_left_text_stands_right(qapp, text, is_rtl):
    layout = make_layout(Run(text))
    layout.set_width(400)
    assert layout.is_right_to_left == is_rtl
    left = layout.rects(0, layout.length)[0].left()
    assert (left > 200) == is_rtl


def test_utf16_counts_halves():
    assert utf16_length("a😀") == 3
    assert utf16_slice("a😀b", 1, 3) == "😀"
    assert utf16_slice("abc", 1, 2) == "b"


def test_text_block_takes_its_own_kind_only(qtbot):
    block = make_block(qtbot, Run("a"))
    assert block.set_block(Paragraph((Run("b"),)))
    assert block.plain_text() == "b"
    assert not block.set_block(Heading(1, (Run("b"),)))
    assert not block.set_block(Code("b"))


def test_text_block_selection_is_what_is_copied(qtbot):
    block = make_block(qtbot, Run("some 😀 "), Run("code", code=True))
    assert block.selected_text() == ""
    block.set_selection((block.position_at(QPoint(0, 5)), block.position_at(QPoint(490, 5))))
    assert block.selected_text() == "some 😀 code"
    block.grab()


LINKS = (Run("see "), Run("one", link="http://one"), Run(" and "), Run("two", link="http://two"))


def middle_of(block: TextBlock, number: int) -> QPoint:
    link = block._layout.links[number]
    return block._layout.rects(link.start, link.end)[0].center().toPoint()


def test_text_block_pointer_over_a_link_shows_its_address(qtbot):
    block = make_block(qtbot, *LINKS)
    qtbot.mouseMove(block, middle_of(block, 0))
    assert block.toolTip() == "http://one"
    assert block.cursor().shape() == Qt.CursorShape.PointingHandCursor
    qtbot.mouseMove(block, QPoint(400, 12))
    assert block.toolTip() == ""
    assert block.cursor().shape() == Qt.CursorShape.IBeamCursor


def test_text_block_click_that_ends_a_selection_opens_nothing(qtbot):
    block = make_block(qtbot, *LINKS)
    asked = collected(block.link_activated)
    block.set_selection((0, 5))
    qtbot.mouseClick(block, Qt.MouseButton.LeftButton, pos=middle_of(block, 0))
    assert asked == []
    block.set_selection(None)
    qtbot.mouseClick(block, Qt.MouseButton.RightButton, pos=middle_of(block, 0))
    assert asked == []
    qtbot.mouseClick(block, Qt.MouseButton.LeftButton, pos=middle_of(block, 1))
    assert asked == [("http://two",)]


def test_text_block_keys_go_through_the_links(qtbot):
    block = make_block(qtbot, *LINKS)
    asked = collected(block.link_activated)
    block.window().activateWindow()
    block.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.waitUntil(block.hasFocus)
    qtbot.keyClick(block, Qt.Key.Key_Return)
    block.grab()
    qtbot.keyClick(block, Qt.Key.Key_Tab)
    qtbot.keyClick(block, Qt.Key.Key_Enter)
    qtbot.keyClick(block, Qt.Key.Key_A)
    assert asked == [("http://one",), ("http://two",)]
    block.clearFocus()
    block.setFocus(Qt.FocusReason.BacktabFocusReason)
    qtbot.keyClick(block, Qt.Key.Key_Return)
    assert asked[-1] == ("http://two",)


def test_text_block_without_links_is_skipped_by_tab(qtbot):
    assert make_block(qtbot, Run("text")).focusPolicy() == Qt.FocusPolicy.NoFocus


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://e.org/<b>x</b>", "http://e.org/%3Cb>x%3C/b>"),
        ("http://e.org/\u202egnp", "http://e.org/\ufffdgnp"),
        ("http://" + "x" * 900, "http://" + "x" * 293),
    ],
)
def test_shown_address_has_no_markup_and_nothing_invisible(address, shown):
    assert shown_address(address) == shown


def test_rule_line_is_one_pixel(qtbot):
    parent = make_parent(qtbot, 600, 300)
    line = RuleLine(make_theme(), parent)
    assert line.layout_to(300) == 1
    assert line.set_block(Rule())
    assert not line.set_block(Code(""))
    assert (line.text_length(), line.selected_text(), line.position_at(QPoint(1, 1))) == (0, "", 0)
    assert line.caret_point() == QPointF(0, 0)
    line.restyle()
    line.grab()
