"""The sidebar: new chat, search, the list of chats, settings. GUI thread."""

from collections.abc import Sequence
from datetime import date

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from app.conversation import ConversationSummary
from app.search import SearchHit
from ui.controls.buttons import HoverButton, IconButton, native_keys, tooltip_text
from ui.controls.labels import Label
from ui.controls.mark import Mark
from ui.controls.search_field import SearchField
from ui.look.fade_edge import FADE_HEIGHT, FadeEdge
from ui.look.icons import paint_icon
from ui.look.painting import paint_rounded
from ui.look.theme import Theme
from ui.sidebar.chat_list import ChatList
from ui.sidebar.chat_rows import rows_by_day, rows_of_hits

SIDEBAR_WIDTH = 252
MIN_SIDEBAR_WIDTH = 220
MAX_SIDEBAR_WIDTH = 360
HEAD_HEIGHT = 52
_ROW_HEIGHT = 36
_RADIUS = 8
_MARK_SIZE = 19
_ICON = 18


class RowButton(HoverButton):
    """A button as wide as the sidebar: icon, words, shortcut at the right.

    Args:
        theme: Colours and fonts.
        icon_name: A drawing of `ui.look.icons`.
        text: Label and accessible name.
        shortcut: Shown at the right; may be empty.
        is_raised: Stands out with a surface and an outline.
    """

    def __init__(
        self, theme: Theme, icon_name: str, text: str, *, shortcut: str = "", is_raised: bool
    ) -> None:
        super().__init__(theme)
        self._icon_name = icon_name
        self._shortcut = native_keys(shortcut).replace("+", " ")
        self._is_raised = is_raised
        self.setText(text)
        self.setAccessibleName(text)
        self.setToolTip(tooltip_text(text, shortcut))
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        """Qt override."""
        width = QFontMetrics(self.theme.font("ui_strong")).horizontalAdvance(self.text())
        width += 42 + self.theme.px(_ICON)
        return QSize(width, self.theme.px(_ROW_HEIGHT))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self.theme.palette
        rect = QRectF(self.rect())
        if self._is_raised:
            paint_rounded(painter, rect, _RADIUS, fill=palette.raised, outline=palette.border_2)
        veil = self.veil()
        if veil is not None:
            paint_rounded(painter, rect, _RADIUS, fill=veil)
        color = palette.accent_text if self._is_raised else palette.text_2
        edge = self.theme.px(_ICON)
        place = QRectF(10, (self.height() - edge) / 2, edge, edge)
        paint_icon(painter, self._icon_name, color, place)
        painter.setFont(self.theme.font("ui_strong" if self._is_raised else "ui"))
        painter.setPen(QColor(palette.text if self._is_raised else palette.text_2))
        area = self.rect().adjusted(10 + edge + 8, 0, -12, 0)
        painter.drawText(area, Qt.AlignmentFlag.AlignVCenter, self.text())
        words = painter.fontMetrics().horizontalAdvance(self.text())
        painter.setFont(self.theme.font("key"))
        keys = painter.fontMetrics().horizontalAdvance(self._shortcut)
        if words + keys + 12 > area.width():
            return  # large text in a narrow sidebar: the tooltip still has the shortcut
        painter.setPen(QColor(palette.text_2))
        flags = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(area, flags, self._shortcut)


