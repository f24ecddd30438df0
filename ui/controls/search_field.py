"""The search row of the sidebar: looks like a row until it is used. GUI thread."""

from PySide6.QtCore import QEvent, QRect, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QLineEdit, QWidget

from ui.controls.buttons import IconButton, native_keys, tooltip_text
from ui.look.field_look import dress_field
from ui.look.icons import paint_icon
from ui.look.theme import Theme

_ICON_LEFT = 10
_ICON = 18
_TEXT_GAP = 7


class SearchField(QLineEdit):
    """A field with a magnifier, and its shortcut at the right while empty.

    Signals:
        left: Escape in the empty field, or Down: the list takes over.
    """

    left = Signal()

    def __init__(self, theme: Theme, shortcut: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._shortcut = native_keys(shortcut).replace("+", " ")
        self.setProperty("look", "row")
        dress_field(self, theme)
        self.setPlaceholderText("Search")
        self.setAccessibleName("Search chats")
        self.setToolTip(tooltip_text("Search titles and messages", shortcut))
        self._clear_button = IconButton(
            theme, "circle-x", "Clear the search", icon_size=16, size=26, parent=self
        )
        self._clear_button.setCursor(Qt.CursorShape.ArrowCursor)
        self._clear_button.clicked.connect(self.clear)
        self._clear_button.hide()
        self.textChanged.connect(lambda text: self._clear_button.setVisible(bool(text)))
        theme.changed.connect(self._apply)
        self._apply()

    def event(self, event: QEvent) -> bool:
        """Qt override: what Escape clears here, it does not close around it."""
        if (
            event.type() == QEvent.Type.ShortcutOverride
            and isinstance(event, QKeyEvent)
            and event.key() == Qt.Key.Key_Escape
            and self.text()
        ):
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Qt override: Escape clears, then leaves; Down goes to the list."""
        if event.key() == Qt.Key.Key_Escape and self.text():
            self.clear()
        elif event.key() in (Qt.Key.Key_Escape, Qt.Key.Key_Down):
            self.left.emit()
        else:
            super().keyPressEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        super().resizeEvent(event)
        edge = self._clear_button.width()
        self._clear_button.move(self.width() - edge - 5, (self.height() - edge) // 2)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        super().paintEvent(event)
        painter = QPainter(self)
        palette = self._theme.palette
        edge = self._theme.px(_ICON)
        place = QRectF(_ICON_LEFT, (self.height() - edge) / 2, edge, edge)
        paint_icon(painter, "search", palette.text_2, place)
        if self.text() or self.hasFocus():
            return
        painter.setFont(self._theme.font("key"))
        painter.setPen(QColor(palette.text_2))
        area = QRect(0, 0, self.width() - 12, self.height())
        flags = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(area, flags, self._shortcut)

    def _apply(self) -> None:
        self.setFont(self._theme.font("ui"))
        left = _ICON_LEFT + self._theme.px(_ICON) + _TEXT_GAP
        self.setTextMargins(left - 12, 0, self._theme.px(20), 0)
