"""Below a reply: its versions, what one can do with it, and its numbers. GUI thread."""

from collections.abc import Sequence

from PySide6.QtCore import QRectF, Qt, Signal
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.conversation import Message
from inference.metrics import RequestMetrics
from ui.controls import numbers
from ui.controls.buttons import IconButton
from ui.look.theme import Theme
from ui.replies.answer_words import SEVERAL_AT_ONCE
from ui.replies.guess_words import guess_text, short_guess_text
from ui.replies.reuse_words import reused_text, short_stop_text, stop_text

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
        parts.append(reused_text(metrics))
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
        edge = self._theme.px(_CHEVRON)
        self.resize(2 * edge + self._text_width + 10, self._theme.px(HEIGHT))
        y = (self.height() - edge) // 2
        self._before.move(0, y)
        self._after.move(self.width() - edge, y)

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

    Where tokens were guessed ahead, a line below the numbers says what that brought; where less was
    reused than could be, another one says where and why.

    Signals:
        version_requested: Id of the version to show.
        copy_requested, again_requested, several_requested, more_requested: A button was pressed.
    """

    version_requested = Signal(int)
    copy_requested = Signal()
    again_requested = Signal()
    several_requested = Signal()
    more_requested = Signal()

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._text = ""
        # The lines below the numbers, each in more and in fewer words; () if there is nothing to say.
        self._guesses: tuple[str, ...] = ()
        self._reasons: tuple[str, ...] = ()
        self._buttons_end = 0
        self._switch = VersionSwitch(theme, self)
        self._switch.version_requested.connect(self.version_requested)
        self._buttons = [
            self._made_button("copy", "Copy reply", self.copy_requested),
            self._made_button("refresh-cw", "Reply again", self.again_requested),
            self._made_button("layers", SEVERAL_AT_ONCE, self.several_requested),
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

    @property
    def reason(self) -> str:
        """Where and why something was read again; "" if nothing was."""
        return self._reasons[0] if self._reasons else ""

    @property
    def guesses(self) -> str:
        """What guessing ahead brought; "" if nothing was guessed."""
        return self._guesses[0] if self._guesses else ""

    def wanted_height(self) -> int:
        """Height of the row, and of the lines below it if there are any."""
        num_lines = bool(self._guesses) + bool(self._reasons)
        return self._theme.px(HEIGHT) + num_lines * self._theme.line_height("small")

    def _made_button(self, icon_name: str, name: str, signal: object) -> IconButton:
        button = IconButton(
            self._theme, icon_name, name, icon_size=_ICON, size=_BUTTON, parent=self
        )
        button.clicked.connect(lambda: signal.emit())  # type: ignore[attr-defined]  # a bound signal
        return button

    def show_message(self, message: Message, versions: Sequence[int]) -> None:
        """Take the numbers and the place among the versions."""
        metrics, left_out = message.metrics, message.left_out
        self._text = numbers_text(metrics)
        self._guesses = self._reasons = ()
        if metrics is not None and metrics.drafted_tokens > 0:
            self._guesses = (guess_text(metrics), short_guess_text(metrics))
        if metrics is not None and metrics.reuse_stop is not None:
            full = stop_text(metrics, left_out=left_out)
            self._reasons = (full, short_stop_text(metrics, left_out=left_out))
        told = [part for part in (self._text, self.guesses, self.reason) if part]
        self.setAccessibleDescription(". ".join(told))
        self.setToolTip("\n".join(told))
        self._switch.set_versions(versions, message.id)
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
        px = self._theme.px
        x = max(0, BLEED - (px(_BUTTON) - px(_ICON)) // 2)  # a large one keeps its left edge
        if not self._switch.isHidden():
            self._switch.move(BLEED - (px(_CHEVRON) - px(_ICON)) // 2 - 4, 0)
            x = self._switch.x() + self._switch.width() + 8
        y = (px(HEIGHT) - px(_BUTTON)) // 2
        for button in self._buttons:
            button.move(x, y)
            x += px(_STEP)
        self._buttons_end = x

    def restyle(self) -> None:
        """Sizes are new."""
        self.place()
        self.update()

    def resizeEvent(self, event: object) -> None:
        """Qt override."""
        self.place()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override: the numbers, of which the first go when there is no room; below them the lines.

        What was reused stands nowhere else; the speeds of the last reply are in the status bar too.
        """
        painter = QPainter(self)
        painter.setFont(self._theme.font("small"))
        painter.setPen(self._theme.color("text_3"))
        room = QRectF(self._buttons_end + 8, 0, 0, self._theme.px(HEIGHT))
        room.setRight(self.width() - BLEED)
        metrics = QFontMetrics(self._theme.font("small"))
        flags = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(room, flags, fitting_numbers(self._text, metrics, int(room.width())))
        line = QRectF(BLEED, room.bottom() - 4, self.width() - 2 * BLEED, 0)
        line.setHeight(self._theme.line_height("small"))
        for wordings, role in ((self._guesses, "text_3"), (self._reasons, "warn")):
            if wordings:
                painter.setPen(self._theme.color(role))
                painter.drawText(line, flags, _fitting(wordings, metrics, int(line.width())))
                line.translate(0, line.height())


def fitting_numbers(text: str, metrics: QFontMetrics, width: int) -> str:
    """As many of the last numbers as there is room for."""
    parts = text.split(" · ")
    while parts and metrics.horizontalAdvance(" · ".join(parts)) > width:
        del parts[0]
    return " · ".join(parts)


def _fitting(wordings: Sequence[str], metrics: QFontMetrics, width: int) -> str:
    """The first wording that fits; the last one, cut, if none does."""
    for words in wordings:
        if metrics.horizontalAdvance(words) <= width:
            return words
    return metrics.elidedText(wordings[-1], Qt.TextElideMode.ElideRight, width)
