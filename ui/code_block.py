"""A block of code: head with language and Copy, highlighted lines, scrolling sideways. GUI thread.

Only the lines on screen are laid out and painted, and a very long line only in pieces, so neither a
thousand lines nor a line of a hundred thousand characters costs more than what is seen.
"""

import time
from collections import OrderedDict
from itertools import accumulate

from PySide6.QtCore import QPoint, QPointF, QRectF, Qt, QTimer
from PySide6.QtGui import (
    QColor,
    QFontMetricsF,
    QKeyEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QTextCharFormat,
    QTextLayout,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import QScrollBar, QWidget

from ui.markdown.blocks import Block, Code
from ui.painting import paint_rounded
from ui.reply_buttons import CopyButton
from ui.reply_highlight import Highlighter, LineColors, language_name
from ui.reply_layout import format_range, utf16_length, utf16_slice
from ui.reply_leaf import Leaf
from ui.theme import Theme

HEAD_HEIGHT = 36
RADIUS = 10
PIECE_CHARS = 400
"""Long lines are laid out in pieces of this many characters."""

_PADDING_X = 16
_PADDING_TOP = 6
_PADDING_BOTTOM = 16
_MAX_CACHED_LAYOUTS = 600
_SLICE_S = 0.003
_HIGHLIGHT_PAUSE_MS = 60
_TAB_COLUMNS = 4


class CodeBlock(Leaf):
    """One code block."""

    def __init__(self, block: Code, theme: Theme, parent: QWidget) -> None:
        super().__init__(theme, parent)
        self._block = block
        self._lines: list[str] = []
        self._starts: list[int] = [0]
        self._text_width = 0.0
        self._highlighter = Highlighter(block.language)
        self._layouts: OrderedDict[tuple[int, int], QTextLayout] = OrderedDict()
        self._is_final_pass = False
        self._offsets: dict[int, list[float]] = {}
        self._copy_button = CopyButton(theme, self._code_text, self)
        self._bar = QScrollBar(Qt.Orientation.Horizontal, self)
        self._bar.valueChanged.connect(self.update)
        self._bar.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._bar.hide()
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._highlight)
        self.setCursor(Qt.CursorShape.IBeamCursor)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setProperty("focusRadius", RADIUS)
        self._measure()
        self._show(block)

    # ------------------------------------------------------------ content

    def set_block(self, block: Block) -> bool:
        """Show more or other code; appended lines keep everything before them."""
        if not isinstance(block, Code):
            return False
        if block is not self._block:
            if block.language != self._block.language:
                self._highlighter = Highlighter(block.language)
                self._layouts.clear()
            self._show(block)
        return True

    def _show(self, block: Code) -> None:
        lines = block.text.split("\n")
        first = 0
        if self._lines and block.text.startswith(self._block.text):
            first = len(self._lines) - 1
        self._block = block
        self.frames = block.frames
        self._drop_layouts(first)
        new = lines[first:]
        self._lines[first:] = new
        del self._starts[first + 1 :]
        lengths = (utf16_length(line) + 1 for line in new)
        self._starts += list(accumulate(lengths, initial=self._starts[first]))[1:]
        if first == 0:
            self._text_width = 0.0
        self._text_width = max([self._text_width, *(self._line_width(line) for line in new)])
        name = language_name(block.language)
        self.setAccessibleName(f"Code, {name}, {len(self._lines)} lines")
        self.setAccessibleDescription(block.text[:2000])
        if not self._highlighter.is_plain and not self._timer.isActive():
            self._timer.start(0 if block.is_closed else _HIGHLIGHT_PAUSE_MS)
        self._place_bar()
        self.update()

    def _code_text(self) -> str:
        return self._block.text

    def _drop_layouts(self, first: int) -> None:
        for key in [key for key in self._layouts if key[0] >= first]:
            del self._layouts[key]
        for line in [line for line in self._offsets if line >= first]:
            del self._offsets[line]

    def _line_width(self, line: str) -> float:
        if line.isascii():
            columns = len(line.expandtabs(_TAB_COLUMNS)) if "\t" in line else len(line)
            return columns * self._char_width
        return sum(self._piece_width(piece) for piece in _pieces(line))

    def _piece_width(self, piece: str) -> float:
        if piece.isascii():
            return len(piece.expandtabs(_TAB_COLUMNS)) * self._char_width
        return self._metrics.horizontalAdvance(piece.expandtabs(_TAB_COLUMNS))

    # ------------------------------------------------------------ colours

    def _highlight(self) -> None:
        """Colour for one slice; the timer brings the next one."""
        if not self._highlighter.is_working:
            self._highlighter.start(self._lines, is_closed=self._block.is_closed)
            self._is_final_pass = self._block.is_closed
        changed = self._highlighter.work(time.perf_counter() + _SLICE_S)
        for line in changed:
            for piece in range(
                len(self._lines[line]) // PIECE_CHARS + 1 if line < len(self._lines) else 0
            ):
                self._layouts.pop((line, piece), None)
        if changed:
            self.update()
        if self._highlighter.is_working:
            self._timer.start(2)
        elif self._block.is_closed and not self._is_final_pass:
            self._timer.start(0)
        elif not self._block.is_closed and len(self._highlighter.colors) < len(self._lines):
            self._timer.start(_HIGHLIGHT_PAUSE_MS)

    # ------------------------------------------------------------ layout

    def _measure(self) -> None:
        self._font = self._theme.font("code")
        self._metrics = QFontMetricsF(self._font)
        self._char_width = self._metrics.horizontalAdvance("0" * 64) / 64
        self._line_height = self._theme.line_height("code")
        free = self._line_height - self._metrics.ascent() - self._metrics.descent()
        self._baseline = round(free / 2 + self._metrics.ascent())
        self._head_height = self._theme.px(HEAD_HEIGHT)

    def restyle(self) -> None:
        """Measure again."""
        self._layouts.clear()
        self._offsets.clear()
        self._measure()
        self._text_width = max((self._line_width(line) for line in self._lines), default=0.0)
        self._place_bar()
        self.update()

    def layout_to(self, width: int) -> int:
        """Lines never wrap: the height depends on their number and the scroll bar alone."""
        bar = self._bar.sizeHint().height() if self._text_width > width - 2 * _PADDING_X else 0
        height = self._head_height + _PADDING_TOP + _PADDING_BOTTOM
        return height + len(self._lines) * self._line_height + (bar if bar else 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        self._copy_button.resize(self._copy_button.sizeHint())
        self._copy_button.move(
            self.width() - self._copy_button.width() - 6,
            (self._head_height - self._copy_button.height()) // 2,
        )
        self._place_bar()

    def _place_bar(self) -> None:
        visible = self.width() - 2 * _PADDING_X
        reach = round(self._text_width + 0.5) - visible
        self._bar.setVisible(reach > 0)
        self._bar.setRange(0, max(reach, 0))
        self._bar.setPageStep(max(visible, 1))
        self._bar.setSingleStep(round(self._char_width * 4))
        height = self._bar.sizeHint().height()
        self._bar.setGeometry(6, self.height() - height - 2, self.width() - 12, height)

    def caret_point(self) -> QPointF:
        """Behind the last character."""
        line = len(self._lines) - 1
        x = _PADDING_X - self._bar.value() + self._line_width(self._lines[line])
        lift = (self._theme.line_height("body") - self._line_height) / 2
        return QPointF(min(x, self.width() - _PADDING_X), self._line_top(line) - lift)

    def _line_top(self, line: int) -> int:
        return self._head_height + _PADDING_TOP + line * self._line_height

    # ------------------------------------------------------------ painting

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        colors = self._theme.palette
        frame = QRectF(self.rect())
        paint_rounded(painter, frame, RADIUS, fill=colors.sunken, outline=colors.border)
        painter.setFont(self._theme.font("small_strong"))
        painter.setPen(QColor(colors.text_2))
        head = QRectF(_PADDING_X, 0, self.width() - 2 * _PADDING_X, self._head_height)
        name = language_name(self._block.language)[:40]
        painter.drawText(head, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, name)
        exposed = event.rect()
        top = self._line_top(0)
        first = max((exposed.top() - top) // self._line_height, 0)
        last = min((exposed.bottom() - top) // self._line_height, len(self._lines) - 1)
        painter.setClipRect(self.rect().adjusted(_PADDING_X - 4, 0, 4 - _PADDING_X, -1))
        for line in range(first, last + 1):
            self._paint_line(painter, line)

    def _paint_line(self, painter: QPainter, line: int) -> None:
        text = self._lines[line]
        left = _PADDING_X - self._bar.value()
        top = self._line_top(line)
        painter.setPen(self._theme.color("text"))
        for piece, x in enumerate(self._piece_offsets(line)):
            start = piece * PIECE_CHARS
            if left + x > self.width():
                break
            layout = self._piece_layout(line, piece, text[start : start + PIECE_CHARS])
            if left + x + layout.boundingRect().width() < 0:
                continue
            y = top + self._baseline - layout.lineAt(0).ascent()
            layout.draw(painter, QPointF(left + x, y), self._selected_part(line, start, piece))

    def _piece_offsets(self, line: int) -> list[float]:
        text = self._lines[line]
        if len(text) <= PIECE_CHARS:
            return [0.0]
        if line not in self._offsets:
            widths = [self._piece_width(piece) for piece in _pieces(text)]
            self._offsets[line] = list(accumulate(widths[:-1], initial=0.0))
        return self._offsets[line]

    def _piece_layout(self, line: int, piece: int, text: str) -> QTextLayout:
        key = (line, piece)
        layout = self._layouts.get(key)
        if layout is not None:
            self._layouts.move_to_end(key)
            return layout
        layout = QTextLayout(text, self._font)
        option = QTextOption()
        option.setWrapMode(QTextOption.WrapMode.NoWrap)
        option.setTextDirection(Qt.LayoutDirection.LeftToRight)
        option.setTabStopDistance(_TAB_COLUMNS * self._char_width)
        layout.setTextOption(option)
        colors = self._highlighter.colors
        if line < len(colors):
            layout.setFormats(self._formats(text, colors[line], piece * PIECE_CHARS))
        layout.beginLayout()
        layout.createLine()
        layout.endLayout()
        self._layouts[key] = layout
        if len(self._layouts) > _MAX_CACHED_LAYOUTS:
            self._layouts.popitem(last=False)
        return layout

    def _formats(self, text: str, colors: LineColors, offset: int) -> list[QTextLayout.FormatRange]:
        formats: list[QTextLayout.FormatRange] = []
        for start, end, role in colors:
            start, end = max(start - offset, 0), min(end - offset, len(text))
            if start < end:
                char_format = QTextCharFormat()
                char_format.setForeground(QColor(getattr(self._theme.palette.code, role)))
                first = utf16_length(text[:start])
                length = utf16_length(text[start:end])
                formats.append(format_range(first, length, char_format))
        return formats

    # ------------------------------------------------------------ selection

    def _selected_part(self, line: int, start: int, piece: int) -> list[QTextLayout.FormatRange]:
        if self._selection is None:
            return []
        first, last = self._selection
        base = self._starts[line]
        if piece:
            base += utf16_length(self._lines[line][:start])
        length = utf16_length(self._lines[line][start : start + PIECE_CHARS])
        first, last = max(first - base, 0), min(last - base, length)
        if first >= last:
            return []
        char_format = QTextCharFormat()
        char_format.setBackground(self._theme.color("accent"))
        char_format.setForeground(self._theme.color("on_accent"))
        return [format_range(first, last - first, char_format)]

    def text_length(self) -> int:
        """Length of the code in Qt's units."""
        return self._starts[-1] - 1

    def position_at(self, point: QPoint) -> int:
        """The position nearest to `point`."""
        row = (point.y() - self._line_top(0)) // self._line_height
        if row < 0:
            return 0
        if row >= len(self._lines):
            return self.text_length()
        x = point.x() - _PADDING_X + self._bar.value()
        offsets = self._piece_offsets(row)
        piece = max(index for index, left in enumerate(offsets) if left <= max(x, 0))
        start = piece * PIECE_CHARS
        layout = self._piece_layout(row, piece, self._lines[row][start : start + PIECE_CHARS])
        inside = int(layout.lineAt(0).xToCursor(x - offsets[piece]))
        return self._starts[row] + utf16_length(self._lines[row][:start]) + inside

    def selected_text(self) -> str:
        """The selected code."""
        return utf16_slice(self._block.text, *self._selection) if self._selection else ""

    # ------------------------------------------------------------ scrolling sideways

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Qt override: sideways moves the code, up and down moves the chat."""
        delta = event.angleDelta()
        is_sideways = abs(delta.x()) > abs(delta.y())
        if event.modifiers() & Qt.KeyboardModifier.ShiftModifier and not is_sideways:
            is_sideways, delta = True, QPoint(delta.y(), 0)
        if not self._bar.isVisible() or not is_sideways:
            event.ignore()
            return
        self._bar.setValue(self._bar.value() - delta.x() // 2)
        event.accept()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Qt override: left and right move the code sideways."""
        step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()), 0)
        if step and self._bar.isVisible():
            self._bar.setValue(self._bar.value() + step * self._bar.singleStep())
            return
        event.ignore()


def _pieces(line: str) -> list[str]:
    return [line[start : start + PIECE_CHARS] for start in range(0, len(line), PIECE_CHARS)] or [""]
