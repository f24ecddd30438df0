"""What all our dialogs have in common: surface, title, buttons at the right. GUI thread."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import QDialog, QHBoxLayout, QVBoxLayout, QWidget

from ui.controls.buttons import Button, ButtonKind
from ui.controls.labels import Label
from ui.look.focus_ring import FocusRing
from ui.look.theme import Theme

DIALOG_WIDTH = 440
_PADDING = 24


class Dialog(QDialog):
    """A window over the main one, 440 wide.

    Attributes:
        content: Layout for what it is about.

    Args:
        theme: Colours and fonts.
        title: In the window's frame and as the heading.
        parent: The window it lies over.
        width: Of the whole dialog in logical pixels.
    """

    def __init__(
        self, theme: Theme, title: str, parent: QWidget | None, *, width: int = DIALOG_WIDTH
    ) -> None:
        super().__init__(parent)
        self.theme = theme
        self.setWindowTitle(title)
        self.setFixedWidth(width)
        self._ring = FocusRing(theme, self)
        self._first: QWidget | None = None
        self.content = QVBoxLayout()
        self.content.setSpacing(12)
        self._buttons = QHBoxLayout()
        self._buttons.setSpacing(8)
        self._buttons.addStretch()
        whole = QVBoxLayout(self)
        whole.setContentsMargins(_PADDING, 20, _PADDING, 20)
        whole.setSpacing(0)
        whole.addWidget(Label(theme, title, style="h2"))
        whole.addSpacing(10)
        whole.addLayout(self.content)
        whole.addSpacing(20)
        whole.addLayout(self._buttons)
        theme.changed.connect(self.update)
        self.finished.connect(self._give_back)

    def add_text(self, text: str, *, role: str = "text_2") -> Label:
        """Add a paragraph."""
        label = Label(self.theme, text, style="ui", role=role)
        label.setWordWrap(True)
        self.content.addWidget(label)
        return label

    def add_button(
        self, text: str, kind: ButtonKind = "secondary", *, is_first: bool = False
    ) -> Button:
        """Add a button at the right; `is_first` gets the focus: the safe choice."""
        button = Button(self.theme, text, kind)
        self._buttons.addWidget(button)
        if is_first:
            self._first = button
        return button

    def add_left_button(self, text: str) -> Button:
        """Add a quiet button at the left."""
        button = Button(self.theme, text, "quiet")
        self._buttons.insertWidget(0, button)
        return button

    def showEvent(self, event: QShowEvent) -> None:
        """Qt override."""
        super().showEvent(event)
        if self._first is not None:
            self._first.setFocus(Qt.FocusReason.OtherFocusReason)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        painter.fillRect(self.rect(), self.theme.color("border_2"))
        painter.fillRect(self.rect().adjusted(1, 1, -1, -1), self.theme.color("raised"))

    def _give_back(self) -> None:
        """Let the window below have the keys again; without a window manager nobody else does."""
        parent = self.parentWidget()
        if parent is not None and parent.isVisible():
            parent.activateWindow()
