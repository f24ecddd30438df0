"""The text part of the composer: plain text, Enter sends, grows with its lines. GUI thread."""

from PySide6.QtCore import QMimeData, QPointF, QRect, Qt, QTimer, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QInputMethodEvent,
    QKeyEvent,
    QPainter,
    QPaintEvent,
    QTextBlockFormat,
    QTextCursor,
    QTextOption,
)
from PySide6.QtWidgets import QFrame, QTextEdit, QWidget

from ui.controls.text_bounds import MAX_CHARS, has_long_word
from ui.look.theme import Theme

MAX_LINES = 8
# A line of fixed height has its baseline at 80 %, so the text sits a little low: less space above.
_RAISE = 2
_BASELINE = 0.8
_HALF_CAPITAL = 0.364  # of the font's size, in Inter
_BLINK_MS = 530
_CARET_WIDTH = 2
_CARET_HEIGHT = 18


class ComposerInput(QTextEdit):
    """A text field of one to eight lines, then it scrolls.

    Signals:
        submitted: Enter, outside a composition of an input method.
        escaped: Escape.
        last_message_wanted: Up in the empty field.
        height_changed: The number of lines differs.
        refused: A text of so many characters was pasted, which is too long.
    """

    submitted = Signal()
    escaped = Signal()
    last_message_wanted = Signal()
    height_changed = Signal()
    refused = Signal(int)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._hint = ""
        self._is_composing = False
        self._last_height = 0
        self.setAcceptRichText(False)
        self.setTabChangesFocus(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName("Message")
        self.document().setDocumentMargin(0)
        self.viewport().setAutoFillBackground(False)
        self.setCursorWidth(0)  # the caret is painted here, in the colour of the theme
        self._is_caret_on = True
        self._blink = QTimer(self)
        self._blink.setInterval(_BLINK_MS)
        self._blink.timeout.connect(self._toggle_caret)
        self.cursorPositionChanged.connect(self._restart_blink)
        self.textChanged.connect(self._restart_blink)
        layout = self.document().documentLayout()
        layout.documentSizeChanged.connect(self._size_changed)
        theme.changed.connect(self._apply)
        self._apply()

    def text(self) -> str:
        """What is written."""
        return self.toPlainText()

    def set_text(self, text: str) -> None:
        """Write this instead, the caret at its end."""
        self._choose_wrapping(text)
        self.setPlainText(text)
        self._set_line_height()
        self.moveCursor(QTextCursor.MoveOperation.End)

    def set_hint(self, hint: str) -> None:
        """What is shown while nothing is written."""
        self._hint = hint
        self.setAccessibleDescription(hint)
        self.viewport().update()

    def wanted_height(self) -> int:
        """Height of the lines there are, one to eight, in logical pixels."""
        line = self._theme.line_height("body")
        document = self.document().size().height()
        lines = max(1, round(document / line))
        return min(lines, MAX_LINES) * line + _RAISE

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Qt override."""
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and not self._is_composing:
            if event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
                self.textCursor().insertBlock()
                self.ensureCursorVisible()
            else:
                self.submitted.emit()
            return
        if event.key() == Qt.Key.Key_Escape and not self._is_composing:
            self.escaped.emit()
            return
        if event.key() == Qt.Key.Key_Up and not self.text() and not self._is_composing:
            self.last_message_wanted.emit()
            return
        super().keyPressEvent(event)

    def inputMethodEvent(self, event: QInputMethodEvent) -> None:
        """Qt override: while a composition goes on, its keys are its own."""
        self._is_composing = bool(event.preeditString())
        super().inputMethodEvent(event)
        self.viewport().update()

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Qt override."""
        super().focusInEvent(event)
        self._restart_blink()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        """Qt override."""
        self._is_composing = False
        self._blink.stop()
        super().focusOutEvent(event)

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        """Qt override."""
        return source.hasText()

    def insertFromMimeData(self, source: QMimeData) -> None:
        """Qt override: only the plain text of what is pasted or dropped, if it is not too long."""
        text = source.text()
        cursor = self.textCursor()
        kept = self.document().characterCount() - 1 - len(cursor.selectedText())
        if kept + len(text) > MAX_CHARS:
            self.refused.emit(len(text))
            return
        self._choose_wrapping(text)
        cursor.insertText(text)
        self.ensureCursorVisible()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        if self.document().isEmpty() and not self._is_composing:
            painter = QPainter(self.viewport())
            painter.setFont(self._theme.font("body"))
            painter.setPen(QColor(self._theme.palette.text_3))
            baseline = self._theme.line_height("body") * _BASELINE
            painter.drawText(QPointF(_CARET_WIDTH, baseline), self._hint)  # beside the caret
            painter.end()
        super().paintEvent(event)
        if self.hasFocus() and self._is_caret_on and not self._is_composing:
            painter = QPainter(self.viewport())
            painter.fillRect(self._caret_rect(), self._theme.color("ring"))

    def _caret_rect(self) -> QRect:
        """Where the caret is painted: a bar around the middle of the capitals of its line."""
        cursor = self.textCursor()
        layout = cursor.block().layout()
        line = layout.lineForTextPosition(cursor.positionInBlock())
        baseline = _BASELINE * self._theme.line_height("body")
        if line.isValid():
            baseline = layout.position().y() + line.y() + line.ascent()
        middle = baseline - _HALF_CAPITAL * self.font().pixelSize()
        height = self._theme.px(_CARET_HEIGHT)
        top = round(middle - height / 2) - self.verticalScrollBar().value()
        return QRect(self.cursorRect().left(), top, _CARET_WIDTH, height)

    def _toggle_caret(self) -> None:
        self._is_caret_on = not self._is_caret_on
        self.viewport().update(self._caret_rect())

    def _restart_blink(self) -> None:
        self._is_caret_on = True
        if self.hasFocus() and not self._theme.reduce_motion:
            self._blink.start()
        self.viewport().update()

    def _size_changed(self) -> None:
        height = self.wanted_height()
        is_full = height >= MAX_LINES * self._theme.line_height("body") + _RAISE
        policy = Qt.ScrollBarPolicy
        self.setVerticalScrollBarPolicy(
            policy.ScrollBarAsNeeded if is_full else policy.ScrollBarAlwaysOff
        )
        if height != self._last_height:
            self._last_height = height
            self.height_changed.emit()

    def _choose_wrapping(self, text: str) -> None:
        """Break lines between words, unless a word of `text` is too long for that."""
        mode = QTextOption.WrapMode
        if has_long_word(text):
            self.setWordWrapMode(mode.WrapAnywhere)
        elif not text or self.document().isEmpty():
            self.setWordWrapMode(mode.WrapAtWordBoundaryOrAnywhere)

    def _set_line_height(self) -> None:
        """Give all lines the height of the style; new lines take it from the one before."""
        cursor = QTextCursor(self.document())
        cursor.select(QTextCursor.SelectionType.Document)
        block_format = QTextBlockFormat()
        fixed = QTextBlockFormat.LineHeightTypes.FixedHeight.value
        block_format.setLineHeight(self._theme.line_height("body"), fixed)
        cursor.mergeBlockFormat(block_format)
        self.document().clearUndoRedoStacks()

    def _apply(self) -> None:
        self.viewport().update()
        font = self._theme.font("body")
        if font == self.document().defaultFont() and self._last_height:
            return  # other colours alone: a long text is not laid out again, and can be undone
        self.setFont(font)
        self.document().setDefaultFont(font)
        self._set_line_height()
        self._last_height = 0
        self._size_changed()
