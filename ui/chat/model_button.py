"""The button that names the model and its state, and opens the menu of models. GUI thread."""

from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.controls.buttons import HoverButton
from ui.look.icons import paint_icon
from ui.look.painting import paint_dot, paint_rounded
from ui.look.theme import Theme

_HEIGHT = 32
_RADIUS = 8
_CHEVRON = 14
_MAX_TEXT_WIDTH = 220

ModelMark = Literal["ready", "loading", "failed", "none"]
_MARK_ROLES: dict[ModelMark, str] = {
    "ready": "success",
    "loading": "ring",
    "failed": "danger",
    "none": "text_3",
}


@dataclass(frozen=True, slots=True)
class ModelLabel:
    """What the button says: `text`, with a dot for `mark`; `tip` has the rest."""

    mark: ModelMark
    text: str
    tip: str = ""

    @property
    def color_role(self) -> str:
        """The dot's colour, a field of `Palette`; the words say the same."""
        return _MARK_ROLES[self.mark]


class ModelButton(HoverButton):
    """Dot, name, chevron, in an outline."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, parent)
        self._label = ModelLabel("none", "No model")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.show_label(self._label)

    def show_label(self, label: ModelLabel) -> None:
        """Say this."""
        self._label = label
        self.setText(label.text)
        self.setAccessibleName(f"Model: {label.text}")
        self.setToolTip(label.tip or label.text)
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        """Qt override."""
        metrics = QFontMetrics(self.theme.font("button"))
        width = min(metrics.horizontalAdvance(self._label.text), self.theme.px(_MAX_TEXT_WIDTH))
        return QSize(27 + width + 6 + self.theme.px(_CHEVRON) + 10, self.theme.px(_HEIGHT))

    def minimumSizeHint(self) -> QSize:
        """Qt override."""
        return QSize(80, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self.theme.palette
        rect = QRectF(self.rect())
        paint_rounded(painter, rect, _RADIUS, fill=palette.surface, outline=palette.border_2)
        veil = self.veil()
        if veil is not None:
            paint_rounded(painter, rect, _RADIUS, fill=veil)
        middle = self.height() / 2
        color = getattr(palette, self._label.color_role)
        paint_dot(painter, QPointF(15.5, middle), 7, color)
        font = self.theme.font("button")
        painter.setFont(font)
        painter.setPen(QColor(palette.text))
        edge = self.theme.px(_CHEVRON)
        area = QRectF(27, 0, self.width() - 27 - 6 - edge - 10, self.height())
        text = QFontMetrics(font).elidedText(
            self._label.text, Qt.TextElideMode.ElideRight, int(area.width()) + 1
        )
        painter.drawText(area, Qt.AlignmentFlag.AlignVCenter, text)
        chevron = QRectF(self.width() - 10 - edge, middle - edge / 2, edge, edge)
        paint_icon(painter, "chevron-down", palette.text_2, chevron)
