"""The rows of the chat list as Qt's views want them. GUI thread."""

from PySide6.QtCore import (
    QAbstractListModel,
    QModelIndex,
    QPersistentModelIndex,
    Qt,
    Signal,
)
from PySide6.QtWidgets import QWidget

from ui.sidebar.chat_rows import ChatRow, Row

AnyIndex = QModelIndex | QPersistentModelIndex


class ChatListModel(QAbstractListModel):
    """The rows as Qt wants them.

    Signals:
        title_edited: A new title was typed into the row: chat id, title.
    """

    title_edited = Signal(str, str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._rows: list[Row] = []

    def set_rows(self, rows: list[Row]) -> None:
        """Show these rows; nothing happens if they are those that are shown."""
        if rows == self._rows:
            return
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()

    def row(self, index: AnyIndex) -> Row | None:
        """The row at `index`; None outside the list."""
        return self._rows[index.row()] if index.isValid() else None

    def index_of(self, chat_id: str | None) -> QModelIndex:
        """Where this chat is; an invalid index if it is not in the list."""
        for number, row in enumerate(self._rows):
            if isinstance(row, ChatRow) and row.id == chat_id:
                return self.index(number)
        return QModelIndex()

    def rowCount(self, parent: AnyIndex | None = None) -> int:
        """Qt override."""
        return 0 if parent is not None and parent.isValid() else len(self._rows)

    def data(self, index: AnyIndex, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        """Qt override."""
        row = self.row(index)
        if row is None:
            return None
        is_chat = isinstance(row, ChatRow)
        text = row.title if isinstance(row, ChatRow) else row.text
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.EditRole):
            return text
        if role == Qt.ItemDataRole.ToolTipRole and is_chat:
            return text
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return text if is_chat else f"{text}, group"
        return None

    def setData(self, index: AnyIndex, value: object, role: int = Qt.ItemDataRole.EditRole) -> bool:
        """Qt override: ask for the new title; the list is told when it is stored."""
        row = self.row(index)
        title = " ".join(str(value).split())
        if role != Qt.ItemDataRole.EditRole or not isinstance(row, ChatRow) or not title:
            return False
        if title != row.title:
            self.title_edited.emit(row.id, title)
        return True

    def flags(self, index: AnyIndex) -> Qt.ItemFlag:
        """Qt override: headings can neither be chosen nor reached with keys."""
        if not isinstance(self.row(index), ChatRow):
            return Qt.ItemFlag.NoItemFlags
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsEditable
