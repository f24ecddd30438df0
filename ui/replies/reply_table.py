"""A table: hairlines between rows only, wide ones scroll sideways inside. GUI thread.

Rows are laid out in slices, so a table of a thousand rows appears at once and grows downwards.
"""

import time
from bisect import bisect_right

from PySide6.QtCore import QPoint, QPointF, QRectF, Qt
from PySide6.QtGui import QKeyEvent, QPainter, QPainterPath, QPaintEvent, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QScrollBar, QWidget

from ui.look.painting import paint_rounded
from ui.look.theme import Theme
from ui.markdown.blocks import Block, Run, Table, plain_text
from ui.replies.reply_layout import RunLayout
from ui.replies.reply_leaf import Leaf, scroll_by_key, scroll_sideways

RADIUS = 10
FIRST_ROWS = 40
"""So many rows are laid out at once, whatever they cost."""

_PADDING_X = 14
_ROW_HEIGHT = 32
_MAX_CELL_WIDTH = 360
_MIN_CELL_WIDTH = 90
_MAX_DESCRIBED_ROWS = 20
_ALIGNMENTS = {
    "left": Qt.AlignmentFlag.AlignLeft,
    "center": Qt.AlignmentFlag.AlignHCenter,
    "right": Qt.AlignmentFlag.AlignRight,
}

Cells = tuple[tuple[Run, ...], ...]


