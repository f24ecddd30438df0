"""Rows about the answers to a question: those in the making, and that there is none. GUI thread."""

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from ui.controls.labels import ElidedLabel
from ui.look.theme import Theme
from ui.replies.answer_words import SEVERAL, SEVERAL_TIP, STOP_ALL_TIP, running_text
from ui.replies.reply_buttons import StopWordButton, WordButton
from ui.replies.reply_footer import BLEED, HEIGHT, VersionSwitch

_SWITCH_LEFT = BLEED - 6
_GAP = 8


class RunningRow(QWidget):
    """While answers to the same question are in the making: which one is shown, and how to stop all.

    It stands in the footer's place while the shown one is being written, and below the footer then.

    Signals:
        version_requested: Id of the version to show.
        stop_all_requested: All versions in the making are to end.
    """

    version_requested = Signal(int)
    stop_all_requested = Signal()

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._switch = VersionSwitch(theme, self)
        self._switch.set_color_role("text_2")
        self._switch.version_requested.connect(self.version_requested)
        self._label = ElidedLabel(theme, style="small", role="text_2", parent=self)
        self._stop = StopWordButton(theme, "Stop all", self)
        self._stop.clicked.connect(self.stop_all_requested)
        self.hide()

    @property
    def text(self) -> str:
        """What it says; "" while nothing else is being written."""
        return "" if self._label.isHidden() else self._label.text

    def show_state(
        self, versions: Sequence[int], current: int, *, is_streaming: bool, num_running: int
    ) -> None:
        """Take a new state; the row hides itself when there is nothing to say.

        Args:
            versions: The message and its siblings, oldest first.
            current: The one that is shown.
            is_streaming: Whether the shown one is in the making.
            num_running: How many versions are in the making, the shown one counted.
        """
        self._switch.set_versions(versions, current)
        has_switch = is_streaming and self._switch.has_choice
        self._switch.setVisible(has_switch)
        num_others = num_running - is_streaming
        self._label.set_text(running_text(num_others))
        self._stop.set_words("Stop all" if num_running > 1 else "Stop it", STOP_ALL_TIP)
        for part in (self._label, self._stop):
            part.setVisible(num_others > 0)
        self.setVisible(has_switch or num_others > 0)
        self.place()

    def wanted_height(self) -> int:
        """Height of the row."""
        return self._theme.px(HEIGHT)

    def place(self) -> None:
        """Line up the parts, the first one at the text's edge."""
        self._switch.place()
        x = BLEED
        if not self._switch.isHidden():
            self._switch.move(_SWITCH_LEFT, 0)
            x = self._switch.x() + self._switch.width() + _GAP
        stop = self._stop.sizeHint()
        room = self.width() - BLEED - x - stop.width() - _GAP
        width = max(0, min(self._label.sizeHint().width(), room))
        self._label.setGeometry(x, 0, width, self.height())
        self._stop.setGeometry(
            x + width + _GAP, (self.height() - stop.height()) // 2, stop.width(), stop.height()
        )

    def resizeEvent(self, event: object) -> None:
        """Qt override."""
        self.place()


class UnansweredRow(QWidget):
    """Below a question that has no reply: asks for one, or for several.

    Signals:
        reply_requested, several_requested: A button was pressed.
    """

    reply_requested = Signal()
    several_requested = Signal()

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        reply = WordButton(theme, "refresh-cw", "Reply", self)
        reply.set_words("Reply", "Write a reply to this message")
        reply.clicked.connect(self.reply_requested)
        several = WordButton(theme, "layers", SEVERAL, self)
        several.set_words(SEVERAL, SEVERAL_TIP)
        several.clicked.connect(self.several_requested)
        self._buttons = (reply, several)
        self.hide()

    def wanted_height(self) -> int:
        """Height of the row."""
        return self._theme.px(HEIGHT)

    def place(self) -> None:
        """Line up the buttons, the last word at the right edge."""
        x = self.width() + WordButton.PADDING
        for button in reversed(self._buttons):
            size = button.sizeHint()
            x -= size.width()
            button.setGeometry(x, (self.height() - size.height()) // 2, size.width(), size.height())
            x -= 4

    def resizeEvent(self, event: object) -> None:
        """Qt override."""
        self.place()
