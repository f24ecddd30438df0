"""A block of code: colours, copy, selection, bounds."""

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QGuiApplication, QWheelEvent
from PySide6.QtWidgets import QApplication, QScrollBar, QWidget
from pytestqt.qtbot import QtBot

from tests.ui.reply_helpers import NO_DEADLINE, button_named, make_parent, make_theme
from ui.markdown.blocks import Code, Paragraph
from ui.replies.code_block import CodeBlock
from ui.replies.reply_buttons import CopyButton
from ui.replies.reply_code_lines import PIECE_CHARS, CodeLines
from ui.replies.reply_highlight import MAX_HIGHLIGHTED_CHARS, Highlighter
from ui.replies.warm_up import warm_up

SOURCE = 'def f(x: int) -> str:\n    return "a" + 1  # why\n'


@pytest.fixture(autouse=True)
def _lexers_are_there() -> None:
    warm_up()


def colored(source: str, language: str = "python") -> list[list[tuple[str, str]]]:
    """For each line the coloured pieces of text and their roles."""
    lines = source.split("\n")
    highlighter = Highlighter(language)
    highlighter.start(lines, is_closed=True)
    highlighter.work(NO_DEADLINE)
    return [
        [(line[start:end], role) for start, end, role in spans]
        for line, spans in zip(lines, highlighter.colors, strict=False)
    ]


def make_block(qtbot: QtBot, code: Code, width: int = 400) -> CodeBlock:
    parent = make_parent(qtbot, width, 600)
    block = CodeBlock(code, make_theme(), parent)
    block.resize(width, block.layout_to(width))
    parent.show()
    return block


# ---------------------------------------------------------------- colours


@pytest.mark.parametrize("language", ["c", "cpp", "java", "rust", "bash", "php", "kotlin"])
def test_a_comment_on_the_last_line_is_one(qtbot: QtBot, language: str) -> None:
    mark = "#" if language == "bash" else "//"
    code = f"x = 1;\n{mark} all of this"
    lines = ["<?php", *code.split("\n")] if language == "php" else code.split("\n")
    highlighter = Highlighter(language)
    qtbot.waitUntil(highlighter.find_lexer)
    assert highlighter.start(lines, is_closed=True)
    highlighter.work(NO_DEADLINE)
    assert len(highlighter.colors) == len(lines)
    assert highlighter.colors[-1] == ((0, len(lines[-1]), "comment"),)


def test_highlighter_python_has_the_roles_of_the_design():
    assert colored(SOURCE)[0] == [
        ("def", "keyword"),
        ("f", "name"),
        ("(", "operator"),
        (":", "operator"),
        ("int", "type"),
        (")", "operator"),
        ("->", "operator"),
        ("str", "type"),
        (":", "operator"),
    ]
    assert [pair for pair in colored(SOURCE)[1] if pair[1] in ("string", "number", "comment")] == [
        ('"a"', "string"),
        ("1", "number"),
        ("# why", "comment"),
    ]


def test_highlighter_string_over_lines_is_coloured_on_each():
    lines = colored('x = """a\nb\nc"""\ny = 1')
    assert ("b", "string") in lines[1]
    assert lines[3][-1] == ("1", "number")


@pytest.mark.parametrize("language", ["", "no-such-language", "text", "<b>"])
def test_highlighter_unknown_language_stays_plain(language):
    highlighter = Highlighter(language)
    assert highlighter.is_plain
    assert not highlighter.start(["x = 1"], is_closed=True)
    assert highlighter.work(NO_DEADLINE) == []


def test_highlighter_works_one_line_at_a_time_when_time_is_up():
    highlighter = Highlighter("python")
    highlighter.start(["x = 1"] * 50, is_closed=True)
    assert highlighter.work(0.0) == [0]
    assert highlighter.is_working
    assert highlighter.work(NO_DEADLINE) == list(range(1, 50))
    assert not highlighter.is_working


def test_highlighter_huge_text_stays_plain():
    assert not Highlighter("python").start(["x" * (MAX_HIGHLIGHTED_CHARS + 1)], is_closed=True)


def test_highlighter_of_a_growing_text_starts_at_the_last_statement():
    highlighter = Highlighter("python")
    lines = ["def f():", "    return 1", "", "def g():", "    return 2"]
    highlighter.start(lines, is_closed=False)
    highlighter.work(NO_DEADLINE)
    assert not highlighter.start(lines, is_closed=False)  # nothing new
    lines = [*lines, "", "x = 3"]
    highlighter.start(lines, is_closed=False)
    assert highlighter.work(NO_DEADLINE) == [5, 6]
    assert highlighter.start(lines, is_closed=True)  # once more from the top, at the end
    assert highlighter.work(NO_DEADLINE) == []


def test_highlighter_never_restarts_inside_a_string():
    lines = ['x = """', "", "word of the text", "", "more"]
    highlighter = Highlighter("python")
    highlighter.start(lines, is_closed=False)
    highlighter.work(NO_DEADLINE)
    highlighter.start([*lines, "", 'end"""', "y = 1"], is_closed=False)
    highlighter.work(NO_DEADLINE)
    assert highlighter.colors[4] == ((0, 4, "string"),)


@pytest.mark.parametrize(
    ("language", "name"),
    [("py", "Python"), ("JS", "JavaScript"), ("", "Text"), ("c++", "C++"), ("mine", "mine")],
)
def test_language_name_is_for_people(language, name):
    assert Highlighter(language).name == name


# ---------------------------------------------------------------- lines


