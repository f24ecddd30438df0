"""Tables: widths, slices, selection."""

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QScrollBar
from pytestqt.qtbot import QtBot

from tests.ui.reply_helpers import NO_DEADLINE, make_parent, make_theme
from ui.markdown.blocks import Align, Paragraph, Run, Table
from ui.replies.reply_table import FIRST_ROWS, TableBlock


def cells(*texts: str) -> tuple[tuple[Run, ...], ...]:
    return tuple((Run(text),) if text else () for text in texts)


def make_table(num_rows: int, *texts: str) -> Table:
    texts = texts or ("some text", "12.5")
    right: Align = "right"
    aligns: list[Align] = ["left", *(right for _ in texts[1:])]
    header = cells(*(f"head {n}" for n in range(len(texts))))
    return Table(header, (cells(*texts),) * num_rows, tuple(aligns))


def make_block(qtbot: QtBot, table: Table, width: int = 600) -> TableBlock:
    parent = make_parent(qtbot, width, 800)
    block = TableBlock(table, make_theme(), parent)
    block.resize(width, block.layout_to(width))
    parent.show()
    return block


def test_table_takes_the_whole_width_in_equal_columns(qtbot):
    block = make_block(qtbot, make_table(2, "a", "b", "c"))
    assert block._columns == [0, 200, 400, 600]
    assert block.layout_to(600) == 3 * 32


def test_table_wide_column_gets_more(qtbot):
    block = make_block(qtbot, make_table(1, "a long text that needs its width", "b", "c"), 500)
    first, second = block._columns[1], block._columns[2] - block._columns[1]
    assert first > 2 * second
    assert block._columns[-1] == 500


def test_table_long_cells_wrap_and_make_their_row_taller(qtbot):
    block = make_block(qtbot, make_table(1, "word " * 40, "b"), 400)
    extra = block.layout_to(400) - 64
    assert extra > 0
    assert extra % 24 == 0


def test_table_that_cannot_fit_scrolls_inside(qtbot):
    block = make_block(qtbot, make_table(2, *["some longer text"] * 9), 500)
    (bar,) = block.findChildren(QScrollBar)
    assert bar.isVisible()
    qtbot.keyClick(block, Qt.Key.Key_Right)
    assert bar.value() == 40
    qtbot.keyClick(block, Qt.Key.Key_Left)
    qtbot.keyClick(block, Qt.Key.Key_A)
    assert bar.value() == 0
    block.grab()


def test_table_rows_come_in_slices(qtbot):
    block = make_block(qtbot, make_table(200))
    assert block.layout_to(600) == 201 * 32
    assert block._num_set == FIRST_ROWS
    assert not block.advance(0.0)
    assert block.advance(NO_DEADLINE)
    assert block.layout_to(600) == 201 * 32
    assert block.advance(0.0)


def test_table_that_grows_keeps_its_rows(qtbot):
    block = make_block(qtbot, make_table(3))
    first = block._rows[0]
    assert block.set_block(make_table(5))
    assert block.layout_to(600) == 6 * 32
    assert block._rows[0] is first
    assert not block.set_block(Paragraph(()))


def test_table_long_one_that_grows_never_moves_its_columns(qtbot):
    block = make_block(qtbot, make_table(100))
    block.advance(NO_DEADLINE)
    block.layout_to(600)
    columns, row = block._columns, block._rows[50]
    table = make_table(100)
    grown = Table(table.header, (*table.rows, cells("word " * 50, "1")), table.aligns)
    block.set_block(grown)
    block.layout_to(600)
    block.advance(NO_DEADLINE)
    block.layout_to(600)
    assert block._columns is columns
    assert block._rows[50] is row


def test_table_with_other_columns_is_laid_out_anew(qtbot):
    block = make_block(qtbot, make_table(2))
    block.set_block(make_table(2, "a", "b", "c"))
    assert block.layout_to(600) == 3 * 32
    assert len(block._columns) == 4


def test_table_selection_is_parted_by_tabs_and_lines(qtbot):
    block = make_block(qtbot, make_table(2, "ab", "cd"))
    block.set_selection((0, block.text_length()))
    assert block.selected_text() == "head 0\thead 1\nab\tcd\nab\tcd"
    start = block.position_at(QPoint(5, 40))
    end = block.position_at(QPoint(590, 90))
    block.set_selection((start, end))
    assert block.selected_text() == "ab\tcd\nab\tcd"
    block.grab()
    block.set_selection(None)
    assert block.selected_text() == ""


def test_table_caret_stands_behind_the_last_filled_cell(qtbot):
    table = make_table(1, "a", "")
    block = make_block(qtbot, table)
    assert block.caret_point().x() < 300
    assert block.caret_point().y() >= 32


@pytest.mark.parametrize("percent", [80, 200])
def test_table_restyle_follows_the_text_size(qtbot, percent):
    theme = make_theme()
    parent = make_parent(qtbot, 600, 300)
    block = TableBlock(make_table(2), theme, parent)
    block.layout_to(600)
    theme.set_text_size(percent)
    block.restyle()
    assert block.layout_to(600) == 3 * round(32 * percent / 100)