class Sidebar(QWidget):
    """Everything left of the chat.

    Signals:
        new_chat_requested, fold_requested, settings_requested: What they say.
        chat_chosen: A chat is to be opened: its row.
        rename_requested: A chat gets another title: id, title.
        clear_requested: What models have read of a chat is to be forgotten: its id.
        delete_requested: A chat is to be deleted: its id.
        search_changed: The words to search for; "" ends the search.
        left: Escape: the composer takes over.
    """

    new_chat_requested = Signal()
    fold_requested = Signal()
    settings_requested = Signal()
    chat_chosen = Signal(object)
    rename_requested = Signal(str, str)
    clear_requested = Signal(str)
    delete_requested = Signal(str)
    search_changed = Signal(str)
    left = Signal()

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self.setAccessibleName("Chats and settings")
        self.fold_button = IconButton(theme, "panel-left", "Hide the sidebar", shortcut="Ctrl+B")
        self.new_chat_button = RowButton(
            theme, "square-pen", "New chat", shortcut="Ctrl+N", is_raised=True
        )
        self.search_field = SearchField(theme, "Ctrl+K")
        self.chat_list = ChatList(theme)
        self.settings_button = RowButton(
            theme, "settings", "Settings", shortcut="Ctrl+,", is_raised=False
        )
        self._hint = Label(theme, style="label", role="text_2")
        self._hint.setWordWrap(True)
        self._lay_out()
        self._fade = FadeEdge(theme, "sidebar", fades_down=False, parent=self)
        self._connect()
        bar = self.chat_list.verticalScrollBar()
        bar.valueChanged.connect(self._show_fade)
        bar.rangeChanged.connect(self._show_fade)
        self._show_fade()
        theme.changed.connect(self.update)
        self._show_hint()

    def show_chats(self, chats: Sequence[ConversationSummary], today: date) -> None:
        """List all chats, grouped by day."""
        self.chat_list.set_rows(rows_by_day(chats, today))
        self._show_hint()

    def show_hits(self, hits: Sequence[SearchHit]) -> None:
        """List found chats."""
        self.chat_list.set_rows(rows_of_hits(hits))
        self._show_hint()

    def start_search(self) -> None:
        """Put the caret into the search field."""
        self.search_field.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.search_field.selectAll()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        super().resizeEvent(event)
        bottom = self.chat_list.geometry().bottom() + 1
        self._fade.setGeometry(0, bottom - FADE_HEIGHT, self.width() - 12, FADE_HEIGHT)

    def _show_fade(self) -> None:
        """Only where more follows: what is last would not be read well under it."""
        bar = self.chat_list.verticalScrollBar()
        self._fade.setVisible(bar.value() < bar.maximum())

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        painter.fillRect(self.rect(), self._theme.color("sidebar"))
        border = self._theme.color("border")
        painter.fillRect(self.width() - 1, 0, 1, self.height(), border)

    def _lay_out(self) -> None:
        head = QHBoxLayout()
        head.setContentsMargins(20, 10, 13, 10)
        head.setSpacing(8)
        head.addWidget(Mark(self._theme, _MARK_SIZE))
        head.addWidget(Label(self._theme, "Quire", style="title"))
        head.addStretch()
        head.addWidget(self.fold_button)
        rows = QVBoxLayout()
        rows.setContentsMargins(10, 4, 10, 0)
        rows.setSpacing(6)
        rows.addWidget(self.new_chat_button)
        rows.addWidget(self.search_field)
        self._hint.setContentsMargins(22, 7, 22, 0)
        foot = QHBoxLayout()
        foot.setContentsMargins(10, 8, 10, 8)
        foot.addWidget(self.settings_button)
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 1, 0)
        whole.setSpacing(0)
        whole.addLayout(head)
        whole.addLayout(rows)
        whole.addSpacing(12)
        whole.addWidget(self._hint)
        whole.addWidget(self.chat_list, 1)
        whole.addLayout(foot)

    def _connect(self) -> None:
        self.fold_button.clicked.connect(self.fold_requested)
        self.new_chat_button.clicked.connect(self.new_chat_requested)
        self.settings_button.clicked.connect(self.settings_requested)
        self.search_field.textChanged.connect(self.search_changed)
        self.search_field.left.connect(self._leave_search)
        self.chat_list.chat_chosen.connect(self.chat_chosen)
        self.chat_list.clear_requested.connect(self.clear_requested)
        self.chat_list.delete_requested.connect(self.delete_requested)
        self.chat_list.rows.title_edited.connect(self.rename_requested)

    def _leave_search(self) -> None:
        if self.chat_list.rows.rowCount():
            self.chat_list.setFocus(Qt.FocusReason.ShortcutFocusReason)
        else:
            self.left.emit()

    def _show_hint(self) -> None:
        is_empty = self.chat_list.rows.rowCount() == 0
        words = self.search_field.text()
        self._hint.setText("Nothing found." if words else "Your chats will be listed here.")
        self._hint.setVisible(is_empty)
