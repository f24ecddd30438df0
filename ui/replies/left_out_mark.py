"""Thin labelled lines in the chat: what stands above them the model does not see. GUI thread."""

from collections.abc import Sequence

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.conversation import Message, MessageId
from app.prompting import has_failed_at_once
from ui.look.theme import Theme

TEXT = "Messages above are left out"
_TIP = "The chat was full: the model does not see the messages above this line"
FAILED_TEXT = "The message above is left out"
_FAILED_TIP = "Its reply failed: the model does not see that message"
_GAP = 12
_LEAST_LINE = 16


class LeftOutMark(QWidget):
    """Stands between two messages; the column says where.

    Attributes:
        text: Its label.
    """

    def __init__(self, theme: Theme, parent: QWidget, *, text: str = TEXT, tip: str = _TIP) -> None:
        super().__init__(parent)
        self._theme = theme
        self.text = text
        self.setAccessibleName(text)
        self.setAccessibleDescription(tip)
        self.setToolTip(tip)
        theme.changed.connect(self.update)
        self.hide()

    def wanted_height(self) -> int:
        """Height of the line with its label."""
        return self._theme.line_height("small")

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override: the label in the middle, a line at each side of it."""
        painter = QPainter(self)
        font = self._theme.font("small")
        metrics = QFontMetrics(font)
        text = metrics.elidedText(self.text, Qt.TextElideMode.ElideRight, self.width())
        width = metrics.horizontalAdvance(text)
        left = (self.width() - width) // 2
        middle = self.height() // 2
        color = self._theme.color("control")
        if left - _GAP >= _LEAST_LINE:
            painter.fillRect(QRect(0, middle, left - _GAP, 1), color)
            start = left + width + _GAP
            painter.fillRect(QRect(start, middle, self.width() - start, 1), color)
        painter.setFont(font)
        painter.setPen(self._theme.color("text_2"))
        painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, text)


class LeftOutMarks:
    """All lines of one chat: one below its left out beginning, one below each turn that failed at once.

    Attributes:
        first_seen_id: The first message that the model still sees; None if it sees the beginning.
    """

    def __init__(self, theme: Theme, canvas: QWidget) -> None:
        self.first_seen_id: MessageId | None = None
        self._theme = theme
        self._canvas = canvas
        self._beginning = LeftOutMark(theme, canvas)
        self._failed: dict[MessageId, LeftOutMark] = {}

    def above(self, messages: Sequence[Message]) -> dict[MessageId, LeftOutMark]:
        """The lines of this chat, oldest message first, by the message below each.

        All others are hidden; the caller gives these their places and shows them.
        """
        ids = [message.id for message in messages]
        first = ids.index(self.first_seen_id) if self.first_seen_id in ids else 0
        failed = [
            ids[index]
            for index in range(max(2, first + 1), len(messages))
            if has_failed_at_once(messages[index - 2], messages[index - 1])
        ]
        for message_id in [known for known in self._failed if known not in failed]:
            gone = self._failed.pop(message_id)
            gone.hide()
            gone.deleteLater()
        found = {message_id: self._failed_mark(message_id) for message_id in failed}
        if first:
            found[ids[first]] = self._beginning
        else:
            self._beginning.hide()
        return found

    def _failed_mark(self, message_id: MessageId) -> LeftOutMark:
        if message_id not in self._failed:
            self._failed[message_id] = LeftOutMark(
                self._theme, self._canvas, text=FAILED_TEXT, tip=_FAILED_TIP
            )
        return self._failed[message_id]
