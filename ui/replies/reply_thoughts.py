"""What the model thought before it replied: one row that unfolds. GUI thread."""

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.controls.buttons import HoverButton
from ui.look.icons import paint_icon
from ui.look.painting import paint_rounded
from ui.look.theme import Theme
from ui.markdown.blocks import Block
from ui.replies.reply_flow import BlockFlow
from ui.replies.reply_leaf import Leaf
from ui.replies.reply_text import TextLook
from ui.replies.reply_typed import typed_blocks

_ROW_HEIGHT = 28
_ICON = 16
_RULE = 2
_INSET = 16
_PIECE_CHARS = 600


class ThoughtsRow(HoverButton):
    """Chevron and a word."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(theme, parent)
        self.setCheckable(True)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)

    def sizeHint(self) -> QSize:
        """Qt override."""
        metrics = QFontMetrics(self.theme.font("button"))
        width = metrics.horizontalAdvance(self.text()) + self.theme.px(_ICON) + 18
        return QSize(width, self.theme.px(_ROW_HEIGHT))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        veil = self.veil()
        if veil is not None:
            paint_rounded(painter, QRectF(self.rect()), 6, fill=veil)
        color = self.theme.palette.text if self.underMouse() else self.theme.palette.text_2
        name = "chevron-down" if self.isChecked() else "chevron-right"
        edge = self.theme.px(_ICON)
        paint_icon(painter, name, color, QRectF(-4, (self.height() - edge) / 2, edge, edge))
        painter.setFont(self.theme.font("button"))
        painter.setPen(self.theme.color("text_2"))
        place = QRectF(edge + 1, 0, self.width(), self.height())
        painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, self.text())


class Thoughts(QWidget):
    """The row and, unfolded, the text as the model wrote it.

    Signals:
        height_changed: It was folded, unfolded, or grew.
    """

    height_changed = Signal()

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._text = ""
        self._row = ThoughtsRow(theme, self)
        self._row.setText("Thinking…")
        self._row.toggled.connect(self._toggle)
        look = TextLook("label", "label", "text_2")
        self._flow = BlockFlow(theme, self, gap=0, look=look)
        self._flow.hide()

    @property
    def row(self) -> ThoughtsRow:
        """The button that folds and unfolds."""
        return self._row

    @property
    def text(self) -> str:
        """What was thought so far."""
        return self._text

    def append(self, text: str, *, is_thinking: bool) -> None:
        """More was thought, or thinking has ended."""
        self._text += text
        self._row.setText("Thinking…" if is_thinking else "Thought")
        self._row.setAccessibleName(self._row.text())
        if text and self._row.isChecked():
            self._fill()

    def _fill(self) -> None:
        blocks: list[Block] = list(typed_blocks(self._text.strip("\n"), _PIECE_CHARS))
        self._flow.show_blocks(blocks, num_same=0, deadline=float("inf"))
        self.height_changed.emit()

    def _toggle(self, is_open: bool) -> None:
        self._flow.setVisible(is_open)
        if is_open:
            self._fill()
        self.height_changed.emit()

    def layout_to(self, width: int) -> int:
        """Row, then the text beside its rule."""
        size = self._row.sizeHint()
        self._row.setGeometry(0, 0, size.width(), size.height())
        if not self._row.isChecked():
            return size.height()
        height = self._flow.layout_to(width - _INSET)
        self._flow.setGeometry(_INSET, size.height() + 4, width - _INSET, height)
        return size.height() + 4 + height

    def restyle(self) -> None:
        """Colours or sizes are new."""
        self._flow.restyle()
        self.update()

    def leaves(self) -> list[Leaf]:
        """The text, while it is unfolded."""
        return self._flow.leaves if self._row.isChecked() else []

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override: the rule."""
        if self._row.isChecked():
            top = self._flow.y()
            rule = QRectF(0, top, _RULE, self._flow.height())
            QPainter(self).fillRect(rule, self._theme.color("border_2"))
