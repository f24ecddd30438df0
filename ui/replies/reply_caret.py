"""Where the next word of a reply will stand, and what is said before the first one. GUI thread."""

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.session_changes import WaitReason
from ui.controls import numbers
from ui.look.theme import Theme

BLINK_MS = 530
_CARET = (3, 18)

WAITS: dict[WaitReason, str] = {
    "memory": "Waiting for another reply to end: memory for chats is full",
    "reading": "Waiting while another message is read",
    "turn": "Waiting for another reply to end",
}
"""What is said of a reply to which the model does not come yet."""


class Caret(QWidget):
    """The bar behind the last character; blinks unless motion is reduced."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._is_on = True
        self._timer = QTimer(self)
        self._timer.setInterval(BLINK_MS)
        self._timer.timeout.connect(self._blink)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.hide()

    def start(self) -> None:
        """Show it."""
        self.resize(_CARET[0], self._theme.px(_CARET[1]))
        self._is_on = True
        if not self._theme.reduce_motion:
            self._timer.start()
        self.show()

    def stop(self) -> None:
        """Hide it."""
        self._timer.stop()
        self.hide()

    def _blink(self) -> None:
        self._is_on = not self._is_on
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        if self._is_on:
            QPainter(self).fillRect(self.rect(), self._theme.color("ring"))


def prefill_text(done_tokens: int, total_tokens: int, seconds_left: float | None) -> str:
    """Progress before the first word: "Reading your message… 62% · 3 s left"."""
    share = done_tokens / total_tokens if total_tokens > 0 else 0.0
    text = f"Reading your message… {numbers.percent(share)}"
    if seconds_left is not None and seconds_left >= 0.5:
        text += f" · {numbers.count(round(seconds_left))} s left"
    return text
