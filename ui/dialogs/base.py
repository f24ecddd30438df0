"""What all our dialogs have in common: surface, title, buttons at the right. GUI thread."""

from PySide6.QtCore import QPoint, Qt, QTimer
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QDialog, QHBoxLayout, QVBoxLayout, QWidget

from ui.controls.buttons import Button, ButtonKind
from ui.controls.labels import Label
from ui.controls.tall_area import SLACK, TallArea
from ui.look.focus_ring import FocusRing
from ui.look.theme import Theme

DIALOG_WIDTH = 440
_PADDING = 24


class Dialog(QDialog):
    """A window over the main one, 440 wide; it stays on its screen whatever it shows.

    Attributes:
        head: Layout for what stays in sight above the content.
        area: Scrolls the content where the screen is too low for it.
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
        self.head = QVBoxLayout()
        self.area = TallArea()
        self.content = self.area.content
        self.content.setSpacing(12)
        self._fit_later = QTimer(self)
        self._fit_later.setSingleShot(True)
        self._fit_later.setInterval(0)
        self._fit_later.timeout.connect(self.area.fit)
        self._buttons = QHBoxLayout()
        self._buttons.setSpacing(8)
        self._buttons.addStretch()
        whole = QVBoxLayout(self)
        whole.setContentsMargins(_PADDING, 20, _PADDING, 20)
        whole.setSpacing(0)
        whole.addWidget(Label(theme, title, style="h2"))
        whole.addSpacing(10)
        whole.addLayout(self.head)
        whole.addWidget(self.area)
        whole.addSpacing(20 - SLACK)
        whole.addLayout(self._buttons)
        theme.changed.connect(self.update)
        theme.changed.connect(self._fit_later.start)
        self.finished.connect(self._give_back)

    def fit(self) -> None:
        """Take the height that the content has, once what happens now is over."""
        self._fit_later.start()

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

    def setVisible(self, visible: bool) -> None:
        """Qt override: the height is right before Qt chooses the place."""
        if visible and self.isHidden():
            self.area.fit()
        super().setVisible(visible)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        super().resizeEvent(event)
        if self.isVisible():
            self._stay_on_screen()

    def _stay_on_screen(self) -> None:
        """Move up or left by as much as was lost beyond the edge; the top is never lost."""
        room, frame = self.screen().availableGeometry(), self.frameGeometry()
        place = QPoint(
            max(room.left(), min(frame.left(), room.right() + 1 - frame.width())),
            max(room.top(), min(frame.top(), room.bottom() + 1 - frame.height())),
        )
        if place != frame.topLeft():
            self.move(place)

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
