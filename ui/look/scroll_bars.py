"""Scroll bars: a handle on nothing, without arrows. GUI thread."""

from PySide6.QtCore import QRect, QRectF, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QStyle, QStyleOptionSlider

from ui.look.painting import paint_rounded
from ui.look.tokens import Palette

BAR_WIDTH = 10
LEAST_HANDLE = 36
_MARGIN = 2
_RADIUS = 3

_Part = QStyle.SubControl


def bar_part(option: QStyleOptionSlider, part: _Part) -> QRect:
    """Where the handle is, what lies before and behind it, and all of these; there is nothing else."""
    is_flat = option.orientation == Qt.Orientation.Horizontal
    whole = QRect(option.rect)
    room = whole.width() if is_flat else whole.height()
    length = _handle_length(option, room)
    begin = QStyle.sliderPositionFromValue(
        option.minimum, option.maximum, option.sliderPosition, room - length, option.upsideDown
    )
    places = {
        _Part.SC_ScrollBarGroove: (0, room),
        _Part.SC_ScrollBarSlider: (begin, length),
        _Part.SC_ScrollBarSubPage: (0, begin),
        _Part.SC_ScrollBarAddPage: (begin + length, room - begin - length),
    }
    if part not in places:
        return QRect()
    start, size = places[part]
    if is_flat:
        rect = QRect(whole.left() + start, whole.top(), size, whole.height())
        return QStyle.visualRect(option.direction, whole, rect)
    return QRect(whole.left(), whole.top() + start, whole.width(), size)


def _handle_length(option: QStyleOptionSlider, room: int) -> int:
    """As much of the bar as is in sight of the whole, but enough to take hold of."""
    num_hidden = option.maximum - option.minimum
    if num_hidden <= 0:
        return room
    return min(room, max(LEAST_HANDLE, option.pageStep * room // (num_hidden + option.pageStep)))


def paint_bar(painter: QPainter, option: QStyleOptionSlider, palette: Palette) -> None:
    """Paint the handle, darker under the pointer."""
    is_touched = bool(option.activeSubControls & _Part.SC_ScrollBarSlider) and bool(
        option.state & (QStyle.StateFlag.State_MouseOver | QStyle.StateFlag.State_Sunken)
    )
    rest = palette.control if palette.is_contrast else palette.border_2
    handle = bar_part(option, _Part.SC_ScrollBarSlider)
    inside = QRectF(handle).adjusted(_MARGIN, _MARGIN, -_MARGIN, -_MARGIN)
    paint_rounded(painter, inside, _RADIUS, fill=palette.control if is_touched else rest)
