"""A long text as typed is laid out in pieces; what is seen and copied is as if it were one."""

import functools

import pytest
from PySide6.QtCore import QPoint
from PySide6.QtGui import QTextLayout
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from ui.look.theme import Theme
from ui.markdown.blocks import Paragraph, Run
from ui.replies.reply_flow import BlockFlow
from ui.replies.reply_selection import TextSelection
from ui.replies.reply_text import TextBlock
from ui.replies.reply_typed import typed_blocks

WORDS = " ".join(f"Item {number} is a box with {number % 7} balls." for number in range(400))
ARABIC = " ".join(f"الصندوق رقم {number} فيه كرات" for number in range(300))
CHINESE = "".join(f"第{number}箱有球，" for number in range(700))
TEXTS = {
    "words": WORDS,
    "lines": WORDS.replace("balls. Item", "balls.\nItem", 40),
    "arabic": ARABIC,
    "chinese": CHINESE,
    "one word": "abcdefghij" * 500,
    "emoji": "😀 " * 2500,
    "wide gaps": WORDS.replace(" is ", "    is "),
}


@pytest.fixture
def parent(qtbot: QtBot) -> QWidget:
    widget = QWidget()
    qtbot.addWidget(widget)
    return widget


def laid_out(parent: QWidget, text: str, width: int, piece_chars: int = 2000) -> BlockFlow:
    flow = BlockFlow(Theme(), parent, gap=0)
    flow.show_blocks(typed_blocks(text, piece_chars), num_same=0, deadline=float("inf"))
    flow.resize(width, flow.layout_to(width))
    return flow


def lines_of(flow: BlockFlow) -> list[str]:
    """What stands in each line of the screen."""
    lines: dict[int, str] = {}
    for leaf in flow.leaves:
        assert isinstance(leaf, TextBlock)
        layout: QTextLayout = leaf._layout._layout
        units = layout.text().encode("utf-16-le")
        for index in range(layout.lineCount()):
            line = layout.lineAt(index)
            start = line.textStart()
            text = units[2 * start : 2 * (start + line.textLength())].decode("utf-16-le")
            y = leaf.y() + index * leaf._layout.line_height
            lines[y] = lines.get(y, "") + text.rstrip("\u2028")
    return [lines[y] for y in sorted(lines)]


@pytest.mark.parametrize("width", [200, 333, 498])
@pytest.mark.parametrize("name", TEXTS)
def test_lines_of_pieces_are_those_of_the_whole(parent: QWidget, name: str, width: int) -> None:
    whole = laid_out(parent, TEXTS[name], width, piece_chars=10**6)
    pieces = laid_out(parent, TEXTS[name], width)
    assert len(pieces.leaves) > 2
    if name != "lines":
        assert len(whole.leaves) == 1
        assert lines_of(pieces) == lines_of(whole)
        assert pieces.height() == whole.height()
    assert lines_of(pieces)[:40] == lines_of(whole)[:40]


def test_pieces_follow_another_width(parent: QWidget) -> None:
    flow = laid_out(parent, WORDS, 498)
    flow.layout_to(300)
    assert lines_of(flow) == lines_of(laid_out(parent, WORDS, 300, piece_chars=10**6))


@pytest.mark.parametrize("text", [WORDS, ARABIC], ids=["words", "arabic"])
def test_shared_line_is_painted_as_of_one(parent: QWidget, text: str) -> None:
    whole = laid_out(parent, text, 498, piece_chars=10**6)
    pieces = laid_out(parent, text, 498)
    shared = [leaf for leaf in pieces.leaves if isinstance(leaf, TextBlock) and leaf.shared_height]
    assert shared
    for leaf in shared:
        assert leaf._joint is not None
        before = whole.leaves[0]
        assert isinstance(before, TextBlock)
        position = text.index(leaf.plain_text())
        line = before._layout._layout.lineForTextPosition(position)
        x = line.cursorToX(position)
        assert leaf._joint.x == pytest.approx(x[0] if isinstance(x, tuple) else x, abs=1)


def test_copy_over_pieces_has_no_break_that_was_not_typed(parent: QWidget) -> None:
    for name in ("words", "lines", "one word"):
        flow = laid_out(parent, TEXTS[name], 498)
        selection = TextSelection(functools.partial(getattr, flow, "leaves"))
        selection.select_all()
        assert selection.text() == TEXTS[name]


def test_paragraphs_of_their_own_are_copied_with_an_empty_line_between(parent: QWidget) -> None:
    flow = BlockFlow(Theme(), parent)
    flow.show_blocks(
        [Paragraph((Run("a"),)), Paragraph((Run("b"),))], num_same=0, deadline=float("inf")
    )
    flow.layout_to(300)
    selection = TextSelection(lambda: flow.leaves)
    selection.select_all()
    assert selection.text() == "a\n\nb"


@pytest.mark.parametrize("text", [WORDS, ARABIC], ids=["words", "arabic"])
def test_both_parts_of_a_shared_line_can_be_selected(parent: QWidget, text: str) -> None:
    flow = laid_out(parent, text, 498)
    leaf = next(it for it in flow.leaves if isinstance(it, TextBlock) and it.shared_height)
    assert leaf._joint is not None
    index = flow.leaves.index(leaf)
    middle = leaf.y() + leaf.shared_height // 2
    selection = TextSelection(lambda: flow.leaves)
    for offset, owner in ((-40, index - 1), (40, index)):
        offset = -offset if leaf.is_right_to_left else offset
        near, far = (round(leaf._joint.x + part * offset) for part in (0.25, 1))
        selection.begin(flow.mapToGlobal(QPoint(near, middle)))
        selection.extend(flow.mapToGlobal(QPoint(far, middle)))
        chosen = selection.text()
        assert len(chosen.strip()) > 2
        assert flow.leaves[owner].selected_text() == chosen
        assert chosen in text


@pytest.mark.parametrize("piece_chars", range(60, 75))
def test_no_piece_begins_with_a_gap_wherever_it_is_cut(piece_chars: int) -> None:
    text = "one box    another box   and more     boxes  " * 20
    pieces = ["".join(run.text for run in block.runs) for block in typed_blocks(text, piece_chars)]
    assert "".join(pieces) == text
    assert len(pieces) > 10
    assert [piece for piece in pieces if piece.startswith(" ")] == []
