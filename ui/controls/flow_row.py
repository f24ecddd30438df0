"""Controls side by side that go on in the next row where the width ends. GUI thread."""

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPoint, QRect, QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget


class FlowRow(QWidget):
    """As high as its rows at the width that it has.

    Args:
        gap: Between two controls.
        row_gap: Between two rows.
    """

    def __init__(self, *, gap: int = 8, row_gap: int = 8, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._gap = gap
        self._row_gap = row_gap
        self._controls: list[QWidget] = []
        # Not Fixed: a layout takes that for the height of one row.
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def set_controls(self, controls: Sequence[QWidget]) -> None:
        """Hold these in their order, in place of those before; who made them owns the old ones."""
        self._controls = list(controls)
        for control in controls:
            control.setParent(self)
            control.show()
        self.refresh()

    def refresh(self) -> None:
        """A control came, went, or has another size."""
        self.updateGeometry()
        self._place()

    def hasHeightForWidth(self) -> bool:
        """Qt override."""
        return True

    def heightForWidth(self, width: int) -> int:
        """Qt override."""
        return max((rect.bottom() + 1 for _, rect in self._rects(width)), default=0)

    def sizeHint(self) -> QSize:
        """Qt override: all in one row."""
        sizes = [_size(control) for control in self._shown()]
        width = sum(size.width() for size in sizes) + self._gap * max(0, len(sizes) - 1)
        return QSize(width, max((size.height() for size in sizes), default=0))

    def minimumSizeHint(self) -> QSize:
        """Qt override: the widest one alone."""
        hint = self.sizeHint()
        widths = (control.minimumSizeHint().width() for control in self._shown())
        return QSize(max((0, *widths)), hint.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        self._place()
        super().resizeEvent(event)

    def event(self, event: QEvent) -> bool:
        """Qt override: text sizes change the controls inside."""
        if event.type() == QEvent.Type.LayoutRequest:
            self.refresh()
        return super().event(event)

    def _shown(self) -> list[QWidget]:
        return [control for control in self._controls if not control.isHidden()]

    def _place(self) -> None:
        for control, rect in self._rects(self.width()):
            control.setGeometry(rect)

    def _rects(self, width: int) -> list[tuple[QWidget, QRect]]:
        """Where each control is at this width; those of one row stand on one middle line."""
        found: list[tuple[QWidget, QRect]] = []
        row: list[tuple[QWidget, QRect]] = []
        left = top = 0
        for control in self._shown():
            size = _size(control)
            if row and left + size.width() > width:
                top += _centre(row) + self._row_gap
                found += row
                row, left = [], 0
            size.setWidth(min(size.width(), width))
            row.append((control, QRect(QPoint(left, top), size)))
            left += size.width() + self._gap
        _centre(row)
        return found + row


def _size(control: QWidget) -> QSize:
    """What the control wants, within what it may have."""
    return control.sizeHint().expandedTo(control.minimumSize()).boundedTo(control.maximumSize())


def _centre(row: list[tuple[QWidget, QRect]]) -> int:
    """Move the rectangles to the middle of their row; gives the height of the row."""
    height = max((rect.height() for _, rect in row), default=0)
    for _, rect in row:
        rect.translate(0, (height - rect.height()) // 2)
    return height
