"""A column of leaves with the marks of their containers. GUI thread.

    |<- inset of the frames ->|<------- leaf ------->|
      •                        text of the item
           |                   quote inside the item     (the rule runs over all its leaves)

Only leaves from the first one that changed are placed again, so a growing reply costs the same per
frame however long it is.
"""

import time
from bisect import bisect_right
from collections.abc import Sequence
from math import ceil

from PySide6.QtCore import QPoint, QPointF, QRect, QRectF, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.look.painting import paint_dot
from ui.look.theme import Theme
from ui.markdown.blocks import Block, Code, Frame, Rule, Table
from ui.markdown.convert import BULLET
from ui.replies.code_block import CodeBlock
from ui.replies.reply_gaps import gap_between, num_shared
from ui.replies.reply_leaf import Leaf, RuleLine
from ui.replies.reply_table import TableBlock
from ui.replies.reply_text import PLAIN_LOOK, TextBlock, TextLook

_BULLET_INSET = 22
_NUMBER_INSET = 28
_QUOTE_INSET = 16
_QUOTE_RULE = 2
_LEAST_WIDTH = 40


class BlockFlow(QWidget):
    """The blocks of one message.

    Signals:
        link_activated: As of its leaves.
        height_changed: `layout_to` would give another height now.
        leaf_removed: A leaf is gone, and with it any selection in it.
        work_added: `advance` has something to do since the last `layout_to`.
    """

    link_activated = Signal(str)
    height_changed = Signal()
    leaf_removed = Signal()
    work_added = Signal()

    def __init__(
        self, theme: Theme, parent: QWidget, *, gap: int | None = None, look: TextLook = PLAIN_LOOK
    ) -> None:
        super().__init__(parent)
        self._theme = theme
        self._fixed_gap = gap
        self._look = look
        self._blocks: list[Block] = []
        self._tops: list[int] = []
        self._width = 0
        self._first_dirty = 0
        self._unfinished: list[Leaf] = []  # tables whose rows are laid out in slices
        self.leaves: list[Leaf] = []

    # ------------------------------------------------------------ content

    def show_blocks(self, blocks: Sequence[Block], *, num_same: int, deadline: float) -> int:
        """Make the leaves show `blocks`.

        Args:
            blocks: All blocks, shown ones included.
            num_same: So many blocks are the same as at the last call.
            deadline: Stop soon after this time (perf_counter) if more than one leaf is left.

        Returns:
            How many of `blocks`, from the first on, are shown; while it is not all of them, call again.
        """
        for index in range(min(num_same, len(self._blocks)), len(blocks)):
            if index < len(self._blocks) and blocks[index] == self._blocks[index]:
                continue
            self._show_block(index, blocks[index])
            if time.perf_counter() > deadline and index < len(blocks) - 1:
                return index + 1
        while len(self.leaves) > len(blocks):
            self._remove_leaf(len(self.leaves) - 1)
        return len(blocks)

    def _show_block(self, index: int, block: Block) -> None:
        self._first_dirty = min(self._first_dirty, index)
        if index < len(self.leaves) and self.leaves[index].set_block(block):
            self._blocks[index] = block
            return
        if index < len(self.leaves):
            self._remove_leaf(index)
        leaf = self._made_leaf(block)
        leaf.frames = block.frames
        leaf.link_activated.connect(self.link_activated)
        leaf.height_changed.connect(lambda: self._dirty_leaf(leaf))
        self.leaves.insert(index, leaf)
        self._blocks.insert(index, block)
        self._tops.insert(index, 0)
        leaf.hide()  # until it has its place: it might be painted over others before

    def _note_unfinished(self, leaf: Leaf) -> None:
        if not leaf.is_finished and leaf not in self._unfinished:
            self._unfinished.append(leaf)
            self.work_added.emit()

    def _made_leaf(self, block: Block) -> Leaf:
        match block:
            case Code():
                return CodeBlock(block, self._theme, self)
            case Table():
                return TableBlock(block, self._theme, self)
            case Rule():
                return RuleLine(self._theme, self)
        return TextBlock(block, self._theme, self, look=self._look)

    def _remove_leaf(self, index: int) -> None:
        leaf = self.leaves.pop(index)
        if leaf in self._unfinished:
            self._unfinished.remove(leaf)
        del self._blocks[index], self._tops[index]
        self._first_dirty = min(self._first_dirty, index)
        leaf.hide()
        leaf.deleteLater()
        self.leaf_removed.emit()

    def _dirty_leaf(self, leaf: Leaf) -> None:
        if leaf in self.leaves:
            self._first_dirty = min(self._first_dirty, self.leaves.index(leaf))
            self.height_changed.emit()

    def clear(self) -> None:
        """Remove all leaves."""
        while self.leaves:
            self._remove_leaf(len(self.leaves) - 1)

    def restyle(self) -> None:
        """Colours or sizes are new."""
        for leaf in self.leaves:
            leaf.restyle()
        self._first_dirty = 0
        self._width = 0
        self.update()

    # ------------------------------------------------------------ layout

    @property
    def is_stale(self) -> bool:
        """Whether `layout_to` has work to do even for the same width."""
        return self._first_dirty < len(self.leaves)

    def layout_to(self, width: int) -> int:
        """Place the leaves in a column of `width`; gives its height."""
        if width != self._width:
            self._width = width
            self._first_dirty = 0
        for index in range(self._first_dirty, len(self.leaves)):
            self._place(index)
        if self._first_dirty < len(self.leaves):
            self.update()
        self._first_dirty = len(self.leaves)
        last = self.leaves[-1] if self.leaves else None
        return self._tops[-1] + last.height() if last is not None else 0

    def advance(self, deadline: float) -> bool:
        """Let the leaves do put-off work; True when nothing is left."""
        while self._unfinished and self._unfinished[-1].advance(deadline):
            self._unfinished.pop()
        return not self._unfinished

    def natural_width(self) -> int:
        """Width of the longest line of text as laid out."""
        widths = (leaf.natural_width for leaf in self.leaves if isinstance(leaf, TextBlock))
        return ceil(max(widths, default=0.0))

    def _place(self, index: int) -> None:
        leaf = self.leaves[index]
        inset = self._inset(leaf.frames)
        width = max(self._width - inset, min(self._width, _LEAST_WIDTH))
        top = 0
        if index > 0:
            before = self.leaves[index - 1]
            top = self._tops[index - 1] + before.height() + self._gap_above(index)
            if isinstance(leaf, TextBlock):
                is_same_line = leaf.joint == ""
                leaf.go_on_behind(
                    before if is_same_line and isinstance(before, TextBlock) else None
                )
        height = leaf.layout_to(width)
        self._note_unfinished(leaf)
        if isinstance(leaf, TextBlock):
            top -= leaf.shared_height
        self._tops[index] = top
        left = 0 if leaf.is_right_to_left else inset
        leaf.setGeometry(left, top, width, height)
        leaf.show()

    def _inset(self, frames: tuple[Frame, ...]) -> int:
        return sum(self._frame_inset(frame) for frame in frames)

    def _frame_inset(self, frame: Frame) -> int:
        if frame.kind == "quote":
            return _QUOTE_INSET
        if frame.marker == BULLET:
            return self._theme.px(_BULLET_INSET)
        metrics = QFontMetricsF(self._theme.font("body"))
        needed = metrics.horizontalAdvance(frame.marker) + self._theme.px(8)
        return max(self._theme.px(_NUMBER_INSET), round(needed))

    def _gap_above(self, index: int) -> int:
        if self._fixed_gap is not None:
            return self._fixed_gap
        return self._theme.px(gap_between(self._blocks[index - 1], self._blocks[index]))

    def caret_point(self) -> QPointF | None:
        """Top of the line behind the last character, in this widget's place; None while empty."""
        if not self.leaves:
            return None
        leaf = self.leaves[-1]
        return QPointF(leaf.pos()) + leaf.caret_point()

    # ------------------------------------------------------------ marks

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override: markers of items and rules of quotes."""
        painter = QPainter(self)
        exposed = event.rect()
        first = max(bisect_right(self._tops, exposed.top()) - 1, 0)
        for index in range(first, len(self.leaves)):
            if self._tops[index] > exposed.bottom():
                break
            if self.leaves[index].frames:
                self._paint_frames(painter, index)

    def _paint_frames(self, painter: QPainter, index: int) -> None:
        leaf = self.leaves[index]
        before = self.leaves[index - 1].frames if index else ()
        shared = num_shared(before, leaf.frames)
        top, bottom = leaf.y(), leaf.y() + leaf.height()
        inset = 0
        for depth, frame in enumerate(leaf.frames):
            width = self._frame_inset(frame)
            if frame.kind == "quote":
                start = self._tops[index - 1] if depth < shared else top
                self._paint_mirrored(
                    painter, leaf, QRect(inset, start, _QUOTE_RULE, bottom - start)
                )
            elif depth >= shared:
                self._paint_marker(painter, leaf, frame, QPoint(inset, top), width)
            inset += width

    def _paint_mirrored(self, painter: QPainter, leaf: Leaf, rect: QRect) -> None:
        if leaf.is_right_to_left:
            rect.moveLeft(self._width - rect.right() - 1)
        painter.fillRect(rect, self._theme.color("border_2"))

    def _paint_marker(
        self, painter: QPainter, leaf: Leaf, frame: Frame, origin: QPoint, width: int
    ) -> None:
        line = self._theme.line_height("body")
        box = QRectF(origin.x(), origin.y(), width, line)
        mirrored = leaf.is_right_to_left
        if mirrored:
            box.moveLeft(self._width - box.right())
        if frame.marker == BULLET:
            x = box.right() - self._theme.px(9) if mirrored else box.left() + self._theme.px(9)
            center = QPointF(x, box.center().y() + 0.5)
            paint_dot(painter, center, self._theme.px(5), self._theme.color("text_3"))
            return
        painter.setFont(self._theme.font("body"))
        painter.setPen(self._theme.color("text_2"))
        gap = self._theme.px(7)
        side = Qt.AlignmentFlag.AlignLeft if mirrored else Qt.AlignmentFlag.AlignRight
        inner = box.adjusted(gap, 0, 0, 0) if mirrored else box.adjusted(0, 0, -gap, 0)
        painter.drawText(inner, side | Qt.AlignmentFlag.AlignVCenter, frame.marker)
