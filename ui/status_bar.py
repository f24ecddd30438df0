"""The line at the foot of the window: model, context, speed, memory, private. GUI thread."""

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QWidget

from ui.chat.model_button import ModelLabel
from ui.controls.buttons import HoverButton
from ui.controls.numbers import count
from ui.look.icons import paint_icon
from ui.look.painting import paint_dot, paint_rounded
from ui.look.theme import Theme

STATUS_HEIGHT = 30
_SIDE = 20
_GAP = 24
_BAR_WIDTH = 48
_BAR_HEIGHT = 4
_SHIELD = 14
TIGHT_CONTEXT = 0.85


class StatusItem(QWidget):
    """A few words; a dot before them or a bar after them, if set. Hidden while it has no words."""

    def __init__(self, theme: Theme, name: str, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._name = name
        self._text = ""
        self._role = "text_2"
        self._dot_role: str | None = None
        self._fraction: float | None = None
        theme.changed.connect(self.update)

    @property
    def text(self) -> str:
        """The words."""
        return self._text

    @property
    def role(self) -> str:
        """The colour of the words, a field of `Palette`."""
        return self._role

    def show_text(
        self,
        text: str,
        *,
        role: str = "text_2",
        dot_role: str | None = None,
        fraction: float | None = None,
        tip: str = "",
    ) -> None:
        """Say this; colours are fields of `Palette`, `fraction` fills a bar."""
        self._text = text
        self._role = role
        self._dot_role = dot_role
        self._fraction = fraction
        self.setAccessibleName(f"{self._name}: {text}")
        self.setToolTip(tip)
        self.update()

    def sizeHint(self) -> QSize:
        """Qt override."""
        width = QFontMetrics(self._theme.font("small")).horizontalAdvance(self._text) + 2
        width += 15 if self._dot_role is not None else 0
        width += 8 + _BAR_WIDTH if self._fraction is not None else 0
        return QSize(width, STATUS_HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self._theme.palette
        middle = self.height() / 2
        left = 0
        if self._dot_role is not None:
            paint_dot(painter, QPointF(3.5, middle), 7, getattr(palette, self._dot_role))
            left = 15
        font = self._theme.font("small")
        painter.setFont(font)
        painter.setPen(QColor(getattr(palette, self._role)))
        area = self.rect().adjusted(left, 0, 0, 0)
        painter.drawText(area, Qt.AlignmentFlag.AlignVCenter, self._text)
        if self._fraction is None:
            return
        bar_left = self.width() - _BAR_WIDTH
        bar = QRectF(bar_left, middle - _BAR_HEIGHT / 2, _BAR_WIDTH, _BAR_HEIGHT)
        paint_rounded(painter, bar, _BAR_HEIGHT / 2, fill=palette.track)
        if self._fraction > 0:
            bar.setWidth(max(_BAR_HEIGHT, _BAR_WIDTH * min(self._fraction, 1.0)))
            fill = palette.warn if self._role == "warn" else palette.data.kv
            paint_rounded(painter, bar, _BAR_HEIGHT / 2, fill=fill)


class PrivateButton(HoverButton):
    """Shield and words that say who Quire is connected to: nobody."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(theme, parent)
        self.setText("Private: no connections")
        self.setAccessibleName(self.text())
        self.setToolTip("Nothing you write leaves this computer")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setProperty("focusRadius", 4)

    def sizeHint(self) -> QSize:
        """Qt override."""
        width = QFontMetrics(self.theme.font("small_strong")).horizontalAdvance(self.text())
        edge = self.theme.px(_SHIELD)
        return QSize(edge + 6 + width, max(22, edge + 8))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        color = self.theme.palette.success
        edge = self.theme.px(_SHIELD)
        place = QRectF(0, (self.height() - edge) / 2, edge, edge)
        paint_icon(painter, "shield-check", color, place)
        font = self.theme.font("small_strong")
        font.setUnderline(self.underMouse())
        painter.setFont(font)
        painter.setPen(QColor(color))
        area = self.rect().adjusted(edge + 6, 0, 0, 0)
        painter.drawText(area, Qt.AlignmentFlag.AlignVCenter, self.text())


class StatusBar(QWidget):
    """Items from the left, *private* at the right; what does not fit drops from the right.

    Attributes:
        model, context, speed, first_word, memory: The items, in their order.
        private_button: Always there.
    """

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self.setFixedHeight(STATUS_HEIGHT)
        self.setAccessibleName("Status")
        self.model = StatusItem(theme, "Model", self)
        self.context = StatusItem(theme, "Context", self)
        self.speed = StatusItem(theme, "Speed", self)
        self.first_word = StatusItem(theme, "First word", self)
        self.memory = StatusItem(theme, "Memory", self)
        self._items = (self.model, self.context, self.speed, self.first_word, self.memory)
        self.private_button = PrivateButton(theme, self)
        theme.changed.connect(self._place)

    def show_model(self, label: ModelLabel, quantization: str = "") -> None:
        """Name the model and its state."""
        text = f"{label.text} · {quantization}" if quantization else label.text
        self.model.show_text(text, role="text", dot_role=label.color_role, tip=label.tip)
        self._place()

    def show_context(self, used_tokens: int, context_tokens: int | None) -> None:
        """Say how much of the context the chat takes; nothing without a model."""
        if context_tokens is None:
            self.context.show_text("")
        else:
            fraction = used_tokens / context_tokens
            is_tight = fraction > TIGHT_CONTEXT
            self.context.show_text(
                f"Context {count(used_tokens)} / {count(context_tokens)}",
                role="warn" if is_tight else "text_2",
                fraction=fraction,
                tip="This chat is nearly full"
                if is_tight
                else "Tokens of this chat, and how many fit",
            )
        self._place()

    def show_speed(self, text: str) -> None:
        """Say how fast the reply is written; "" for not at all."""
        self.speed.show_text(text, tip="Tokens per second of the last reply")
        self._place()

    def show_first_word(self, text: str) -> None:
        """Say how long the first word took; "" if there was none."""
        self.first_word.show_text(text)
        self._place()

    def show_memory(self, text: str, tiers: str = "") -> None:
        """Say how much memory is used, and on hover what of it chats take."""
        tip = "Memory of Quire, and of this computer"
        self.memory.show_text(text, tip=f"{tip}\n{tiers}" if tiers else tip)
        self.memory.setAccessibleDescription(tiers)
        self._place()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        self._place()
        super().resizeEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        painter.fillRect(self.rect(), self._theme.color("sidebar"))
        painter.fillRect(0, 0, self.width(), 1, self._theme.color("border"))

    def _place(self) -> None:
        height = max(STATUS_HEIGHT, self._theme.px(STATUS_HEIGHT))
        if height != self.height():
            self.setFixedHeight(height)
        private = self.private_button.sizeHint()
        right = self.width() - _SIDE - private.width()
        top = (height - private.height()) // 2 + 1
        self.private_button.setGeometry(right, top, private.width(), private.height())
        left = _SIDE
        is_full = False
        for item in self._items:
            width = item.sizeHint().width()
            is_full = is_full or (bool(item.text) and left + width + _GAP > right)
            is_shown = bool(item.text) and not is_full
            item.setVisible(is_shown)
            if is_shown:
                item.setGeometry(left, 1, width, height - 1)
                left += width + _GAP