def test_code_lines_grow_as_if_set_at_once(qapp):
    text = "a\n\tb\n漢字\nlast" + "x" * 500
    grown, whole = CodeLines(make_theme()), CodeLines(make_theme())
    for end in range(0, len(text) + 1, 7):
        grown.set_text(text[:end])
    grown.set_text(text)
    whole.set_text(text)
    assert grown.lines == whole.lines == text.split("\n")
    assert grown.length == whole.length == len(text)
    assert grown.width == whole.width


def test_code_lines_shorter_text_replaces_all(qapp):
    lines = CodeLines(make_theme())
    lines.set_text("a long line of code\nb")
    wide = lines.width
    lines.set_text("c")
    assert lines.lines == ["c"]
    assert lines.width < wide


def test_code_lines_positions_count_utf16_over_lines_and_pieces(qapp):
    lines = CodeLines(make_theme())
    lines.set_text("😀a\n" + "b" * (PIECE_CHARS * 3))
    assert lines.position_at(0, 1000.0) == 3
    assert lines.position_at(1, -5.0) == 4
    assert lines.position_at(1, lines.char_width * (PIECE_CHARS + 10)) == 4 + PIECE_CHARS + 10


def test_code_block_line_of_a_hundred_thousand_characters_is_laid_out_in_part(qtbot):
    block = make_block(qtbot, Code("x" * 100_000, "python"))
    block.grab()
    assert len(block._lines._layouts) <= 2
    (bar,) = block.findChildren(QScrollBar)
    bar.setValue(bar.maximum())
    block.grab()
    assert len(block._lines._layouts) <= 5


# ---------------------------------------------------------------- the widget


def test_code_block_height_is_head_lines_and_padding(qtbot):
    block = make_block(qtbot, Code("a\nb\nc", "py"))
    assert block.layout_to(400) == 36 + 3 * 20 + 22


def test_code_block_copy_takes_the_code_and_says_so(qtbot):
    block = make_block(qtbot, Code("\tif x:\n\t\ty", "py"))
    button = button_named(block, "Copy code", CopyButton)
    assert button.label == "Copy"
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == "\tif x:\n\t\ty"
    assert button.label == "Copied"
    qtbot.waitUntil(lambda: button.label == "Copy", timeout=5000)


def test_code_block_colours_come_by_themselves(qtbot):
    block = make_block(qtbot, Code(SOURCE, "python"))
    qtbot.waitUntil(lambda: not block.is_highlighting)
    assert block.highlighter.colors[0][0] == (0, 3, "keyword")
    block.grab()


def test_code_block_that_grows_is_coloured_again_when_closed(qtbot):
    block = make_block(qtbot, Code("x = 1", "python", is_closed=False))
    assert block.set_block(Code(SOURCE, "python", is_closed=False))
    assert block.set_block(Code(SOURCE + "y = 2", "python"))
    qtbot.waitUntil(lambda: not block.is_highlighting)
    assert len(block.highlighter.colors) == 3


def test_code_block_another_language_starts_anew(qtbot):
    block = make_block(qtbot, Code("", "py", is_closed=False))
    block.set_block(Code("x", "nothing", is_closed=False))
    assert block.highlighter.is_plain
    assert not block.set_block(Paragraph(()))


def test_code_block_selection_is_the_code_between(qtbot):
    block = make_block(qtbot, Code("abc\ndef\nghi", "py"))
    line = 36 + 6
    start = block.position_at(QPoint(16, line + 5))
    end = block.position_at(QPoint(390, line + 25))
    block.set_selection((start, end))
    assert block.selected_text() == "abc\ndef"
    assert block.position_at(QPoint(0, 0)) == 0
    assert block.position_at(QPoint(0, 900)) == block.text_length() == 11
    block.grab()
    block.set_selection(None)
    assert block.selected_text() == ""


def wheel(
    widget: QWidget,
    dx: int,
    dy: int,
    modifiers: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier,
) -> bool:
    point = QPointF(50, 50)
    event = QWheelEvent(
        point,
        point,
        QPoint(),
        QPoint(dx, dy),
        Qt.MouseButton.NoButton,
        modifiers,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    QApplication.sendEvent(widget, event)
    return event.isAccepted()


def test_code_block_wide_lines_scroll_sideways_only(qtbot):
    block = make_block(qtbot, Code("x" * 300, "py"))
    (bar,) = block.findChildren(QScrollBar)
    assert bar.isVisible()
    wheel(block, -120, 0)
    assert bar.value() == 60
    wheel(block, 0, -120, Qt.KeyboardModifier.ShiftModifier)
    assert bar.value() == 120
    wheel(block, 0, -120)
    assert bar.value() == 120
    qtbot.keyClick(block, Qt.Key.Key_Left)
    assert bar.value() < 120
    qtbot.keyClick(block, Qt.Key.Key_Right)
    qtbot.keyClick(block, Qt.Key.Key_A)
    assert bar.value() == 120


def test_code_block_narrow_lines_have_no_bar(qtbot):
    block = make_block(qtbot, Code("x", "py"))
    (bar,) = block.findChildren(QScrollBar)
    assert bar.isHidden()
    wheel(block, -120, 0)
    qtbot.keyClick(block, Qt.Key.Key_Right)
    assert bar.value() == 0


def test_code_block_restyle_follows_the_text_size(qtbot):
    theme = make_theme()
    parent = make_parent(qtbot, 600, 300)
    block = CodeBlock(Code("a\nb", "py"), theme, parent)
    before = block.layout_to(400)
    theme.set_text_size(200)
    block.restyle()
    assert block.layout_to(400) == before + 36 + 2 * 20
