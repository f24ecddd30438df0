"""Everything right of the sidebar: header, messages or greeting, notice, composer. GUI thread."""

from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QWidget

from ui.chat.composer import Composer
from ui.chat.empty_state import EmptyState
from ui.chat.header import Header
from ui.controls.hint_line import HintLine
from ui.controls.notice import Notice
from ui.controls.toast import Toast
from ui.look.theme import Theme
from ui.replies.message_list import MessageList
from ui.replies.reply_column import COLUMN_WIDTH, MARGIN, NARROW_BELOW, NARROW_MARGIN

_GAP = 14
_TOAST_GAP = 10
_NOTICE_GAP = 10
_HINT_GAP = 8


class ChatPane(QWidget):
    """Places its parts by hand, because the composer grows upwards over the column's foot.

    Attributes:
        header, messages, empty, notice, full_card, hint, composer, toast: The parts. Of the three
            above the composer, `notice` is about the model, `full_card` and `hint` about a full chat.
    """

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._content_bottom = 0
        self.header = Header(theme, self)
        self.messages = MessageList(theme, self)
        self.empty = EmptyState(theme, self)
        self.notice = Notice(theme, self)
        self.full_card = Notice(theme, self)
        self.hint = HintLine(theme, self)
        self.composer = Composer(theme, self)
        self.toast = Toast(theme, self)
        for guest in (self.notice, self.full_card, self.toast):
            guest.focus_home = self.composer.input
        self.composer.height_changed.connect(self.place)
        self.toast.resized.connect(self._place_toast)
        self.messages.scrolled.connect(self.header.set_scrolled)
        self.setTabOrder(self.header.menu_button, self.composer.input)
        self.setTabOrder(self.composer.input, self.composer.button)
        theme.changed.connect(self._theme_changed)
        self.show_empty(True)

    def show_empty(self, is_empty: bool) -> None:
        """Show the greeting in place of the messages, or the other way round."""
        if self.empty.isHidden() != is_empty:
            return  # as it is
        self.empty.setVisible(is_empty)
        self.messages.setVisible(not is_empty)
        if is_empty:
            self.header.set_scrolled(False)

    def show_notice(self, is_shown: bool) -> None:
        """Show or hide the card above the composer, and make room for it."""
        self.notice.setVisible(is_shown)
        self.place()

    def place(self) -> None:
        """Give every part its place for the size that the pane has."""
        width, height = self.width(), self.height()
        head = self.header.height()
        self.header.setGeometry(0, 0, width, head)
        side = NARROW_MARGIN if width < NARROW_BELOW else MARGIN
        column = min(COLUMN_WIDTH, width - 2 * side)
        left = (width - column) // 2
        wanted = self.composer.wanted_height()
        top = max(head, height - _GAP - wanted)
        margins = self.composer.margins()
        self.composer.setGeometry(
            left - margins.left(),
            top - margins.top(),
            column + margins.left() + margins.right(),
            height - _GAP - top + margins.top() + margins.bottom(),
        )
        bottom = self._place_guests(left, column, head=head, bottom=top)
        content_height = max(0, bottom - head)
        self.messages.setGeometry(0, head, width, content_height)
        self.empty.setGeometry(0, head, width, content_height)
        self._content_bottom = bottom
        self._place_toast()

    def _place_guests(self, left: int, column: int, *, head: int, bottom: int) -> int:
        """Stack what stands above the composer; gives where the messages end."""
        if self.hint.isVisibleTo(self):
            height = self.hint.wanted_height(column)
            bottom -= _HINT_GAP + height
            self.hint.setGeometry(left, bottom, column, height)
        for notice in (self.full_card, self.notice):
            if notice.isVisibleTo(self):
                height = notice.height_within(column, bottom - _NOTICE_GAP - head)
                bottom -= _NOTICE_GAP + height
                notice.setGeometry(left, bottom, column, height)
        return bottom

    def _place_toast(self) -> None:
        self.toast.place(self.width() // 2, self._content_bottom - _TOAST_GAP)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        self.place()
        super().resizeEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        QPainter(self).fillRect(self.rect(), self._theme.color("surface"))

    def _theme_changed(self) -> None:
        self.place()
        self.update()
