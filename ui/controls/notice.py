"""A card above the composer that tells what is in the way, and offers the next step. GUI thread."""

from collections.abc import Callable, Sequence
from typing import Literal, cast

from PySide6.QtCore import QRectF
from PySide6.QtGui import QAccessible, QAccessibleEvent, QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from ui.controls.buttons import Button, ButtonKind
from ui.controls.flow_row import FlowRow
from ui.controls.focus_guest import FocusGuest
from ui.controls.labels import Label
from ui.look.icons import paint_icon
from ui.look.painting import paint_rounded
from ui.look.theme import Theme

_RADIUS = 12
_ICON = 18
_OUTLINE_OPACITY = 0.38
_FILL_OPACITY = 0.6

NoticeAction = tuple[str, Callable[[], object]]
NoticeKind = Literal["failure", "warning", "work"]

_ICONS = {"failure": "circle-alert", "warning": "triangle-alert", "work": "file-text"}
_BUTTONS: dict[NoticeKind, tuple[ButtonKind, ...]] = {
    "failure": ("secondary", "quiet"),
    "warning": ("primary", "secondary", "quiet"),
    "work": ("secondary",),
}


class Notice(FocusGuest):
    """What is so, in one title and one sentence; the first action is the one that solves it.

    Tab reaches its buttons just before `focus_home`.
    """

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._kind: NoticeKind = "failure"
        self._runs: list[Callable[[], object]] = []
        self._title = Label(theme, style="ui_title")
        self._text = Label(theme, style="label", role="text_2")
        self._title.setWordWrap(True)
        self._text.setWordWrap(True)
        self.buttons: list[Button] = []
        self._row = FlowRow()
        self._space = QWidget()  # above the row, and only with it
        self._space.setFixedHeight(10)
        column = QVBoxLayout(self)
        self._column = column
        column.setSpacing(2)
        column.addWidget(self._title)
        column.addWidget(self._text)
        column.addWidget(self._space)
        column.addWidget(self._row)
        theme.changed.connect(self._fit)
        self._fit()
        self.hide()

    @property
    def text(self) -> str:
        """Title and sentence."""
        return f"{self._title.text()}\n{self._text.text()}"

    def show_words(
        self, title: str, text: str, actions: Sequence[NoticeAction], *, kind: NoticeKind
    ) -> None:
        """Tell this and offer these actions, the solving one first.

        Who has the focus on a button keeps it if the buttons are the same as before.
        """
        names = [name for name, _ in actions]
        are_same = kind == self._kind and names == [button.text() for button in self.buttons]
        self._kind = kind
        self._runs = [run for _, run in actions]
        self._title.setText(title)
        self.set_text(text)
        if not are_same:
            self._make_buttons(names)
        if self.isHidden():
            self.show()
            # The focus stays where it is, so a screen reader would not come to know.
            QAccessible.updateAccessibility(QAccessibleEvent(self, QAccessible.Event.Alert))
        self.update()

    def set_text(self, text: str) -> None:
        """Say this below the title instead."""
        self._text.setText(text)
        self._text.setVisible(bool(text))
        self.setAccessibleName(f"{self._title.text()} {text}".strip())

    def show_failure(self, title: str, text: str, actions: Sequence[NoticeAction]) -> None:
        """Tell a failure and offer these actions, the solving one first."""
        self.show_words(title, text, actions, kind="failure")

    def height_within(self, width: int, room: int) -> int:
        """Height at this width; where all of it is more than `room`, the sentence becomes a tooltip."""
        sentence = self._text.text()
        self._text.setVisible(bool(sentence))
        self.setToolTip("")
        height = self._height_at(width)
        if height > room and sentence:
            self._text.hide()
            self.setToolTip(sentence)
            height = self._height_at(width)
        return height

    def _height_at(self, width: int) -> int:
        layout = self.layout()
        assert layout is not None, "made by the constructor"
        layout.activate()  # what it remembers may be of other words
        return layout.totalHeightForWidth(width)

    def _fit(self) -> None:
        self._column.setContentsMargins(16 + self._theme.px(_ICON) + 14, 14, 16, 12)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self._theme.palette
        rect = QRectF(self.rect())
        outline, fill, color = self._colors()
        paint_rounded(painter, rect, _RADIUS, fill=palette.surface)
        paint_rounded(painter, rect, _RADIUS, fill=fill, outline=outline)
        middle = 14 + self._theme.line_height("ui_title") / 2
        edge = self._theme.px(_ICON)
        paint_icon(painter, _ICONS[self._kind], color, QRectF(16, middle - edge / 2, edge, edge))

    def _colors(self) -> tuple[QColor, QColor, str]:
        """Outline, fill, and colour of the icon."""
        palette = self._theme.palette
        if self._kind == "work":
            return QColor(palette.border_2), QColor(palette.raised), palette.text_2
        color, soft = palette.warn, palette.warn_soft
        if self._kind == "failure":
            color, soft = palette.danger, palette.danger_soft
        outline, fill = QColor(color), QColor(soft)
        if not palette.is_contrast:
            outline.setAlphaF(_OUTLINE_OPACITY)
            fill.setAlphaF(_FILL_OPACITY)
        return outline, fill, color

    def _make_buttons(self, names: Sequence[str]) -> None:
        if self.isVisible():
            self._give_focus_back()
        for button in self.buttons:
            button.hide()
            button.deleteLater()
        kinds = _BUTTONS[self._kind]
        self.buttons = []
        for number, name in enumerate(names):
            button = Button(self._theme, name, kinds[min(number, len(kinds) - 1)])
            button.clicked.connect(lambda _checked=False, number=number: self._runs[number]())
            self.buttons.append(button)
        self._row.set_controls(self.buttons)
        self._space.setVisible(bool(names))
        self._row.setVisible(bool(names))
        if self.focus_home is not None:
            before = cast(QWidget, self.focus_home.previousInFocusChain())  # a ring: never None
            for button in self.buttons:
                QWidget.setTabOrder(before, button)
                before = button
