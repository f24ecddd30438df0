"""How one row of the chat list looks. GUI thread."""

from PySide6.QtCore import QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter

from ui.look.icons import paint_icon
from ui.look.painting import paint_dot, paint_rounded
from ui.look.theme import Theme
from ui.sidebar.chat_rows import ChatRow, HeadingRow, Row

_INSET = 10
_TEXT_INSET = 12
_ROW_HEIGHT = 34
_FOUND_ROW_HEIGHT = 52
_HEADING_HEIGHT = 26
_HEADING_GAP = 10
_RADIUS = 8
_MENU_EDGE = 28
_DOTS = 16


class ChatRowPainter:
    """Paints rows; knows their heights and where the menu's dots are.

    Attributes:
        theme: Colours and fonts.
        right_inset: Space right of a row; less where a scroll bar stands beside it.
    """

    def __init__(self, theme: Theme) -> None:
        self.theme = theme
        self.right_inset = _INSET

    def height(self, row: Row, *, is_first: bool) -> int:
        """Height of the row in the list, gap above a heading included."""
        if isinstance(row, HeadingRow):
            gap = 0 if is_first else _HEADING_GAP
            return self.theme.px(_HEADING_HEIGHT) + gap
        return self.theme.px(_FOUND_ROW_HEIGHT if row.snippet else _ROW_HEIGHT)

    def row_rect(self, rect: QRect) -> QRect:
        """The rounded part of a row."""
        return rect.adjusted(_INSET, 0, -self.right_inset, 0)

    def menu_rect(self, rect: QRect) -> QRect:
        """Where the dots that open the row's menu are."""
        row = self.row_rect(rect)
        edge = self.theme.px(_MENU_EDGE)
        return QRect(row.right() - edge - 2, row.center().y() - edge // 2 + 1, edge, edge)

    def paint(self, painter: QPainter, rect: QRect, row: Row, state: frozenset[str]) -> None:
        """Paint a row.

        Args:
            painter: Active; left as it was.
            rect: The whole width of the list.
            row: What to show.
            state: Some of "open", "hovered", "focused", "replying".
        """
        painter.save()
        if isinstance(row, HeadingRow):
            self._paint_heading(painter, rect, row)
        else:
            self._paint_chat(painter, rect, row, state)
        painter.restore()

    def _paint_heading(self, painter: QPainter, rect: QRect, row: HeadingRow) -> None:
        painter.setFont(self.theme.font("group"))
        painter.setPen(QColor(self.theme.palette.text_3))
        height = self.theme.px(_HEADING_HEIGHT)
        place = QRect(
            rect.left() + _INSET + _TEXT_INSET,
            rect.bottom() + 1 - height,
            rect.width() - 2 * (_INSET + _TEXT_INSET),
            height,
        )
        painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, row.text)

    def _paint_chat(
        self, painter: QPainter, rect: QRect, row: ChatRow, state: frozenset[str]
    ) -> None:
        palette = self.theme.palette
        area = self.row_rect(rect)
        is_open = "open" in state
        if is_open:
            outline = palette.border if palette.is_contrast else None
            paint_rounded(painter, QRectF(area), _RADIUS, fill=palette.select, outline=outline)
        if "hovered" in state:
            paint_rounded(painter, QRectF(area), _RADIUS, fill=palette.hover)
        if "focused" in state:
            width = palette.focus_width
            paint_rounded(painter, QRectF(area), _RADIUS, outline=palette.ring, width=width)
        has_menu = "hovered" in state or "focused" in state
        right = self._paint_mark(painter, rect, state, has_menu=has_menu)
        left = area.left() + _TEXT_INSET
        self._paint_texts(
            painter, QRect(left, rect.top(), right - left, rect.height()), row, is_open=is_open
        )

    def _paint_mark(
        self, painter: QPainter, rect: QRect, state: frozenset[str], *, has_menu: bool
    ) -> int:
        """Paint the dots or the live dot; give where the text must end."""
        area = self.row_rect(rect)
        if has_menu:
            button = self.menu_rect(rect)
            edge = self.theme.px(_DOTS)
            middle = QRectF(button).center() - QPointF(0.5, 0.5)
            place = QRectF(middle.x() - edge / 2, middle.y() - edge / 2, edge, edge)
            paint_icon(painter, "ellipsis", self.theme.palette.text_2, place)
            return button.left() - 2
        if "replying" in state:
            middle = QPointF(area.right() - 14.5, area.center().y() + 0.5)
            paint_dot(painter, middle, 7, self.theme.palette.ring)
            return area.right() - 24
        return area.right() - _TEXT_INSET

    def _paint_texts(self, painter: QPainter, place: QRect, row: ChatRow, *, is_open: bool) -> None:
        palette = self.theme.palette
        title_place = place
        if row.snippet:
            half = place.height() // 2
            title_place = QRect(place.left(), place.top() + 5, place.width(), half - 4)
            below = QRect(place.left(), place.top() + half, place.width(), half - 5)
            role = palette.text_2
            self._paint_line(painter, below, row.snippet, style="small", color=role)
        style = "ui_strong" if is_open else "ui"
        self._paint_line(painter, title_place, row.title, style=style, color=palette.text)

    def _paint_line(
        self, painter: QPainter, place: QRect, text: str, *, style: str, color: str
    ) -> None:
        font = self.theme.font(style)
        painter.setFont(font)
        painter.setPen(QColor(color))
        shown = QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, place.width())
        painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, shown)
