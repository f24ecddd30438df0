"""One message of the chat: a bubble for what the person wrote, a bare column for a reply.

GUI thread. The message list lays views out (`layout_to`) and gives them time (`advance`): a view
never does more than a slice of its work at once. A view is wider than the column by `BLEED` on
each side, room for veils and focus rings of what stands at the column's edge.
"""

from abc import abstractmethod
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QRectF, Qt, Signal
from PySide6.QtGui import QEnterEvent, QFocusEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QApplication, QWidget

from app.conversation import Message
from app.texts import is_blank
from ui.look.painting import paint_rounded
from ui.look.theme import Theme
from ui.markdown.blocks import Block
from ui.replies.answer_rows import UnansweredRow
from ui.replies.reply_buttons import RevealedButton, copy_to_clipboard
from ui.replies.reply_editor import MessageEditor
from ui.replies.reply_flow import BlockFlow
from ui.replies.reply_footer import BLEED, VersionSwitch
from ui.replies.reply_leaf import Leaf
from ui.replies.reply_typed import typed_blocks

BUBBLE_RADIUS = 18
BUBBLE_SHARE = 0.78
_PADDING_X = 16
_PADDING_Y = 8
_ROW_GAP = 4


class MessageView(QWidget):
    """Base of both kinds. mypy sees that each has all methods: Qt's classes cannot be `ABC` as well.

    Attributes:
        message: What is shown.

    Signals:
        link_activated: A link was chosen: its address.
        version_requested: Id of the version to show.
        height_changed: `layout_to` would give another height now.
        work_added: `advance` has something to do again.
        selection_lost: Text that may have been selected is gone.
    """

    link_activated = Signal(str)
    version_requested = Signal(int)
    height_changed = Signal()
    work_added = Signal()
    selection_lost = Signal()

    def __init__(self, message: Message, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self.message = message
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setProperty("focusRadius", 8)

    @abstractmethod
    def show_message(self, message: Message, versions: Sequence[int]) -> None:
        """Take a new state of the message."""

    @abstractmethod
    def advance(self, deadline: float) -> bool:
        """Work until `deadline` (perf_counter), but do a piece even after it; True when nothing is left."""

    @abstractmethod
    def layout_to(self, width: int) -> int:
        """Lay out for a column of `width`; gives the height."""

    @abstractmethod
    def restyle(self) -> None:
        """Colours or sizes are new."""

    @abstractmethod
    def leaves(self) -> list[Leaf]:
        """Blocks with text to select, top to bottom."""

    @property
    def has_focus_inside(self) -> bool:
        """Whether the view or something in it has the keyboard focus."""
        focused = QApplication.focusWidget()
        return focused is not None and (focused is self or self.isAncestorOf(focused))

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Qt override: keep the reason, for the ring of `ui.look.focus_ring`."""
        self.setProperty("focusReason", event.reason())
        super().focusInEvent(event)

    def _announce(self, role: str, text: str) -> None:
        self.setAccessibleName(f"{role}: {text[:4000]}")


class OwnMessageView(MessageView):
    """What the person wrote, at the right.

    Signals:
        edit_requested: The new text, after Save.
        reply_requested, several_requested: It has no reply, and one or several are wanted.
    """

    edit_requested = Signal(str)
    reply_requested = Signal()
    several_requested = Signal()

    def __init__(
        self, message: Message, versions: Sequence[int], theme: Theme, parent: QWidget
    ) -> None:
        super().__init__(message, theme, parent)
        self._flow = BlockFlow(theme, self, gap=0)
        self._flow.leaf_removed.connect(self.selection_lost)
        self._blocks: list[Block] = []
        self._num_shown = 0
        self._is_complete = False
        self._bubble = QRectF()
        self._editor: MessageEditor | None = None
        self._copy = self._made_button("copy", "Copy message")
        self._copy.clicked.connect(lambda: copy_to_clipboard(self.message.content))
        self._edit = self._made_button("pencil", "Edit message")
        self._edit.clicked.connect(lambda: self.start_editing())
        self._switch = VersionSwitch(theme, self)
        self._switch.version_requested.connect(self.version_requested)
        self._unanswered = UnansweredRow(theme, self)
        self._unanswered.reply_requested.connect(self.reply_requested)
        self._unanswered.several_requested.connect(self.several_requested)
        self.show_message(message, versions)

    def _made_button(self, icon_name: str, name: str) -> RevealedButton:
        return RevealedButton(self._theme, icon_name, name, parent=self)

    def show_message(self, message: Message, versions: Sequence[int]) -> None:
        """Take a new state of the message."""
        is_new_text = not self._blocks or message.content != self.message.content
        self.message = message
        self._announce("You", message.content)
        self._switch.set_versions(versions, message.id)
        if is_new_text:
            self._blocks = list(typed_blocks(message.content))
            self._num_shown = 0
            self._is_complete = False
        self.height_changed.emit()

    def set_unanswered(self, is_unanswered: bool) -> None:
        """Whether a reply to it is offered, since there is none and none is on its way."""
        if is_unanswered == self._unanswered.isHidden():
            self._unanswered.setVisible(is_unanswered)
            self.height_changed.emit()

    def advance(self, deadline: float) -> bool:
        """Make the pieces of a long text."""
        if not self._is_complete:
            self._num_shown = self._flow.show_blocks(
                self._blocks, num_same=self._num_shown, deadline=deadline
            )
            self._is_complete = self._num_shown == len(self._blocks)
            self.height_changed.emit()
        return self._is_complete

    def layout_to(self, width: int) -> int:
        """The bubble is as wide as its longest line, at most 78 % of the column."""
        if self._editor is not None:
            height = self._editor.layout_to(width)
            self._editor.setGeometry(BLEED, 0, width, height)
            return height
        most = self._widest_bubble(width) - 2 * _PADDING_X
        inner = most
        if len(self._blocks) == 1:  # a long text fills the width, and is laid out only once
            self._flow.layout_to(most)
            inner = min(most, self._flow.natural_width())
        height = self._flow.layout_to(inner)
        left = BLEED + width - inner - 2 * _PADDING_X
        self._bubble = QRectF(left, 0, inner + 2 * _PADDING_X, height + 2 * _PADDING_Y)
        self._flow.setGeometry(left + _PADDING_X, _PADDING_Y, inner, height)
        self._place_actions(left)
        self.update()
        height += 2 * _PADDING_Y
        if not self._unanswered.isHidden():
            row = self._unanswered.wanted_height()
            self._unanswered.setGeometry(BLEED, height + _ROW_GAP, width, row)
            height += _ROW_GAP + row
        return height

    def _widest_bubble(self, width: int) -> int:
        """Large text makes large buttons, which stand beside it."""
        buttons = sum(button.edge + 2 for button in (self._edit, self._copy)) + 6
        if self._switch.has_choice:
            buttons += self._switch.width()
        return min(int(width * BUBBLE_SHARE), max(width - buttons, width // 2))

    def _place_actions(self, right: int) -> None:
        row = self._theme.line_height("body") + 2 * _PADDING_Y
        x = right - 6
        if self._switch.has_choice:
            x -= self._switch.width()
            self._switch.move(x, (row - self._switch.height()) // 2)
        for button in (self._edit, self._copy):
            x -= button.edge + 2
            button.move(x, (row - button.edge) // 2)
        self._reveal()

    def restyle(self) -> None:
        """Colours or sizes are new."""
        self._flow.restyle()
        self._switch.place()
        self._unanswered.place()
        if self._editor is not None:
            self._editor.restyle()
        self.update()

    def leaves(self) -> list[Leaf]:
        """The pieces of the text."""
        return self._flow.leaves if self._editor is None else []

    # ------------------------------------------------------------ actions

    @property
    def edited_text(self) -> str | None:
        """What stands in the editor; None if there is none."""
        return None if self._editor is None else self._editor.field.toPlainText()

    def _reveal(self) -> None:
        """Show the actions under the pointer and for the keyboard."""
        for button in (self._copy, self._edit):
            button.setVisible(self._editor is None)
            button.set_revealed(self.underMouse())
        self._switch.setVisible(self._editor is None and self._switch.has_choice)

    def enterEvent(self, event: QEnterEvent) -> None:
        """Qt override."""
        self._reveal()

    def leaveEvent(self, event: QEvent) -> None:
        """Qt override."""
        self._reveal()

    def start_editing(self, text: str | None = None) -> None:
        """Put an editor in the place of the bubble, with `text` or what the bubble says."""
        if self._editor is not None:
            return
        text = self.message.content if text is None else text
        self._editor = MessageEditor(text, self._theme, self)
        self._editor.saved.connect(self._save)
        self._editor.cancelled.connect(self.stop_editing)
        self._editor.height_changed.connect(self.height_changed)
        self._flow.hide()
        self._reveal()
        self._editor.show()
        self._editor.take_focus()
        self.selection_lost.emit()
        self.height_changed.emit()

    def stop_editing(self) -> None:
        """Show the bubble again; what was typed is dropped."""
        if self._editor is None:
            return
        self._editor.hide()
        self._editor.deleteLater()
        self._editor = None
        self._flow.show()
        self._reveal()
        self.setFocus()
        self.height_changed.emit()

    def _save(self, text: str) -> None:
        self.stop_editing()
        if not is_blank(text) and text != self.message.content:
            self.edit_requested.emit(text)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        if self._editor is not None:
            return
        colors = self._theme.palette
        outline = colors.bubble_outline if colors.is_contrast else None
        paint_rounded(
            QPainter(self), self._bubble, BUBBLE_RADIUS, fill=colors.bubble, outline=outline
        )
