"""Runs of text laid out in lines of a fixed height. GUI thread; no widgets, no loading of anything.

Positions are UTF-16 units, as Qt counts them: "😀" has two. Inline code gets a narrow space at each
end, which carries the pill's padding and is left out again when text is copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import bidirectional

from PySide6.QtCore import QPointF, QRectF, Qt, QTextBoundaryFinder
from PySide6.QtGui import (
    QFont,
    QFontMetricsF,
    QPainter,
    QTextCharFormat,
    QTextLayout,
    QTextLine,
    QTextOption,
)

from ui.look.painting import paint_rounded
from ui.look.theme import Theme
from ui.markdown.blocks import Run
from ui.replies.reply_joint import Joint

PILL_RADIUS = 5
_PAD = "\u00a0"
_LINE_BREAK = "\u2028"


def utf16_length(text: str) -> int:
    """How many units Qt counts."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def utf16_slice(text: str, start: int, end: int) -> str:
    """The characters between two of Qt's positions."""
    if text.isascii():
        return text[start:end]
    units = text.encode("utf-16-le", "surrogatepass")
    return units[2 * start : 2 * end].decode("utf-16-le", "replace")


@dataclass(frozen=True, slots=True)
class Link:
    """Where a link lies in the text."""

    start: int
    end: int
    address: str


