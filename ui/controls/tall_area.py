"""A part of a dialog that scrolls when the screen is too low for all of it. GUI thread."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

LEAST_HEIGHT = 120
SLACK = 4  # the frame of a field with a wrong value is thicker, which its hint learns later
_BAR_GAP = 10  # between the content and the scroll bar
_WINDOW_FRAME = 48  # title bar and edge that the system puts around a dialog


class TallArea(QScrollArea):
    """As high as its content, or as the screen leaves room for.

    Attributes:
        content: Layout for what is inside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setWidgetResizable(True)
        inside = QWidget()
        inside.setAutoFillBackground(False)
        self.content = QVBoxLayout(inside)
        self.content.setContentsMargins(0, 0, 0, 0)
        self.setWidget(inside)
        # After `setWidget`, which fills the background.
        inside.setAutoFillBackground(False)
        self.viewport().setAutoFillBackground(False)

    def fit(self) -> None:
        """Take the right height, and give the window around it the size that follows.

        Of the height, `SLACK` is empty.
        """
        window = self.window()
        layout = window.layout()
        assert layout is not None, "it lies in the layout of a dialog"
        layout.activate()  # what it remembers of sizes may be old
        self.content.activate()
        width = window.width() - 2 * layout.contentsMargins().left()
        wanted = self._content_height(width)
        own = self.minimumHeight() or self.minimumSizeHint().height()
        around = layout.totalMinimumSize().height() - own
        room = window.screen().availableGeometry().height() - _WINDOW_FRAME - around
        self.content.setContentsMargins(0, 0, _BAR_GAP if wanted > room else 0, 0)
        self.setFixedHeight(min(wanted, max(LEAST_HEIGHT, room)))
        layout.activate()
        window.resize(window.width(), layout.totalMinimumSize().height())

    def _content_height(self, width: int) -> int:
        """With its texts wrapped to this width, and no gap beside them."""
        least = self.content.totalMinimumSize().height()
        if not self.content.hasHeightForWidth():
            return least + SLACK
        width += self.content.contentsMargins().right()
        return max(least, self.content.totalHeightForWidth(width)) + SLACK
