"""Lines of code: measured, coloured, laid out and painted only where they are seen. GUI thread.

    one line   |- piece 0: 400 characters -|- piece 1 -|- piece 2 … -|     laid out when painted
    positions  starts[line] + Qt's units within the line

A line of a hundred thousand characters is so many pieces, of which a few are on screen.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import accumulate

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QTextCharFormat, QTextLayout, QTextOption

from ui.look.theme import Theme
from ui.replies.reply_highlight import LineColors
from ui.replies.reply_layout import format_range, utf16_length

PIECE_CHARS = 400
_MAX_LAYOUTS = 600
_TAB_COLUMNS = 4


class CodeLines:
    """The text of one code block.

    Attributes:
        lines: The text.
        width: Of the longest line, in logical pixels.
        line_height: In logical pixels.
        char_width: Width of one character of the fixed-width font.
        colors: By line; shared with the highlighter, may be shorter than `lines`.
    """

    def __init__(self, theme: Theme) -> None:
        self.lines: list[str] = []
        self.width = 0.0
        self.colors: list[LineColors] = []
        self._theme = theme
        self._text = ""
        self._starts = [0]
        self._layouts: OrderedDict[tuple[int, int], QTextLayout] = OrderedDict()
        self._offsets: dict[int, list[float]] = {}
        self.restyle()

    def restyle(self) -> None:
        """Colours or sizes are new."""
        self._font = self._theme.font("code")
        self._metrics = QFontMetricsF(self._font)
        self.char_width = self._metrics.horizontalAdvance("0" * 64) / 64
        self.line_height = self._theme.line_height("code")
        free = self.line_height - self._metrics.ascent() - self._metrics.descent()
        self._baseline = round(free / 2 + self._metrics.ascent())
        self._layouts.clear()
        self._offsets.clear()
        self.width = max((self.line_width(line) for line in self.lines), default=0.0)

    # ------------------------------------------------------------ text

    def set_text(self, text: str) -> None:
        """Show `text`; if it only grew, everything before its last line is kept."""
        is_longer = bool(self.lines) and text.startswith(self._text)
        first = len(self.lines) - 1 if is_longer else 0
        start = self._text.rfind("\n") + 1 if is_longer else 0
        self._text = text
        new = text[start:].split("\n")
        self.lines[first:] = new
        del self._starts[first + 1 :]
        lengths = (utf16_length(line) + 1 for line in new)
        self._starts += list(accumulate(lengths, initial=self._starts[first]))[1:]
        known_width = self.width if first else 0.0
        self.width = max(known_width, *(self.line_width(line) for line in new))
        for key in [key for key in self._layouts if key[0] >= first]:
            del self._layouts[key]
        for line in [line for line in self._offsets if line >= first]:
            del self._offsets[line]

    @property
    def length(self) -> int:
        """Of the whole text in Qt's units."""
        return self._starts[-1] - 1

    def forget(self, lines: Iterable[int]) -> None:
        """These lines have new colours."""
        for line in lines:
            if line < len(self.lines):
                for piece in range(len(self.lines[line]) // PIECE_CHARS + 1):
                    self._layouts.pop((line, piece), None)

    # ------------------------------------------------------------ measures

    def line_width(self, line: str) -> float:
        """Width of a line of text; a product where every character is as wide as the others."""
        if line.isascii():
            columns = len(line.expandtabs(_TAB_COLUMNS)) if "\t" in line else len(line)
            return columns * self.char_width
        return sum(self._piece_width(piece) for piece in _pieces(line))

    def _piece_width(self, piece: str) -> float:
        if piece.isascii():
            return len(piece.expandtabs(_TAB_COLUMNS)) * self.char_width
        return self._metrics.horizontalAdvance(piece.expandtabs(_TAB_COLUMNS))

    def _piece_offsets(self, line: int) -> list[float]:
        text = self.lines[line]
        if len(text) <= PIECE_CHARS:
            return [0.0]
        if line not in self._offsets:
            widths = [self._piece_width(piece) for piece in _pieces(text)]
            self._offsets[line] = list(accumulate(widths[:-1], initial=0.0))
        return self._offsets[line]

    def position_at(self, line: int, x: float) -> int:
        """The position in `line` nearest to `x`, counted from the start of the text."""
        offsets = self._piece_offsets(line)
        piece = max(index for index, left in enumerate(offsets) if left <= max(x, 0.0))
        inside = int(self._layout_of(line, piece).lineAt(0).xToCursor(x - offsets[piece]))
        return self._piece_start(line, piece) + inside

    def _piece_start(self, line: int, piece: int) -> int:
        before = self.lines[line][: piece * PIECE_CHARS]
        return self._starts[line] + utf16_length(before)

    # ------------------------------------------------------------ painting

    def paint_line(
        self,
        painter: QPainter,
        line: int,
        origin: QPointF,
        *,
        right: float,
        selection: tuple[int, int] | None,
    ) -> None:
        """Paint what lies between 0 and `right` of a line whose top left is `origin`."""
        painter.setPen(self._theme.color("text"))
        offsets = self._piece_offsets(line)
        for piece, offset in enumerate(offsets):
            x = origin.x() + offset
            if x > right:
                break
            if piece + 1 < len(offsets) and origin.x() + offsets[piece + 1] < 0:
                continue
            layout = self._layout_of(line, piece)
            y = origin.y() + self._baseline - layout.lineAt(0).ascent()
            selected = self._selected(line, piece, selection)
            layout.draw(painter, QPointF(x, y), selected)

    def _layout_of(self, line: int, piece: int) -> QTextLayout:
        key = (line, piece)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._made_layout(line, piece)
            self._layouts[key] = layout
            if len(self._layouts) > _MAX_LAYOUTS:
                self._layouts.popitem(last=False)
        else:
            self._layouts.move_to_end(key)
        return layout

    def _made_layout(self, line: int, piece: int) -> QTextLayout:
        start = piece * PIECE_CHARS
        text = self.lines[line][start : start + PIECE_CHARS]
        layout = QTextLayout(text, self._font)
        option = QTextOption()
        option.setWrapMode(QTextOption.WrapMode.NoWrap)
        option.setTextDirection(Qt.LayoutDirection.LeftToRight)
        option.setTabStopDistance(_TAB_COLUMNS * self.char_width)
        layout.setTextOption(option)
        if line < len(self.colors):
            layout.setFormats(self._formats(text, self.colors[line], start))
        layout.beginLayout()
        layout.createLine()
        layout.endLayout()
        return layout

    def _formats(self, text: str, colors: LineColors, offset: int) -> list[QTextLayout.FormatRange]:
        formats: list[QTextLayout.FormatRange] = []
        for start, end, role in colors:
            start, end = max(start - offset, 0), min(end - offset, len(text))
            if start < end:
                char_format = QTextCharFormat()
                char_format.setForeground(QColor(getattr(self._theme.palette.code, role)))
                length = utf16_length(text[start:end])
                formats.append(format_range(utf16_length(text[:start]), length, char_format))
        return formats

    def _selected(
        self, line: int, piece: int, selection: tuple[int, int] | None
    ) -> list[QTextLayout.FormatRange]:
        if selection is None:
            return []
        start = piece * PIECE_CHARS
        base = self._piece_start(line, piece)
        length = utf16_length(self.lines[line][start : start + PIECE_CHARS])
        first, last = max(selection[0] - base, 0), min(selection[1] - base, length)
        if first >= last:
            return []
        char_format = QTextCharFormat()
        char_format.setBackground(self._theme.color("accent"))
        char_format.setForeground(self._theme.color("on_accent"))
        return [format_range(first, last - first, char_format)]


def _pieces(line: str) -> list[str]:
    return [line[start : start + PIECE_CHARS] for start in range(0, len(line), PIECE_CHARS)] or [""]
