"""The line above the chat: title, model, menu. GUI thread."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QStackedWidget, QWidget

from ui.chat.model_button import ModelButton
from ui.controls.buttons import IconButton
from ui.controls.labels import ElidedLabel
from ui.look.field_look import FIELD_HEIGHT, dress_field
from ui.look.theme import Theme

HEADER_HEIGHT = 52
_LEAST_GAP = 6


class _TitleField(QLineEdit):
    """Where a title is typed; Escape gives up."""

    given_up = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Qt override."""
        if event.key() == Qt.Key.Key_Escape:
            self.given_up.emit()
        else:
            super().keyPressEvent(event)


class Header(QWidget):
    """Title at the left; with a folded sidebar its two buttons before it; model and menu right.

    Attributes:
        model_button, menu_button, sidebar_button, new_chat_button: The controls.

    Signals:
        title_edited: A new title was typed.
        editing_ended: The field is gone, with a new title or without.
    """

    title_edited = Signal(str)
    editing_ended = Signal()

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._has_line = False
        self._is_editing = False
        self.sidebar_button = IconButton(theme, "panel-left", "Show the sidebar", shortcut="Ctrl+B")
        self.new_chat_button = IconButton(theme, "square-pen", "New chat", shortcut="Ctrl+N")
        self.title = ElidedLabel(theme, style="title")
        self.model_button = ModelButton(theme)
        self.menu_button = IconButton(theme, "ellipsis", "Chat menu", shortcut="F10")
        self._field = _TitleField()
        dress_field(self._field, theme)
        self._field.setAccessibleName("Title of this chat")
        self._field.setMaxLength(200)
        self._stack = QStackedWidget()
        self._stack.addWidget(self.title)
        self._stack.addWidget(self._field)
        self._field.editingFinished.connect(self._finish)
        self._field.given_up.connect(self._show_title)
        row = self._row = QHBoxLayout(self)
        row.setSpacing(4)
        row.addWidget(self.sidebar_button)
        row.addWidget(self.new_chat_button)
        row.addSpacing(6)
        row.addWidget(self._stack, 1, Qt.AlignmentFlag.AlignVCenter)
        row.addSpacing(12)
        row.addWidget(self.model_button)
        row.addSpacing(4)
        row.addWidget(self.menu_button)
        theme.changed.connect(self._apply)
        self._apply()
        self.set_folded(False)

    def set_title(self, title: str) -> None:
        """Show the chat's title."""
        self.title.set_text(title)

    def set_folded(self, is_folded: bool) -> None:
        """Take over the sidebar's buttons while it is folded."""
        self.sidebar_button.setVisible(is_folded)
        self.new_chat_button.setVisible(is_folded)
        self._row.setContentsMargins(10 if is_folded else 18, 0, 16, 0)

    def set_scrolled(self, is_scrolled: bool) -> None:
        """Show the hairline below, which says that there is more above."""
        if is_scrolled != self._has_line:
            self._has_line = is_scrolled
            self.update()

    def edit_title(self) -> None:
        """Let the person type another title."""
        self._is_editing = True
        self._field.setText(self.title.text)
        self._field.selectAll()
        self._stack.setCurrentWidget(self._field)
        self._field.setFocus(Qt.FocusReason.ShortcutFocusReason)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        painter.fillRect(self.rect(), self._theme.color("surface"))
        if self._has_line or self._theme.palette.is_contrast:
            line = self._theme.color("border")
            painter.fillRect(0, self.height() - 1, self.width(), 1, line)

    def _finish(self) -> None:
        if not self._is_editing:  # the field also "finishes" while it is being hidden
            return
        title = " ".join(self._field.text().split())
        self._show_title()
        if title and title != self.title.text:
            self.title_edited.emit(title)

    def _show_title(self) -> None:
        self._is_editing = False
        self._stack.setCurrentWidget(self.title)
        self.editing_ended.emit()

    def _apply(self) -> None:
        self._field.setFont(self._theme.font("title"))
        self._stack.setFixedHeight(self._theme.px(FIELD_HEIGHT))
        least = self.model_button.sizeHint().height() + 2 * _LEAST_GAP
        self.setFixedHeight(max(HEADER_HEIGHT, least))
        self.update()
