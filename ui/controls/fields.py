"""A field with its name above and one sentence below when its value is not allowed. GUI thread."""

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QLineEdit, QVBoxLayout, QWidget

from ui.controls.labels import Label
from ui.controls.text_bounds import BoundedTextEdit
from ui.look.field_look import dress_field
from ui.look.theme import Theme


class Field(QWidget):
    """One line of text with a name.

    Attributes:
        input: The line.

    Signals:
        edited: The person changed the text.
    """

    edited = Signal()

    def __init__(self, theme: Theme, name: str, *, hint: str = "", tip: str = "") -> None:
        super().__init__()
        self._theme = theme
        self._name = Label(theme, name, style="label")
        self._problem = Label(theme, style="small", role="danger")
        self._problem.setWordWrap(True)
        self._problem.hide()
        self.input = QLineEdit()
        self.input.setFont(theme.font("ui"))
        self.input.setPlaceholderText(hint)
        self.input.setAccessibleName(name)
        self.input.setToolTip(tip)
        dress_field(self.input, theme)
        self.input.textEdited.connect(self.edited)
        self._name.setBuddy(self.input)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(4)
        column.addWidget(self._name)
        column.addWidget(self.input)
        column.addWidget(self._problem)

    @property
    def text(self) -> str:
        """What is written, without spaces around it."""
        return self.input.text().strip()

    @property
    def problem(self) -> str:
        """What is said about the value; "" if it is allowed."""
        return self._problem.text()

    def set_text(self, text: str) -> None:
        """Write this instead."""
        self.input.setText(text)
        self.input.setCursorPosition(0)

    def show_problem(self, problem: str) -> None:
        """Say what is allowed, or "" to take it back."""
        self._problem.setText(problem)
        self._problem.setVisible(bool(problem))
        self.input.setAccessibleDescription(problem)
        set_invalid(self.input, bool(problem))


class AreaField(QWidget):
    """Some lines of plain text with a name.

    Attributes:
        input: The lines.
    """

    def __init__(self, theme: Theme, name: str, *, hint: str = "", lines: int = 4) -> None:
        super().__init__()
        label = Label(theme, name, style="label")
        self.input = BoundedTextEdit()
        self.input.setProperty("field", True)
        dress_field(self.input, theme)
        self.input.setFont(theme.font("ui"))
        self.input.setPlaceholderText(hint)
        self.input.setAccessibleName(name)
        self.input.setTabChangesFocus(True)
        self.input.setFixedHeight(lines * theme.line_height("ui") + 16)
        label.setBuddy(self.input)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(4)
        column.addWidget(label)
        column.addWidget(self.input)

    @property
    def text(self) -> str:
        """What is written, without space around it."""
        return self.input.toPlainText().strip()

    def set_text(self, text: str) -> None:
        """Write this instead."""
        self.input.setPlainText(text)


def set_invalid(widget: QWidget, is_invalid: bool) -> None:
    """Give the widget the look of a wrong value, or take it back."""
    if bool(widget.property("invalid")) != is_invalid:
        widget.setProperty("invalid", is_invalid)
        widget.style().unpolish(widget)
        widget.style().polish(widget)