class RunLayout:
    """Runs set in one style.

    Attributes:
        text: The characters as laid out, padding included.
        links: In order.
        height: Of all lines together; 0 before `set_width`.
        natural_width: Width of the longest line.
        line_height: Of each line.
        is_joined: Whether its first line begins behind other text.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        theme: Theme,
        style: str,
        *,
        strong_style: str,
        color: str = "text",
        alignment: Qt.AlignmentFlag | None = None,
    ) -> None:
        self.links: list[Link] = []
        self.height = 0
        self.natural_width = 0.0
        self.is_joined = False
        self.text = ""
        self._theme = theme
        self._style = style
        self._strong_style = strong_style
        self._color = color
        self._pads: list[int] = []
        self._pills: list[tuple[int, int]] = []
        self.line_height = theme.line_height(style)
        font = theme.font(style)
        metrics = QFontMetricsF(font)
        free = self.line_height - metrics.ascent() - metrics.descent()
        self._baseline = round(free / 2 + metrics.ascent())
        formats = self._collect(runs)
        self._layout = QTextLayout(self.text, font)
        self._layout.setCacheEnabled(True)
        option = QTextOption(self._mirrored(alignment))
        option.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        leftward = Qt.LayoutDirection.RightToLeft
        rightward = Qt.LayoutDirection.LeftToRight
        option.setTextDirection(leftward if self.is_right_to_left else rightward)
        option.setTabStopDistance(4 * metrics.horizontalAdvance(" "))
        self._layout.setTextOption(option)
        self._layout.setFormats(formats)

    # ------------------------------------------------------------ building

    def _mirrored(self, alignment: Qt.AlignmentFlag | None) -> Qt.AlignmentFlag:
        """None is the side where lines begin; a text layout by itself never mirrors anything."""
        if alignment is not None:
            return alignment
        right = Qt.AlignmentFlag.AlignRight
        return right if self.is_right_to_left else Qt.AlignmentFlag.AlignLeft

    def _collect(self, runs: Sequence[Run]) -> list[QTextLayout.FormatRange]:
        formats: list[QTextLayout.FormatRange] = []
        pieces: list[str] = []
        position = 0
        for run in runs:
            text = run.text.replace("\n", _LINE_BREAK)
            if run.code:
                text = f"{_PAD}{text}{_PAD}"
            length = utf16_length(text)
            if run.code:
                self._pads += [position, position + length - 1]
                self._pills.append((position, position + length))
            if run.link:
                self.links.append(Link(position, position + length, run.link))
            formats += self._formats_of(run, position, length)
            pieces.append(text)
            position += length
        self.text = "".join(pieces)
        return formats

    def _formats_of(self, run: Run, start: int, length: int) -> list[QTextLayout.FormatRange]:
        char_format = QTextCharFormat()
        char_format.setFont(self._font_of(run))
        if run.strike:
            char_format.setFontStrikeOut(True)
        if run.link:
            char_format.setForeground(self._theme.color("accent_text"))
            char_format.setFontUnderline(True)
        ranges = [format_range(start, length, char_format)]
        if run.code:
            narrow = self._font_of(run)
            narrow.setPixelSize(max(1, round(narrow.pixelSize() * 0.6)))
            pad_format = QTextCharFormat()
            pad_format.setFont(narrow)
            ranges = [
                format_range(start, 1, pad_format),
                format_range(start + 1, length - 2, char_format),
                format_range(start + length - 1, 1, pad_format),
            ]
        return ranges

    def _font_of(self, run: Run) -> QFont:
        if run.code:
            font = self._theme.font("code_strong" if run.bold else "code", italic=run.italic)
            font.setPixelSize(max(1, round(self._theme.font(self._style).pixelSize() * 0.88)))
            return font
        return self._theme.font(self._strong_style if run.bold else self._style, italic=run.italic)

    # ------------------------------------------------------------ lines

    def set_width(self, width: float, joint: Joint | None = None) -> int:
        """Break the text into lines of at most `width`, the first perhaps behind others; gives the height."""
        self._layout.beginLayout()
        self.natural_width = 0.0
        self.is_joined = False
        num_lines = 0
        while (line := self._layout.createLine()).isValid():
            left = 0.0
            if num_lines == 0 and joint is not None and joint.fill(line, self.text, width):
                self.is_joined = True
                left = joint.left
            else:
                line.setLineWidth(max(width, 1.0))
            baseline = num_lines * self.line_height + self._baseline
            line.setPosition(QPointF(left, baseline - line.ascent()))
            self.natural_width = max(self.natural_width, left + line.naturalTextWidth())
            num_lines += 1
        self._layout.endLayout()
        self.height = max(num_lines, 1) * self.line_height
        return self.height

    @property
    def num_lines(self) -> int:
        """Lines after `set_width`."""
        return self._layout.lineCount()

    @property
    def length(self) -> int:
        """Length of `text` in Qt's units."""
        return utf16_length(self.text)

    @property
    def is_right_to_left(self) -> bool:
        """Whether the first letter with a direction is of a script that runs leftwards."""
        return not self.text.isascii() and _is_right_to_left(self.text)

    def draw(
        self, painter: QPainter, origin: QPointF, selection: tuple[int, int] | None = None
    ) -> None:
        """Paint pills, then text; `selection` in Qt's positions."""
        for start, end in self._pills:
            for rect in self.rects(start, end):
                pill = rect.adjusted(0, 2, 0, -2).translated(origin)
                paint_rounded(painter, pill, PILL_RADIUS, fill=self._theme.color("pill"))
        painter.setPen(self._theme.color(self._color))
        self._layout.draw(painter, origin, self._selection_formats(selection))

    def _selection_formats(
        self, selection: tuple[int, int] | None
    ) -> list[QTextLayout.FormatRange]:
        if selection is None or selection[0] >= selection[1]:
            return []
        char_format = QTextCharFormat()
        char_format.setBackground(self._theme.color("accent"))
        char_format.setForeground(self._theme.color("on_accent"))
        return [format_range(selection[0], selection[1] - selection[0], char_format)]

    def rects(self, start: int, end: int) -> list[QRectF]:
        """The parts of the lines that hold the positions from `start` to `end`."""
        found: list[QRectF] = []
        for index in range(self._layout.lineCount()):
            line = self._layout.lineAt(index)
            first = max(start, line.textStart())
            last = min(end, line.textStart() + line.textLength())
            if first < last:
                left, right = _x_at(line, first), _x_at(line, last)
                left, right = min(left, right), max(left, right)
                top = index * self.line_height
                found.append(QRectF(left, top, right - left, self.line_height))
        return found

    def position_at(self, point: QPointF) -> int:
        """The position between two characters that is nearest to `point`."""
        num_lines = self._layout.lineCount()
        if num_lines == 0:
            return 0
        index = min(max(int(point.y() // self.line_height), 0), num_lines - 1)
        return int(self._layout.lineAt(index).xToCursor(point.x()))

    def word_at(self, position: int) -> tuple[int, int]:
        """The ends of the word that `position` is in."""
        boundaries = QTextBoundaryFinder(QTextBoundaryFinder.BoundaryType.Word, self.text)
        boundaries.setPosition(position)
        start = position if boundaries.isAtBoundary() else boundaries.toPreviousBoundary()
        boundaries.setPosition(position)
        return start, max(boundaries.toNextBoundary(), start)

    def link_at(self, point: QPointF) -> Link | None:
        """The link under `point`."""
        for link in self.links:
            if any(rect.contains(point) for rect in self.rects(link.start, link.end)):
                return link
        return None

    def end_point(self) -> QPointF:
        """Behind the last character, at the top of its line."""
        index = self._layout.lineCount() - 1
        if index < 0:
            return QPointF(0, 0)
        line = self._layout.lineAt(index)
        x = _x_at(line, line.textStart() + line.textLength())
        return QPointF(x, index * self.line_height)

    def copied_text(self, start: int, end: int) -> str:
        """The characters between two positions, without padding, lines parted by line feeds."""
        pieces: list[str] = []
        for pad in [*(pad for pad in self._pads if start <= pad < end), end]:
            pieces.append(utf16_slice(self.text, start, pad))
            start = pad + 1
        return "".join(pieces).replace(_LINE_BREAK, "\n")


def _x_at(line: QTextLine, position: int) -> float:
    x = line.cursorToX(position)  # the binding gives (x, position), against its own stub
    return float(x[0]) if isinstance(x, tuple) else float(x)  # type: ignore[arg-type]  # see above


def format_range(start: int, length: int, char_format: QTextCharFormat) -> QTextLayout.FormatRange:
    """A format for `length` of Qt's positions from `start` on."""
    made = QTextLayout.FormatRange()
    made.start = start
    made.length = length
    made.format = char_format
    return made


def _is_right_to_left(text: str) -> bool:
    for char in text[:500]:
        direction = bidirectional(char)
        if direction in ("R", "AL"):
            return True
        if direction == "L":
            return False
    return False
