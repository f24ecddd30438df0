"""Labels that follow the theme, wrap or end in an ellipsis. GUI thread."""

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFontMetrics,
    QPainter,
    QPaintEvent,
    QPalette,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from ui.look.theme import Theme


class Label(QLabel):
    """Plain text in one style and colour role; never rich text, so nothing in it is markup."""

    def __init__(
        self,
        theme: Theme,
        text: str = "",
        *,
        style: str = "ui",
        role: str = "text",
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(text, parent)
        self._theme = theme
        self._style = style
        self._role = role
        self.setTextFormat(Qt.TextFormat.PlainText)
        theme.changed.connect(self.restyle)
        self.restyle()

    def showEvent(self, event: QShowEvent) -> None:
        """Qt override: the first polish under a style sheet takes the palette back."""
        super().showEvent(event)
        self.restyle()

    def restyle(self) -> None:
        """Colours or sizes are new; for who lays it out before the theme has told it."""
        self.setFont(self._theme.font(self._style))
        self.setMinimumHeight(self._theme.line_height(self._style))
        palette = self.palette()
        palette.setColor(QPalette.ColorRole.WindowText, self._theme.color(self._role))
        self.setPalette(palette)


class ElidedLabel(QWidget):
    """One line of text that ends in an ellipsis when it does not fit; then its tooltip has it all."""

    def __init__(
        self,
        theme: Theme,
        *,
        style: str = "title",
        role: str = "text",
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._theme = theme
        self._style = style
        self._role = role
        self._text = ""
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        theme.changed.connect(self.updateGeometry)
        theme.changed.connect(self.update)

    @property
    def text(self) -> str:
        """The whole text."""
        return self._text

    def set_text(self, text: str) -> None:
        """Show this text, line breaks as spaces."""
        self._text = " ".join(text.split())
        self.setAccessibleName(self._text)
        self._set_tooltip()
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        """Qt override."""
        metrics = QFontMetrics(self._theme.font(self._style))
        width = metrics.horizontalAdvance(self._text) + 1
        return QSize(width, self._theme.line_height(self._style))

    def minimumSizeHint(self) -> QSize:
        """Qt override."""
        return QSize(24, self._theme.line_height(self._style))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        self._set_tooltip()
        super().resizeEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        font = self._theme.font(self._style)
        painter.setFont(font)
        painter.setPen(QColor(self._theme.color(self._role)))
        text = QFontMetrics(font).elidedText(self._text, Qt.TextElideMode.ElideRight, self.width())
        painter.drawText(self.rect(), Qt.AlignmentFlag.AlignVCenter, text)

    def _set_tooltip(self) -> None:
        is_cut = self.sizeHint().width() > self.width()
        self.setToolTip(self._text if is_cut else "")
