"""One of several choices, told in two lines: a radio button, its name, a value, a sentence. GUI thread."""

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QFontMetrics,
    QKeyEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QRadioButton, QSizePolicy, QWidget

from ui.look.painting import paint_dot
from ui.look.theme import Theme

_RING = 18
_LEFT = 30
_PADDING = 6
_VALUE_GAP = 16
_FOCUS_RADIUS = 6
_MAX_KNOWN_WIDTHS = 8
_STEPS = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1, Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1}


class ChoiceRow(QRadioButton):
    """Takes the whole width; of those with one parent, one is taken, and arrows move between them.

    Args:
        theme: Colours and fonts.
        name: What it is called.
        value: At the right of the name; may be empty.
        hint: Below them, wrapped; may be empty.
        parent: Shared by the choices.
    """

    def __init__(
        self, theme: Theme, name: str, *, value: str = "", hint: str = "", parent: QWidget
    ) -> None:
        super().__init__(parent)
        self._theme = theme
        self._value = value
        self._hint = hint
        self.setText(name)
        self.setAccessibleName(f"{name}, {value}" if value else name)
        self.setAccessibleDescription(hint)
        self.setProperty("focusRadius", _FOCUS_RADIUS)
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self._known_places: dict[int, tuple[QRect, QRect]] = {}  # by width: layouts ask often
        theme.changed.connect(self._theme_changed)

    @property
    def value(self) -> str:
        """What stands at the right of the name."""
        return self._value

    @property
    def hint(self) -> str:
        """The sentence."""
        return self._hint

    def sizeHint(self) -> QSize:
        """Qt override: name and value side by side; the sentence takes the width that it gets."""
        width = _LEFT + self._name_width() + 2
        if self._value:
            small = QFontMetrics(self._theme.font("small"))
            width += _VALUE_GAP + small.horizontalAdvance(self._value)
        return QSize(width, self.heightForWidth(max(self.width(), width)))

    def minimumSizeHint(self) -> QSize:
        """Qt override."""
        return QSize(120, self.heightForWidth(max(self.width(), 120)))

    def hasHeightForWidth(self) -> bool:
        """Qt override."""
        return True

    def heightForWidth(self, width: int) -> int:
        """Qt override."""
        value, hint = self._places(width)
        return max(value.bottom(), hint.bottom()) + 1 + _PADDING

    def hitButton(self, pos: object) -> bool:
        """Qt override: all of the row takes the click."""
        return True

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        self.updateGeometry()
        super().resizeEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Qt override: arrows take the next choice that can be taken, however the rows lie."""
        step = _STEPS.get(Qt.Key(event.key()))
        if step is None:
            super().keyPressEvent(event)
            return
        rows = [row for row in self._siblings() if row.isEnabled()]
        after = rows[(rows.index(self) + step) % len(rows)]
        after.setFocus(Qt.FocusReason.TabFocusReason)
        after.setChecked(True)

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Qt override: keep the reason, for the ring of `ui.look.focus_ring`."""
        self.setProperty("focusReason", event.reason())
        super().focusInEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self._theme.palette
        is_on = self.isEnabled()
        value, hint = self._places(self.width())
        line = self._theme.line_height("label")
        self._paint_ring(painter, QPointF(_RING / 2 + 1, _PADDING + line / 2))
        painter.setFont(self._theme.font("button"))
        painter.setPen(QColor(palette.text if is_on else palette.disabled))
        flags = Qt.AlignmentFlag.AlignVCenter
        painter.drawText(QRect(_LEFT, _PADDING, self.width() - _LEFT, line), flags, self.text())
        painter.setFont(self._theme.font("small"))
        painter.setPen(QColor(palette.text_2 if is_on else palette.disabled))
        is_below = value.top() > _PADDING
        side = Qt.AlignmentFlag.AlignLeft if is_below else Qt.AlignmentFlag.AlignRight
        painter.drawText(value, side | flags, self._value)
        # Also of a choice that is off: the sentence says why.
        painter.setPen(QColor(palette.text_2))
        painter.drawText(hint, int(Qt.TextFlag.TextWordWrap), self._hint)

    def _paint_ring(self, painter: QPainter, center: QPointF) -> None:
        palette = self._theme.palette
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        is_taken, is_on = self.isChecked(), self.isEnabled()
        outline = palette.accent if is_taken else palette.control
        painter.setPen(QPen(QColor(outline if is_on else palette.disabled), 1))
        fill = palette.accent if is_taken and is_on else palette.raised
        painter.setBrush(QColor(fill))
        painter.drawEllipse(center, _RING / 2 - 0.5, _RING / 2 - 0.5)
        painter.restore()
        if is_taken:
            paint_dot(painter, center, 8, palette.on_accent if is_on else palette.disabled)

    def _places(self, width: int) -> tuple[QRect, QRect]:
        """Where the value and the sentence stand; the value goes below the name if it must."""
        if width not in self._known_places:
            if len(self._known_places) >= _MAX_KNOWN_WIDTHS:
                self._known_places.clear()
            self._known_places[width] = self._found_places(width)
        return self._known_places[width]

    def _found_places(self, width: int) -> tuple[QRect, QRect]:
        line = self._theme.line_height("label")
        small = QFontMetrics(self._theme.font("small"))
        room = width - _LEFT
        top = _PADDING
        is_below = self._name_width() + _VALUE_GAP + small.horizontalAdvance(self._value) > room
        if self._value and is_below:
            top += line
        value = QRect(_LEFT, top, room, line)
        if not self._hint:
            return value, QRect(_LEFT, top, 0, 0)
        box = QRectF(0, 0, room, 10_000).toRect()
        needed = small.boundingRect(box, int(Qt.TextFlag.TextWordWrap), self._hint)
        return value, QRect(_LEFT, top + line, room, needed.height())

    def _theme_changed(self) -> None:
        self._known_places.clear()
        self.updateGeometry()
        self.update()

    def _siblings(self) -> list["ChoiceRow"]:
        options = Qt.FindChildOption.FindDirectChildrenOnly
        parent = self.parentWidget()
        return parent.findChildren(ChoiceRow, options=options) if parent is not None else [self]

    def _name_width(self) -> int:
        return QFontMetrics(self._theme.font("button")).horizontalAdvance(self.text())
