"""A block of code: head with language and Copy, highlighted lines, scrolling sideways. GUI thread.

Only the lines on screen are laid out and painted (`reply_code_lines`), and colours come in slices
(`reply_highlight`), so neither a thousand lines nor a very long one holds up the window.
"""

import time

from PySide6.QtCore import QPoint, QPointF, QRectF, Qt, QTimer
from PySide6.QtGui import QColor, QKeyEvent, QPainter, QPaintEvent, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QScrollBar, QWidget

from ui.look.painting import paint_rounded
from ui.look.theme import Theme
from ui.markdown.blocks import Block, Code
from ui.replies.reply_buttons import CopyButton
from ui.replies.reply_code_lines import CodeLines
from ui.replies.reply_highlight import Highlighter
from ui.replies.reply_layout import utf16_slice
from ui.replies.reply_leaf import Leaf, scroll_by_key, scroll_sideways

HEAD_HEIGHT = 36
RADIUS = 10
_PADDING_X = 16
_PADDING_TOP = 6
_PADDING_BOTTOM = 16
_COPY_INSET = 6
_SLICE_S = 0.003
_NEXT_SLICE_MS = 2
_HIGHLIGHT_PAUSE_MS = 60
_ASK_AGAIN_MS = 30
_MAX_NAME_CHARS = 40
_MAX_DESCRIBED_CHARS = 2_000


class CodeBlock(Leaf):
    """One code block."""

    def __init__(self, block: Code, theme: Theme, parent: QWidget) -> None:
        super().__init__(theme, parent)
        self._block = block
        self._lines = CodeLines(theme)
        self._highlighter = Highlighter(block.language)
        self._is_final_pass = False
        self._copy_button = CopyButton(theme, lambda: self._block.text, self)
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
        self._show(block)

    # ------------------------------------------------------------ content

    @property
    def highlighter(self) -> Highlighter:
        """Colours so far."""
        return self._highlighter

    @property
    def is_highlighting(self) -> bool:
        """Whether colours are still to come."""
        return self._timer.isActive()

    def plain_text(self) -> str:
        """The code."""
        return self._block.text

    def set_block(self, block: Block) -> bool:
        """Show more or other code; appended lines keep everything before them."""
        if not isinstance(block, Code):
            return False
        if block.language != self._block.language:
            self._highlighter = Highlighter(block.language)
        self._show(block)
        return True

    def _show(self, block: Code) -> None:
        self._block = block
        self.frames = block.frames
        self._lines.colors = self._highlighter.colors
        self._lines.set_text(block.text)
        self._tell_name()
        self.setAccessibleDescription(block.text[:_MAX_DESCRIBED_CHARS])
        if not self._highlighter.is_plain and (block.is_closed or not self._timer.isActive()):
            self._timer.start(0 if block.is_closed else _HIGHLIGHT_PAUSE_MS)
        self._place_bar()
        self.update()

    def _tell_name(self) -> None:
        name = f"Code, {self._highlighter.name}, {len(self._lines.lines)} lines"
        if name != self.accessibleName():
            self.setAccessibleName(name)
            self.update()

    def _highlight(self) -> None:
        """Colour for one slice; the timer brings the next one."""
        highlighter = self._highlighter
        if highlighter.is_waiting and not self._find_lexer():
            return
        if not highlighter.is_working:
            self._is_final_pass = self._block.is_closed
            highlighter.start(self._lines.lines, is_closed=self._is_final_pass)
        changed = highlighter.work(time.perf_counter() + _SLICE_S)
        if changed:
            self._lines.forget(changed)
            self.update()
        if highlighter.is_working:
            self._timer.start(_NEXT_SLICE_MS)
        elif self._block.is_closed and not self._is_final_pass:
            self._timer.start(0)  # the fence was closed while the last pass ran

    def _find_lexer(self) -> bool:
        """Whether there is something to colour with; if it is still to come, the timer asks again."""
        is_known = self._highlighter.find_lexer()
        self._tell_name()
        if not is_known:
            self._timer.start(_ASK_AGAIN_MS)
        return is_known and not self._highlighter.is_plain

    def restyle(self) -> None:
        """Colours or sizes are new."""
        self._lines.restyle()
        self._place_bar()
        self.update()

    # ------------------------------------------------------------ layout

    @property
    def _head_height(self) -> int:
        return self._theme.px(HEAD_HEIGHT)

    def layout_to(self, width: int) -> int:
        """Lines never wrap: the height depends on their number and the scroll bar alone."""
        is_wide = self._lines.width > width - 2 * _PADDING_X
        bar = self._bar.sizeHint().height() if is_wide else 0
        text = len(self._lines.lines) * self._lines.line_height
        return self._head_height + _PADDING_TOP + text + _PADDING_BOTTOM + bar

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        self._copy_button.resize(self._copy_button.sizeHint())
        self._copy_button.move(
            self.width() - self._copy_button.width() - _COPY_INSET,
            (self._head_height - self._copy_button.height()) // 2,
        )
        self._place_bar()

    def _place_bar(self) -> None:
        visible = self.width() - 2 * _PADDING_X
        reach = round(self._lines.width + 0.5) - visible
        self._bar.setVisible(reach > 0)
        self._bar.setRange(0, max(reach, 0))
        self._bar.setPageStep(max(visible, 1))
        self._bar.setSingleStep(round(self._lines.char_width * 4))
        height = self._bar.sizeHint().height()
        self._bar.setGeometry(6, self.height() - height - 2, self.width() - 12, height)

    def caret_point(self) -> QPointF:
        """Behind the last character."""
        last = len(self._lines.lines) - 1
        x = _PADDING_X - self._bar.value() + self._lines.line_width(self._lines.lines[last])
        lift = (self._theme.line_height("body") - self._lines.line_height) / 2
        return QPointF(min(x, self.width() - _PADDING_X), self._line_top(last) - lift)

    def _line_top(self, line: int) -> int:
        return self._head_height + _PADDING_TOP + line * self._lines.line_height

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
        name = self._highlighter.name[:_MAX_NAME_CHARS]
        painter.drawText(head, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, name)
        exposed = event.rect()
        top, height = self._line_top(0), self._lines.line_height
        first = max((exposed.top() - top) // height, 0)
        last = min((exposed.bottom() - top) // height, len(self._lines.lines) - 1)
        painter.setClipRect(self.rect().adjusted(_PADDING_X - 4, 0, 4 - _PADDING_X, -1))
        for line in range(first, last + 1):
            origin = QPointF(_PADDING_X - self._bar.value(), self._line_top(line))
            self._lines.paint_line(
                painter, line, origin, right=self.width(), selection=self._selection
            )

    # ------------------------------------------------------------ selection

    def text_length(self) -> int:
        """Length of the code in Qt's units."""
        return self._lines.length

    def laid_out_text(self) -> str:
        """See `Leaf`."""
        return self._block.text

    def position_at(self, point: QPoint) -> int:
        """The position nearest to `point`."""
        line = (point.y() - self._line_top(0)) // self._lines.line_height
        if line < 0:
            return 0
        if line >= len(self._lines.lines):
            return self.text_length()
        return self._lines.position_at(line, point.x() - _PADDING_X + self._bar.value())

    def selected_text(self) -> str:
        """The selected code."""
        return utf16_slice(self._block.text, *self._selection) if self._selection else ""

    # ------------------------------------------------------------ scrolling sideways

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Qt override: sideways moves the code, up and down moves the chat."""
        if not scroll_sideways(self._bar, event):
            event.ignore()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Qt override: left and right move the code sideways."""
        if not scroll_by_key(self._bar, event):
            event.ignore()
