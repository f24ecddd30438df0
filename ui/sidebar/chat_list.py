"""The list of chats: model, look, and what mouse and keys do in it. GUI thread."""

from typing import cast

from PySide6.QtCore import (
    QAbstractItemModel,
    QElapsedTimer,
    QEvent,
    QModelIndex,
    QPoint,
    QRect,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import QContextMenuEvent, QFocusEvent, QKeyEvent, QMouseEvent, QPaintEvent
from PySide6.QtWidgets import (
    QAbstractItemDelegate,
    QAbstractItemView,
    QFrame,
    QLineEdit,
    QListView,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from ui.controls.menus import Menu
from ui.look.field_look import dress_field
from ui.look.theme import Theme
from ui.sidebar.chat_list_model import AnyIndex, ChatListModel
from ui.sidebar.chat_row_painter import ChatRowPainter
from ui.sidebar.chat_rows import ChatRow, Row

_INSET = 10
_INSET_BESIDE_BAR = 2
AIM_MS = 1000


class _RowDelegate(QStyledItemDelegate):
    """Hands painting to `ChatRowPainter` and makes the field for a new title."""

    def __init__(self, painter: ChatRowPainter, view: "ChatList") -> None:
        super().__init__(view)
        self._painter = painter
        self._view = view

    def paint(self, painter: object, option: QStyleOptionViewItem, index: AnyIndex) -> None:
        """Qt override."""
        row = self._view.rows.row(index)
        if row is not None:
            rect: QRect = option.rect
            self._painter.paint(painter, rect, row, self._view.row_state(index))  # type: ignore[arg-type]  # a QPainter

    def sizeHint(self, option: QStyleOptionViewItem, index: AnyIndex) -> QSize:
        """Qt override."""
        row = self._view.rows.row(index)
        height = self._painter.height(row, is_first=index.row() == 0) if row is not None else 0
        return QSize(10, height)

    def createEditor(
        self, parent: QWidget, option: QStyleOptionViewItem, index: AnyIndex
    ) -> QWidget:
        """Qt override."""
        field = QLineEdit(parent)
        field.setFont(self._painter.theme.font("ui"))
        field.setAccessibleName("New title")
        field.setProperty("inline", True)
        dress_field(field, self._painter.theme)
        return field

    def setEditorData(self, editor: QWidget, index: AnyIndex) -> None:
        """Qt override."""
        field = cast(QLineEdit, editor)
        field.setText(str(index.data(Qt.ItemDataRole.EditRole)))
        field.selectAll()

    def setModelData(self, editor: QWidget, model: QAbstractItemModel, index: AnyIndex) -> None:
        """Qt override."""
        model.setData(index, cast(QLineEdit, editor).text())

    def updateEditorGeometry(
        self, editor: QWidget, option: QStyleOptionViewItem, index: AnyIndex
    ) -> None:
        """Qt override."""
        editor.setGeometry(self._painter.row_rect(option.rect))


class ChatList(QListView):
    """Chats grouped by day, or found ones.

    Attributes:
        rows: The model.

    Signals:
        chat_chosen: A chat is to be opened: its row.
        clear_requested: What models have read of a chat is to be forgotten: its id.
        delete_requested: A chat is to be deleted: its id.
    """

    chat_chosen = Signal(object)
    clear_requested = Signal(str)
    delete_requested = Signal(str)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._open_id: str | None = None
        self._replying_ids: frozenset[str] = frozenset()
        self._has_keyboard_focus = False
        self._late_rows: list[Row] | None = None
        self._is_pressed = False
        self._since_move = QElapsedTimer()
        self._painter = ChatRowPainter(theme)
        self.rows = ChatListModel(self)
        self.setModel(self.rows)
        self._delegate = _RowDelegate(self._painter, self)
        self.setItemDelegate(self._delegate)
        self.setAccessibleName("Chats")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionMode(QAbstractItemView.SelectionMode.NoSelection)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setMouseTracking(True)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_Hover)
        self.viewport().setAutoFillBackground(False)
        theme.changed.connect(self.scheduleDelayedItemsLayout)

    def set_rows(self, rows: list[Row]) -> None:
        """Show these rows; the current one is kept where it is still there.

        While a title is typed they wait: the field would go with its row, and the focus with it. They
        wait while the mouse is pressed too: the row that is let go is the one that was pressed.
        """
        if self._is_pressed or self.state() == QAbstractItemView.State.EditingState:
            self._late_rows = rows
            return
        self._late_rows = None
        current = self.rows.row(self.currentIndex())
        self.rows.set_rows(rows)
        if isinstance(current, ChatRow):
            self.setCurrentIndex(self.rows.index_of(current.id))

    @property
    def is_aimed_at(self) -> bool:
        """Whether the pointer moves over the rows, or has just come to rest: none should move away."""
        is_recent = self._since_move.isValid() and not self._since_move.hasExpired(AIM_MS)
        return self._is_pressed or (self.viewport().underMouse() and is_recent)

    def set_open(self, chat_id: str | None) -> None:
        """Mark the chat that the window shows; when it changes, its row becomes the current one."""
        if chat_id != self._open_id or not self.currentIndex().isValid():
            self.setCurrentIndex(self.rows.index_of(chat_id))
        self._open_id = chat_id
        self.viewport().update()

    def set_replying(self, chat_ids: frozenset[str]) -> None:
        """Mark the chats in which replies are being written."""
        if chat_ids != self._replying_ids:
            self._replying_ids = chat_ids
            self.viewport().update()

    def rename(self, chat_id: str | None) -> bool:
        """Let the person type a new title into the row; False if the chat is not listed."""
        index = self.rows.index_of(chat_id)
        if index.isValid():
            self.setCurrentIndex(index)
            self.edit(index)
        return index.isValid()

    def row_state(self, index: AnyIndex) -> frozenset[str]:
        """How the row at `index` is to look: some of open, hovered, focused, replying."""
        row = self.rows.row(index)
        if not isinstance(row, ChatRow):
            return frozenset()
        place = self.viewport().mapFromGlobal(self.cursor().pos())
        is_hovered = self.viewport().underMouse() and self.indexAt(place) == index
        has_ring = self._has_keyboard_focus and self.hasFocus()
        is_focused = has_ring and self.currentIndex() == index
        marks = {
            "open": row.id == self._open_id,
            "replying": row.id in self._replying_ids,
            "hovered": is_hovered,
            "focused": is_focused,
        }
        return frozenset(name for name, is_set in marks.items() if is_set)

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Qt override."""
        self._has_keyboard_focus = event.reason() != Qt.FocusReason.MouseFocusReason
        if not self.currentIndex().isValid():
            self._go_to_first_chat()
        super().focusInEvent(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        """Qt override."""
        self._has_keyboard_focus = False
        self._end_press()  # another window may have taken the mouse
        super().focusOutEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Qt override: Enter opens, F2 renames, Delete deletes; arrows move."""
        if self.state() == QAbstractItemView.State.EditingState:
            return  # the field passes on what it has no other use for, Enter too
        row = self.rows.row(self.currentIndex())
        self._has_keyboard_focus = True
        if isinstance(row, ChatRow):
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
                self.chat_chosen.emit(row)
                return
            if event.key() == Qt.Key.Key_F2:
                self.edit(self.currentIndex())
                return
            if event.key() == Qt.Key.Key_Delete:
                self.delete_requested.emit(row.id)
                return
        super().keyPressEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Qt override."""
        self._has_keyboard_focus = False
        self._is_pressed = event.button() == Qt.MouseButton.LeftButton
        super().mousePressEvent(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Qt override."""
        super().mouseMoveEvent(event)
        self._since_move.start()
        if not event.buttons():  # it was let go where this list did not hear of it
            self._end_press()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """Qt override: a click opens the chat, on the dots its menu."""
        super().mouseReleaseEvent(event)
        self._act_on_click(event)
        self._end_press()

    def _act_on_click(self, event: QMouseEvent) -> None:
        index = self.indexAt(event.position().toPoint())
        row = self.rows.row(index)
        if event.button() != Qt.MouseButton.LeftButton or not isinstance(row, ChatRow):
            return
        button = self._painter.menu_rect(self.visualRect(index))
        if button.contains(event.position().toPoint()):
            self._open_menu(index, self.viewport().mapToGlobal(button.bottomLeft()))
        else:
            self.chat_chosen.emit(row)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Qt override."""
        index = self.indexAt(event.pos())
        place = event.globalPos()
        if event.reason() == QContextMenuEvent.Reason.Keyboard:
            index = self.currentIndex()
            place = self.viewport().mapToGlobal(self.visualRect(index).bottomLeft())
        if isinstance(self.rows.row(index), ChatRow):
            self._open_menu(index, place)

    def closeEditor(self, editor: QWidget, hint: QAbstractItemDelegate.EndEditHint) -> None:
        """Qt override: the title is typed, so rows that wait can be shown."""
        super().closeEditor(editor, hint)
        self._show_late_rows()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override: rows end nearer to the edge where a scroll bar stands beside them."""
        has_bar = self.verticalScrollBar().isVisible()
        self._painter.right_inset = _INSET_BESIDE_BAR if has_bar else _INSET
        super().paintEvent(event)

    def viewportEvent(self, event: QEvent) -> bool:
        """Qt override: the hovered row changes with the pointer."""
        if event.type() in (QEvent.Type.HoverMove, QEvent.Type.HoverEnter, QEvent.Type.HoverLeave):
            self.viewport().update()
        return super().viewportEvent(event)

    def _end_press(self) -> None:
        self._is_pressed = False
        self._show_late_rows()

    def _show_late_rows(self) -> None:
        rows, self._late_rows = self._late_rows, None
        if rows is not None:
            self.set_rows(rows)

    def _open_menu(self, index: QModelIndex, place: QPoint) -> None:
        row = self.rows.row(index)
        if not isinstance(row, ChatRow):
            return
        menu = Menu(self._theme, "Chat", self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        chat_id = row.id
        menu.add("Rename", lambda: self.rename(chat_id), icon_name="pencil", shortcut="F2")
        menu.add(
            "Clear cached memory of this chat",
            lambda: self.clear_requested.emit(chat_id),
            icon_name="eraser",
        )
        menu.addSeparator()
        menu.add(
            "Delete chat",
            lambda: self.delete_requested.emit(chat_id),
            icon_name="trash-2",
            shortcut="Del",
            is_danger=True,
        )
        menu.open_at(place)

    def _go_to_first_chat(self) -> None:
        for number in range(self.rows.rowCount()):
            if isinstance(self.rows.row(self.rows.index(number)), ChatRow):
                self.setCurrentIndex(self.rows.index(number))
                return
