"""The block of running text: lines, links and their keyboard way. GUI thread."""

from dataclasses import dataclass

from PySide6.QtCore import QPoint, QPointF, QRectF, Qt
from PySide6.QtGui import QFocusEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.look.painting import paint_rounded
from ui.look.theme import Theme
from ui.markdown.blocks import Block, Heading, Paragraph
from ui.replies.reply_joint import Joint, is_inside_word
from ui.replies.reply_layout import Link, RunLayout
from ui.replies.reply_leaf import Leaf

_HEADING_STYLES = {1: "h1", 2: "h2"}


@dataclass(frozen=True, slots=True)
class TextLook:
    """Style and colour of running text; headings have styles of their own."""

    style: str = "body"
    strong_style: str = "body_strong"
    color: str = "text"


PLAIN_LOOK = TextLook()


class TextBlock(Leaf):
    """A paragraph or heading, or a piece of a message as typed. Links are reached with Tab."""

    def __init__(
        self,
        block: Paragraph | Heading,
        theme: Theme,
        parent: QWidget,
        *,
        look: TextLook = PLAIN_LOOK,
    ) -> None:
        super().__init__(theme, parent)
        self._look = look
        self._block: Paragraph | Heading = block
        self._width = 0
        self._joint: Joint | None = None
        self._hovered: Link | None = None
        self._focused_link = -1
        self._layout = self._made_layout()
        self.frames = block.frames
        self.joint = block.joint if isinstance(block, Paragraph) else None
        self.setCursor(Qt.CursorShape.IBeamCursor)
        self._follow_links()

    def set_block(self, block: Block) -> bool:
        """Replace the text."""
        if not isinstance(block, (Paragraph, Heading)) or type(block) is not type(self._block):
            return False
        if block is not self._block:
            self._block = block
            self.frames = block.frames
            self.joint = block.joint if isinstance(block, Paragraph) else None
            self.restyle()
        return True

    def restyle(self) -> None:
        """Make the layout again."""
        self._layout = self._made_layout()
        self._width = 0
        self._follow_links()
        self.update()

    def _made_layout(self) -> RunLayout:
        style, strong_style = self._look.style, self._look.strong_style
        if isinstance(self._block, Heading):
            style = strong_style = _HEADING_STYLES.get(self._block.level, "h3")
        in_quote = any(frame.kind == "quote" for frame in self._block.frames)
        color = "text_2" if in_quote else self._look.color
        return RunLayout(
            self._block.runs, self._theme, style, strong_style=strong_style, color=color
        )

    def _follow_links(self) -> None:
        self._focused_link = -1
        has_links = bool(self._layout.links)
        self.setMouseTracking(has_links)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus if has_links else Qt.FocusPolicy.NoFocus)
        self.setAccessibleName(self.plain_text())

    def plain_text(self) -> str:
        """All characters, without padding."""
        return self._layout.copied_text(0, self._layout.length)

    def layout_to(self, width: int) -> int:
        """Break the lines."""
        if width != self._width:
            self._width = width
            self._layout.set_width(width, self._joint)
        return self._layout.height

    def go_on_behind(self, before: "TextBlock | None") -> None:
        """Begin in the last line of the piece before, at the next `layout_to`; None begins a line."""
        joint: Joint | None = None
        if before is not None and before.is_right_to_left == self.is_right_to_left:
            is_in_word = is_inside_word(before._layout.text, self._layout.text)
            joint = Joint(before.caret_point().x(), is_in_word, self.is_right_to_left)
        if joint != self._joint:
            self._joint = joint
            self._width = 0

    @property
    def shared_height(self) -> int:
        """Of the line that it shares with the piece before; 0 if none."""
        return self._layout.line_height if self._layout.is_joined else 0

    def goes_on_at(self, point: QPoint) -> bool:
        """See `Leaf`."""
        if self._joint is None or not self._layout.is_joined or point.y() < 0:
            return False
        beyond = point.x() - self._joint.x
        is_behind = beyond <= 0 if self.is_right_to_left else beyond >= 0
        return is_behind or point.y() >= self._layout.line_height

    @property
    def natural_width(self) -> float:
        """Width of the longest line as laid out."""
        return self._layout.natural_width

    @property
    def is_right_to_left(self) -> bool:
        """Whether the text runs leftwards."""
        return self._layout.is_right_to_left

    def caret_point(self) -> QPointF:
        """Behind the last character."""
        return self._layout.end_point()

    # ------------------------------------------------------------ painting

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        self._layout.draw(painter, QPointF(0, 0), self._selection)
        if self.hasFocus() and 0 <= self._focused_link < len(self._layout.links):
            link = self._layout.links[self._focused_link]
            width = self._theme.palette.focus_width
            for rect in self._layout.rects(link.start, link.end):
                paint_rounded(
                    painter,
                    QRectF(rect).adjusted(-1, 1, 1, -1),
                    4,
                    outline=self._theme.color("ring"),
                    width=width,
                )

    # ------------------------------------------------------------ selection

    def text_length(self) -> int:
        """Length of the text as laid out."""
        return self._layout.length

    def laid_out_text(self) -> str:
        """See `Leaf`."""
        return self._layout.text

    def position_at(self, point: QPoint) -> int:
        """The position nearest to `point`."""
        return self._layout.position_at(QPointF(point))

    def word_at(self, point: QPoint) -> tuple[int, int]:
        """The positions around the word under `point`."""
        return self._layout.word_at(self.position_at(point))

    def selected_text(self) -> str:
        """The selected characters."""
        return self._layout.copied_text(*self._selection) if self._selection else ""

    # ------------------------------------------------------------ links

    def link_at(self, point: QPoint) -> Link | None:
        """The link under `point`."""
        return self._layout.link_at(QPointF(point)) if self._layout.links else None

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Qt override: a hand over links; the message list follows selections."""
        link = self.link_at(event.position().toPoint())
        if link != self._hovered:
            self._hovered = link
            shape = Qt.CursorShape.PointingHandCursor if link else Qt.CursorShape.IBeamCursor
            self.setCursor(shape)
            self.setToolTip(shown_address(link.address) if link else "")
        event.ignore()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """Qt override: a click on a link, unless it ends a selection."""
        event.ignore()
        has_selection = self._selection is not None and self._selection[0] < self._selection[1]
        if event.button() == Qt.MouseButton.LeftButton and not has_selection:
            link = self.link_at(event.position().toPoint())
            if link is not None:
                self.link_activated.emit(link.address)

    def focusNextPrevChild(self, is_next: bool) -> bool:
        """Qt override: Tab goes through the links before it leaves."""
        following = self._focused_link + (1 if is_next else -1)
        if self.hasFocus() and 0 <= following < len(self._layout.links):
            self._focused_link = following
            self.update()
            return True
        return bool(super().focusNextPrevChild(is_next))

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Qt override."""
        super().focusInEvent(event)
        is_back = event.reason() == Qt.FocusReason.BacktabFocusReason
        self._focused_link = len(self._layout.links) - 1 if is_back else 0
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        """Qt override."""
        self.update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Qt override: Enter asks to open the link in focus."""
        links = self._layout.links
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and 0 <= self._focused_link < len(links):
            self.link_activated.emit(links[self._focused_link].address)
            return
        event.ignore()


def shown_address(address: str) -> str:
    """An address for a tooltip: no rich text, nothing invisible, not endless."""
    safe = "".join(char if char.isprintable() else "\ufffd" for char in address[:300])
    return safe.replace("<", "%3C")
