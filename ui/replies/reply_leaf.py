"""What every block of a message has in common. GUI thread.

Leaves are laid out by hand (`layout_to`), never by Qt's layouts: those would ask all blocks of a
long chat for their height each time one of them grows.
"""

from abc import abstractmethod

from PySide6.QtCore import QPoint, QPointF, Qt, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent, QPainter, QPaintEvent, QWheelEvent
from PySide6.QtWidgets import QScrollBar, QWidget

from ui.look.theme import Theme
from ui.markdown.blocks import Block, Frame, Rule


class Leaf(QWidget):
    """One block as a widget; see `MessageView` about its abstract methods.

    Attributes:
        frames: Containers around it, for insets and marks.
        joint: What parts it from the leaf before, if one text was cut into both; see `Paragraph`.

    Signals:
        link_activated: A link was clicked or chosen by key: its address.
        height_changed: `layout_to` would give another height now.
    """

    link_activated = Signal(str)
    height_changed = Signal()

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self.frames: tuple[Frame, ...] = ()
        self.joint: str | None = None
        self._selection: tuple[int, int] | None = None

    @abstractmethod
    def set_block(self, block: Block) -> bool:
        """Show another value; False if this kind of leaf cannot, and a new one is needed."""

    @abstractmethod
    def layout_to(self, width: int) -> int:
        """Lay the content out for `width`; gives the height."""

    @abstractmethod
    def restyle(self) -> None:
        """Colours or sizes are new; `layout_to` follows."""

    def advance(self, deadline: float) -> bool:
        """Do put-off work until `deadline` (perf_counter), a piece at least; True when nothing is left."""
        return True

    @property
    def is_finished(self) -> bool:
        """Whether `advance` would have nothing to do after the last `layout_to`."""
        return True

    @property
    def is_right_to_left(self) -> bool:
        """Whether the block is mirrored."""
        return False

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Qt override: keep the reason, for the ring of `ui.look.focus_ring`."""
        self.setProperty("focusReason", event.reason())
        super().focusInEvent(event)

    def caret_point(self) -> QPointF:
        """Top of the line behind the last character."""
        return QPointF(0, 0)

    def plain_text(self) -> str:
        """All characters, as they would be copied."""
        return ""

    # ------------------------------------------------------------ selection

    def text_length(self) -> int:
        """Number of positions that a selection may cover."""
        return 0

    def position_at(self, point: QPoint) -> int:
        """The position nearest to `point`."""
        return 0

    def word_at(self, point: QPoint) -> tuple[int, int]:
        """The positions around the word under `point`."""
        position = self.position_at(point)
        return position, position

    def laid_out_text(self) -> str:
        """The text whose characters the positions of a selection count; "" where they count otherwise."""
        return ""

    def goes_on_at(self, point: QPoint) -> bool:
        """Whether it shares a line with the leaf before, and has the part at `point`."""
        return False

    def set_selection(self, selection: tuple[int, int] | None) -> None:
        """Show these positions as selected."""
        if selection != self._selection:
            self._selection = selection
            self.update()

    def selected_text(self) -> str:
        """The selected characters."""
        return ""

    @property
    def is_selected_from_start(self) -> bool:
        """Whether its first character is among them."""
        return self._selection is not None and self._selection[0] == 0


class RuleLine(Leaf):
    """A line across."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(theme, parent)
        self.setAccessibleName("Line")

    def set_block(self, block: Block) -> bool:
        """Nothing to show but the line."""
        self.frames = block.frames
        return isinstance(block, Rule)

    def layout_to(self, width: int) -> int:
        """One pixel."""
        return 1

    def restyle(self) -> None:
        """Paint again."""
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        QPainter(self).fillRect(self.rect(), self._theme.color("border_2"))


def scroll_sideways(bar: QScrollBar, event: QWheelEvent) -> bool:
    """Let a wheel or a touch pad that moves sideways move `bar`; False if the event is not for it."""
    delta = event.angleDelta()
    sideways = delta.x() if abs(delta.x()) > abs(delta.y()) else 0
    if event.modifiers() & Qt.KeyboardModifier.ShiftModifier and not sideways:
        sideways = delta.y()
    if not bar.isVisible() or not sideways:
        return False
    bar.setValue(bar.value() - sideways // 2)
    return True


def scroll_by_key(bar: QScrollBar, event: QKeyEvent) -> bool:
    """Let Left and Right move `bar`; False if the event is not for it."""
    step = {Qt.Key.Key_Left.value: -1, Qt.Key.Key_Right.value: 1}.get(event.key(), 0)
    if not bar.isVisible() or not step:
        return False
    bar.setValue(bar.value() + step * bar.singleStep())
    return True
