"""Below a reply: its versions, what one can do with it, and its numbers. GUI thread."""

from collections.abc import Sequence

from PySide6.QtCore import QRectF, Qt, Signal
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from inference.metrics import RequestMetrics
from ui.controls import numbers
from ui.controls.buttons import IconButton
from ui.look.theme import Theme

HEIGHT = 30
_BUTTON = 28
_STEP = 30
_ICON = 16
_CHEVRON = 20
BLEED = 8
"""The row starts this far left of the text, so that its first drawing stands at the text's edge."""


def numbers_text(metrics: RequestMetrics | None) -> str:
    """The numbers of a reply in words: "84 tok/s · first word after 0.21 s · …"."""
    if metrics is None:
        return ""
    parts: list[str] = []
    if metrics.decode_tps is not None:
        parts.append(f"{numbers.rate(metrics.decode_tps)} tok/s")
    if metrics.ttft_ms is not None:
        parts.append(f"first word after {numbers.seconds(metrics.ttft_ms)}")
    if metrics.reused_tokens:
        parts.append(f"{numbers.count(metrics.reused_tokens)} tokens reused from memory")
    return " · ".join(parts)


class VersionSwitch(QWidget):
    """`‹ 2/3 ›`.

    Signals:
        version_requested: Id of the version to show.
    """

    version_requested = Signal(int)

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._versions: Sequence[int] = ()
        self._index = 0
        self._text_width = 0
        self._before = IconButton(
            theme, "chevron-left", "Earlier version", icon_size=_ICON, size=_CHEVRON, parent=self
        )
        self._after = IconButton(
            theme, "chevron-right", "Later version", icon_size=_ICON, size=_CHEVRON, parent=self
        )
        self._before.clicked.connect(lambda: self._request(-1))
        self._after.clicked.connect(lambda: self._request(1))
        self.hide()

    def set_versions(self, versions: Sequence[int], current: int) -> None:
        """Show where `current` stands; hidden when it is alone."""
        self._versions = list(versions)
        self._index = self._versions.index(current) if current in self._versions else 0
        self.setVisible(len(self._versions) > 1)
        self._before.setEnabled(self._index > 0)
        self._after.setEnabled(self._index < len(self._versions) - 1)
        self.setAccessibleName(f"Version {self._index + 1} of {len(self._versions)}")
        self.place()
        self.update()

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one version."""
        return len(self._versions) > 1

    @property
    def label(self) -> str:
        """Text between the arrows."""
        return f"{self._index + 1} / {len(self._versions)}"

    def place(self) -> None:
        """Fit the width to the text."""
        metrics = QFontMetrics(self._theme.font("small_strong"))
        self._text_width = metrics.horizontalAdvance(self.label)
        self.resize(2 * _CHEVRON + self._text_width + 10, self._theme.px(HEIGHT))
        y = (self.height() - _CHEVRON) // 2
        self._before.move(0, y)
        self._after.move(self.width() - _CHEVRON, y)

    def set_color_role(self, role: str) -> None:
        """Colour of the arrows at rest."""
        self._before.set_color_role(role)
        self._after.set_color_role(role)

    def _request(self, step: int) -> None:
        index = self._index + step
        if 0 <= index < len(self._versions):
            self.version_requested.emit(self._versions[index])

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        painter.setFont(self._theme.font("small_strong"))
        painter.setPen(self._theme.color("text_2"))
        painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, self.label)


class ReplyFooter(QWidget):
    """One row, always visible; its icons are stronger while the pointer is over the reply.

    Signals:
        version_requested: Id of the version to show.
        copy_requested, again_requested, more_requested: A button was pressed.
    """

    version_requested = Signal(int)
    copy_requested = Signal()
    again_requested = Signal()
    more_requested = Signal()

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._text = ""
        self._buttons_end = 0
        self._switch = VersionSwitch(theme, self)
        self._switch.version_requested.connect(self.version_requested)
        self._buttons = [
            self._made_button("copy", "Copy reply", self.copy_requested),
            self._made_button("refresh-cw", "Reply again", self.again_requested),
            self._made_button("ellipsis", "More", self.more_requested),
        ]
        self.set_strong(False)

    @property
    def more_button(self) -> QWidget:
        """Where the menu opens."""
        return self._buttons[-1]

    @property
    def text(self) -> str:
        """The numbers shown."""
        return self._text

    def _made_button(self, icon_name: str, name: str, signal: object) -> IconButton:
        button = IconButton(
            self._theme, icon_name, name, icon_size=_ICON, size=_BUTTON, parent=self
        )
        button.clicked.connect(lambda: signal.emit())  # type: ignore[attr-defined]  # a bound signal
        return button

    def show_message(
        self, metrics: RequestMetrics | None, versions: Sequence[int], message_id: int
    ) -> None:
        """Take the numbers and the place among the versions."""
        self._text = numbers_text(metrics)
        self.setAccessibleDescription(self._text)
        self._switch.set_versions(versions, message_id)
        self.place()
        self.update()

    def set_strong(self, is_strong: bool) -> None:
        """Whether the pointer is over the reply."""
        role = "text_2" if is_strong else "text_3"
        self._switch.set_color_role(role)
        for button in self._buttons:
            button.set_color_role(role)

    def place(self) -> None:
        """Line up the buttons, the first drawing at the text's edge."""
        self._switch.place()
        x = BLEED - (_BUTTON - _ICON) // 2
        if not self._switch.isHidden():
            self._switch.move(BLEED - (_CHEVRON - _ICON) // 2 - 4, 0)
            x = self._switch.x() + self._switch.width() + 8
        y = (self._theme.px(HEIGHT) - _BUTTON) // 2
        for button in self._buttons:
            button.move(x, y)
            x += _STEP
        self._buttons_end = x

    def restyle(self) -> None:
        """Sizes are new."""
        self.place()
        self.update()

    def resizeEvent(self, event: object) -> None:
        """Qt override."""
        self.place()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override: the numbers, cut from the left when there is no room."""
        painter = QPainter(self)
        painter.setFont(self._theme.font("small"))
        painter.setPen(self._theme.color("text_3"))
        room = QRectF(self._buttons_end + 8, 0, 0, self.height())
        room.setRight(self.width() - BLEED)
        metrics = QFontMetrics(self._theme.font("small"))
        parts = self._text.split(" · ")
        while parts and metrics.horizontalAdvance(" · ".join(parts)) > room.width():
            parts.pop()
        flags = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(room, flags, " · ".join(parts))