class TableBlock(Leaf):
    """One table."""

    def __init__(self, block: Table, theme: Theme, parent: QWidget) -> None:
        super().__init__(theme, parent)
        self._block = block
        self._rows: list[list[RunLayout]] = []
        self._tops: list[int] = [0]
        self._num_set = 0  # rows that have their place
        self._columns: list[int] = []
        self._width = 0
        self._bar = QScrollBar(Qt.Orientation.Horizontal, self)
        self._bar.valueChanged.connect(self.update)
        self._bar.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._bar.hide()
        self.setCursor(Qt.CursorShape.IBeamCursor)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setProperty("focusRadius", RADIUS)
        self._show(block)

    def set_block(self, block: Block) -> bool:
        """Show more rows, or another table."""
        if not isinstance(block, Table):
            return False
        if block is not self._block:
            self._show(block)
        return True

    def _show(self, block: Table) -> None:
        """Keep the layouts of rows that stayed the same."""
        before = [self._block.header, *self._block.rows]
        after = [block.header, *block.rows]
        same = 0
        if block.aligns == self._block.aligns:
            pairs = zip(before, after, strict=False)
            same = next(
                (i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after))
            )
        del self._rows[same:]
        self._num_set = min(self._num_set, same)
        if len(block.header) != len(self._block.header) or same == 0:
            self._columns = []
        self._block = block
        self.frames = block.frames
        self.setAccessibleName(f"Table, {len(block.rows)} rows, {len(block.header)} columns")
        self.setAccessibleDescription(
            "; ".join(", ".join(map(plain_text, row)) for row in after[:_MAX_DESCRIBED_ROWS])
        )
        self.update()

    def restyle(self) -> None:
        """Make all layouts again."""
        self._rows.clear()
        self._columns = []
        self._num_set = 0
        self.update()

    # ------------------------------------------------------------ layout

    def layout_to(self, width: int) -> int:
        """Lay out the first rows, which alone decide the columns; `advance` does the rest.

        The height has room for the others already, or what is below would move up and down again.
        """
        is_new_width, columns = width != self._width, self._columns
        self._width = width
        if is_new_width or not self._columns or self._num_set < FIRST_ROWS:
            while len(self._rows) < min(len(self._block.rows) + 1, FIRST_ROWS):
                self._make_row()
            self._columns = self._shared_columns()
        if is_new_width or columns != self._columns:
            self._num_set = 0
        del self._tops[self._num_set + 1 :]
        while self._num_set < min(len(self._rows), FIRST_ROWS):
            self._set_row()
        self._bar.setVisible(self._bar_height() > 0)
        num_left = len(self._block.rows) + 1 - self._num_set
        return self._tops[-1] + num_left * self._theme.px(_ROW_HEIGHT) + self._bar_height()

    def advance(self, deadline: float) -> bool:
        """Lay out more rows."""
        if self.is_finished or not self._columns:  # columns come with the next `layout_to`
            return True
        while not self.is_finished:
            if self._num_set == len(self._rows):
                self._make_row()
            self._set_row()
            if time.perf_counter() > deadline:
                break
        self.height_changed.emit()
        return self.is_finished

    @property
    def is_finished(self) -> bool:
        """Whether every row has its place."""
        return self._num_set > len(self._block.rows)

    def _make_row(self) -> None:
        index = len(self._rows)
        is_head = index == 0
        cells = self._block.header if is_head else self._block.rows[index - 1]
        row = [self._made_cell(cells, column, is_head) for column in range(len(cells))]
        self._rows.append(row)

    def _made_cell(self, cells: Cells, column: int, is_head: bool) -> RunLayout:
        style = "table_head" if is_head else "body"
        strong = "table_head" if is_head else "body_strong"
        align = _ALIGNMENTS[self._block.aligns[column]]
        return RunLayout(
            cells[column],
            self._theme,
            style,
            strong_style=strong,
            color="text_2" if is_head else "text",
            alignment=align,
        )

    def _shared_columns(self) -> list[int]:
        """Edges of the columns: what is over goes to all, what lacks comes from the wide ones."""
        padding = 2 * _PADDING_X
        wanted = [float(padding)] * len(self._block.header)
        for row in self._rows[:FIRST_ROWS]:
            for column, cell in enumerate(row):
                cell.set_width(self._theme.px(_MAX_CELL_WIDTH))
                wanted[column] = max(wanted[column], cell.natural_width + 1 + padding)
        total = sum(wanted)
        equal = self._width / len(wanted)
        if max(wanted) <= equal:
            wanted = [equal] * len(wanted)
        elif total <= self._width:
            wanted = [width + (self._width - total) / len(wanted) for width in wanted]
        else:
            least = [min(width, self._theme.px(_MIN_CELL_WIDTH) + padding) for width in wanted]
            room = total - sum(least)
            share = min((total - self._width) / room, 1.0) if room > 0 else 0.0
            pairs = zip(wanted, least, strict=True)
            wanted = [width - (width - low) * share for width, low in pairs]
        self._num_set = 0  # measuring broke the lines at other places
        return [round(sum(wanted[:index])) for index in range(len(wanted) + 1)]

    def _set_row(self) -> None:
        """Give the next row its place; its cells break their lines."""
        tallest = 1
        for column, cell in enumerate(self._rows[self._num_set]):
            cell.set_width(self._columns[column + 1] - self._columns[column] - 2 * _PADDING_X)
            tallest = max(tallest, cell.num_lines)
        extra = (tallest - 1) * self._theme.line_height("body")
        self._tops.append(self._tops[-1] + self._theme.px(_ROW_HEIGHT) + extra)
        self._num_set += 1

    def _bar_height(self) -> int:
        is_wide = bool(self._columns) and self._columns[-1] > self._width
        return self._bar.sizeHint().height() if is_wide else 0

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        reach = max(self._columns[-1] - self.width(), 0) if self._columns else 0
        self._bar.setRange(0, reach)
        self._bar.setPageStep(self.width())
        self._bar.setSingleStep(40)
        bar = self._bar.sizeHint().height()
        self._bar.setGeometry(6, self.height() - bar - 1, self.width() - 12, bar)

    def caret_point(self) -> QPointF:
        """Behind the last cell's text."""
        if not self._num_set:
            return QPointF(0, 0)
        row = self._num_set - 1
        filled = [c for c, cell in enumerate(self._rows[row]) if cell.text]
        column = filled[-1] if filled else 0
        return self._cell_origin(row, column) + self._rows[row][column].end_point()

    def _cell_origin(self, row: int, column: int) -> QPointF:
        line = self._theme.line_height("table_head" if row == 0 else "body")
        top = self._tops[row] + (self._theme.px(_ROW_HEIGHT) - line) / 2
        return QPointF(self._columns[column] + _PADDING_X - self._bar.value(), round(top))

    # ------------------------------------------------------------ painting

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        if len(self._tops) < 2:
            return
        painter = QPainter(self)
        colors = self._theme.palette
        frame = QRectF(self.rect())
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        path = QPainterPath()
        path.addRoundedRect(frame.adjusted(0.5, 0.5, -0.5, -0.5), RADIUS - 0.5, RADIUS - 0.5)
        painter.setClipPath(path)
        painter.fillRect(QRectF(0, 0, self.width(), self._tops[1]), self._theme.color("sunken"))
        exposed = event.rect()
        first = max(bisect_right(self._tops, exposed.top()) - 1, 0)
        position = sum(self._row_length(row) for row in range(first)) if self._selection else 0
        for row in range(first, self._num_set):
            if self._tops[row] > exposed.bottom():
                break
            if row:
                line = QRectF(0, self._tops[row], self.width(), 1)
                painter.fillRect(line, self._theme.color("border"))
            position = self._paint_row(painter, row, position)
        painter.restore()
        paint_rounded(painter, frame, RADIUS, outline=colors.border)

    def _paint_row(self, painter: QPainter, row: int, position: int) -> int:
        for column, cell in enumerate(self._rows[row]):
            selection = None
            if self._selection is not None:
                first, last = (edge - position for edge in self._selection)
                selection = (max(first, 0), min(last, cell.length))
            cell.draw(painter, self._cell_origin(row, column), selection)
            position += cell.length + 1
        return position

    # ------------------------------------------------------------ selection

    def _row_length(self, row: int) -> int:
        return sum(cell.length + 1 for cell in self._rows[row])

    def text_length(self) -> int:
        """All cells, each followed by one position for its tab or line end."""
        return sum(self._row_length(row) for row in range(len(self._rows)))

    def position_at(self, point: QPoint) -> int:
        """The position nearest to `point`."""
        if not self._rows:
            return 0
        row = min(max(bisect_right(self._tops, point.y()) - 1, 0), len(self._rows) - 1)
        x = point.x() + self._bar.value()
        column = min(max(bisect_right(self._columns, x) - 1, 0), len(self._rows[row]) - 1)
        position = sum(self._row_length(before) for before in range(row))
        position += sum(cell.length + 1 for cell in self._rows[row][:column])
        inside = QPointF(point) - self._cell_origin(row, column)
        return position + self._rows[row][column].position_at(inside)

    def plain_text(self) -> str:
        """All rows, laid out or not, cells parted by tabs."""
        rows = (self._block.header, *self._block.rows)
        return "\n".join("\t".join(plain_text(cell) for cell in row) for row in rows)

    def selected_text(self) -> str:
        """The selected cells, parted by tabs and line feeds."""
        if self._selection is None:
            return ""
        first, last = self._selection
        rows: list[str] = []
        position = 0
        for row in self._rows:
            texts: list[str] = []
            for cell in row:
                if first <= position + cell.length and position < last:
                    start, end = max(first - position, 0), min(last - position, cell.length)
                    texts.append(cell.copied_text(start, end).replace("\n", " "))
                position += cell.length + 1
            if texts:
                rows.append("\t".join(texts))
        return "\n".join(rows)

    # ------------------------------------------------------------ scrolling sideways

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Qt override: sideways moves the table, up and down moves the chat."""
        if not scroll_sideways(self._bar, event):
            event.ignore()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Qt override: left and right move the table sideways."""
        if not scroll_by_key(self._bar, event):
            event.ignore()
