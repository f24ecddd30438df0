"""Editing an own message in its place. GUI thread."""

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent, QTextOption
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QWidget

from app.texts import is_blank
from ui.controls.buttons import Button
from ui.controls.text_bounds import BoundedTextEdit, has_long_word
from ui.look.field_look import dress_field
from ui.look.theme import Theme

_MAX_LINES = 12


class MessageEditor(QWidget):
    """A field with Save and Cancel; Enter saves, Shift+Enter is a new line, Esc cancels.

    Signals:
        saved: The new text.
        cancelled: Nothing is to change.
        height_changed: Lines were added or removed.
    """

    saved = Signal(str)
    cancelled = Signal()
    height_changed = Signal()

    def __init__(self, text: str, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._num_lines = 0
        self._field = BoundedTextEdit(text, self)
        if has_long_word(text):
            self._field.setWordWrapMode(QTextOption.WrapMode.WrapAnywhere)
        self._field.setFrameShape(QFrame.Shape.NoFrame)
        self._field.setAccessibleName("Edit message")
        self._field.setProperty("field", True)
        dress_field(self._field, theme)
        self._field.setTabChangesFocus(True)
        self._field.installEventFilter(self)
        self._field.textChanged.connect(self._follow_lines)
        self._save = Button(theme, "Save", "primary", parent=self)
        self._save.clicked.connect(lambda: self.saved.emit(self._field.toPlainText()))
        self._cancel = Button(theme, "Cancel", "secondary", parent=self)
        self._cancel.clicked.connect(self.cancelled)
        self.restyle()

    @property
    def field(self) -> QPlainTextEdit:
        """The text."""
        return self._field

    def take_focus(self) -> None:
        """Ready to type at the end."""
        self._field.setFocus()
        cursor = self._field.textCursor()
        cursor.movePosition(cursor.MoveOperation.End)
        self._field.setTextCursor(cursor)

    def restyle(self) -> None:
        """Sizes are new."""
        self._field.setFont(self._theme.font("body"))

    def _follow_lines(self) -> None:
        num_lines = int(self._field.document().size().height())  # as wrapped, not as typed
        self._save.setEnabled(not is_blank(self._field.toPlainText()))
        if num_lines != self._num_lines:
            self._num_lines = num_lines
            self.height_changed.emit()

    def layout_to(self, width: int) -> int:
        """Grows with the text up to twelve lines."""
        line = self._field.fontMetrics().lineSpacing()
        self._field.resize(width, self._field.height())
        size = self._field.document().size()  # in lines for a plain text layout
        lines = min(max(int(size.height()), 2), _MAX_LINES)
        height = lines * line + 24
        self._field.setGeometry(0, 0, width, height)
        x = width
        for button in (self._save, self._cancel):
            hint = button.sizeHint()
            x -= hint.width()
            button.setGeometry(x, height + 8, hint.width(), hint.height())
            x -= 8
        return height + 8 + self._save.height()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Qt override: keys of the field."""
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
            if is_enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
                if self._save.isEnabled():
                    self.saved.emit(self._field.toPlainText())
                return True
            if event.key() == Qt.Key.Key_Escape:
                self.cancelled.emit()
                return True
        return False
