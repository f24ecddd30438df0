"""A card above the composer that tells what is in the way, and offers the next step. GUI thread."""

from collections.abc import Callable, Sequence

from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from ui.controls.buttons import Button
from ui.controls.focus_guest import FocusGuest
from ui.controls.labels import Label
from ui.look.icons import paint_icon
from ui.look.painting import paint_rounded
from ui.look.theme import Theme

_RADIUS = 12
_OUTLINE_OPACITY = 0.38
_FILL_OPACITY = 0.6

NoticeAction = tuple[str, Callable[[], object]]


class Notice(FocusGuest):
    """What happened, in one title and one sentence; the first action is the one that solves it."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._title = Label(theme, style="ui_title")
        self._text = Label(theme, style="label", role="text_2")
        self._title.setWordWrap(True)
        self._text.setWordWrap(True)
        self.buttons: list[Button] = []
        self._row = QHBoxLayout()
        self._row.setSpacing(4)
        column = QVBoxLayout(self)
        column.setContentsMargins(48, 14, 16, 12)
        column.setSpacing(2)
        column.addWidget(self._title)
        column.addWidget(self._text)
        column.addSpacing(10)
        column.addLayout(self._row)
        theme.changed.connect(self.update)
        self.hide()

    @property
    def text(self) -> str:
        """Title and sentence."""
        return f"{self._title.text()}\n{self._text.text()}"

    def show_failure(self, title: str, text: str, actions: Sequence[NoticeAction]) -> None:
        """Tell a failure and offer these actions, the solving one first."""
        self._title.setText(title)
        self._text.setText(text)
        for button in self.buttons:
            self._row.removeWidget(button)
            button.deleteLater()
        while self._row.count():
            self._row.takeAt(0)
        self.buttons = []
        for number, (name, run) in enumerate(actions):
            button = Button(self._theme, name, "quiet" if number else "secondary")
            button.clicked.connect(lambda _checked=False, run=run: run())
            self.buttons.append(button)
            self._row.addWidget(button)
        self._row.addStretch()
        self.setAccessibleName(f"{title} {text}")
        self.show()

    def wanted_height(self, width: int) -> int:
        """Height at this width."""
        return self.heightForWidth(width) if self.hasHeightForWidth() else self.sizeHint().height()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self._theme.palette
        rect = QRectF(self.rect())
        outline = QColor(palette.danger)
        fill = QColor(palette.danger_soft)
        if not palette.is_contrast:
            outline.setAlphaF(_OUTLINE_OPACITY)
            fill.setAlphaF(_FILL_OPACITY)
        paint_rounded(painter, rect, _RADIUS, fill=palette.surface)
        paint_rounded(painter, rect, _RADIUS, fill=fill, outline=outline)
        paint_icon(painter, "circle-alert", palette.danger, QRectF(16, 15, 18, 18))
