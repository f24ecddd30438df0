"""The composer: where a message is written, sent, and a reply stopped. GUI thread."""

from typing import Literal

from PySide6.QtCore import QMargins, QRect, QRectF, Qt, Signal
from PySide6.QtGui import QMouseEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QWidget

from app.texts import is_blank
from ui.chat.composer_input import ComposerInput
from ui.controls.buttons import ICON_BUTTON_SIZE, HoverButton, centred
from ui.look.icons import paint_icon
from ui.look.painting import paint_rounded, paint_shadow, shadow_margins
from ui.look.theme import Theme

SHADOW_LEVEL = 2
RADIUS = 16
_PADDING = 14
_PADDING_LEFT = 20
_BUTTON_INSET = 10

_Mode = Literal["send", "stop"]


class SendButton(HoverButton):
    """Sends; while a reply is written, stops it."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(theme, parent)
        self._mode: _Mode = "send"
        self._fit()
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.set_mode("send", can_act=False)

    def _fit(self) -> None:
        edge = self.theme.px(ICON_BUTTON_SIZE)
        self.setFixedSize(edge, edge)

    def _theme_changed(self) -> None:
        self._fit()
        super()._theme_changed()

    @property
    def mode(self) -> _Mode:
        """What a click does."""
        return self._mode

    def set_mode(self, mode: _Mode, *, can_act: bool, reason: str = "") -> None:
        """Take this action; `can_act` is whether it can be done, `reason` why it cannot."""
        self._mode = mode
        self.setEnabled(can_act)
        if mode == "stop":
            self.name_it("Stop", "Esc")
        elif can_act:
            self.name_it("Send", "Enter")
        else:
            self.setAccessibleName("Send")
            self.setToolTip(reason or "Write a message first")
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self.theme.palette
        rect = QRectF(self.rect())
        if self._mode == "stop":
            paint_rounded(painter, rect, 10, fill=palette.text)
            paint_rounded(painter, centred(self.rect(), self.theme.px(10)), 2, fill=palette.surface)
            return
        fill, color = palette.accent, palette.on_accent
        if not self.isEnabled():
            fill, color = palette.track, palette.disabled
        elif self.isDown():
            fill = palette.accent_pressed
        elif self.underMouse():
            fill = palette.accent_hover
        paint_rounded(painter, rect, 10, fill=fill)
        paint_icon(painter, "arrow-up", color, centred(self.rect(), self.theme.px(18)))


class Composer(QWidget):
    """A raised surface with the text and one button. Its margins hold the shadow.

    Signals:
        sent: The text to send; the receiver empties the composer.
        stop_requested: The reply is to end.
        edit_last_requested: Up in the empty composer.
        height_changed: `wanted_height` differs.
        refused: A text of so many characters was pasted, which is too long.
        text_changed: Something else is written.
    """

    sent = Signal(str)
    stop_requested = Signal()
    edit_last_requested = Signal()
    height_changed = Signal()
    refused = Signal(int)
    text_changed = Signal()

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._is_replying = False
        self._block = ""
        self._holds_until_changed = self._is_block_old = False
        self.input = ComposerInput(theme, self)
        self.button = SendButton(theme, self)
        self.input.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setFocusProxy(self.input)
        self.setCursor(Qt.CursorShape.IBeamCursor)
        self.button.setCursor(Qt.CursorShape.ArrowCursor)
        self.input.submitted.connect(self.submit)
        self.input.escaped.connect(self._escape)
        self.input.last_message_wanted.connect(self.edit_last_requested)
        self.input.height_changed.connect(self.height_changed)
        self.input.refused.connect(self.refused)
        self.input.textChanged.connect(self._change)
        self.input.textChanged.connect(self.text_changed)
        self.button.clicked.connect(self._act)
        theme.changed.connect(self.update)
        self.set_hint("Write a message")

    @property
    def text(self) -> str:
        """What is written."""
        return self.input.text()

    def set_text(self, text: str) -> None:
        """Write this instead."""
        self.input.set_text(text)

    def set_hint(self, hint: str) -> None:
        """Show this while nothing is written."""
        self.input.set_hint(hint)

    def set_replying(self, is_replying: bool) -> None:
        """Whether a reply is written now, which the button and Escape can stop."""
        self._is_replying = is_replying
        self._show_button()

    def set_block(self, reason: str, *, until_changed: bool = False) -> None:
        """Send nothing, for this reason; "" lets it send again.

        Args:
            reason: For people.
            until_changed: It holds for what is written now; anything else may be tried.
        """
        self._block = reason
        self._holds_until_changed = until_changed
        self._is_block_old = False
        self._show_button()

    def margins(self) -> QMargins:
        """How far the shadow reaches beyond the surface."""
        return shadow_margins(SHADOW_LEVEL)

    def wanted_height(self) -> int:
        """Height of the surface, without the shadow."""
        line = self._theme.line_height("body")
        return self.least_height() + self.input.wanted_height() - line - 2

    def least_height(self) -> int:
        """Height of the surface around one line."""
        return self._theme.line_height("body") + 2 * _PADDING

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        surface = self._surface()
        height = self.input.wanted_height()
        top = surface.top() + _PADDING - 2
        edge = self._theme.px(ICON_BUTTON_SIZE)  # the button may not have heard of a new size yet
        inset = (self.least_height() - edge) // 2
        right = surface.right() + 1 - _BUTTON_INSET - edge
        left = surface.left() + _PADDING_LEFT
        self.input.setGeometry(left, top, right - 10 - left, height)
        bottom = surface.bottom() + 1 - inset - edge
        self.button.move(right, bottom)
        super().resizeEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self._theme.palette
        surface = self._surface()
        paint_shadow(painter, surface, RADIUS, SHADOW_LEVEL, palette)
        paint_rounded(
            painter, QRectF(surface), RADIUS, fill=palette.raised, outline=palette.border_2
        )

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Qt override: the whole surface takes the caret."""
        if self._surface().contains(event.position().toPoint()):
            self.input.setFocus(Qt.FocusReason.MouseFocusReason)

    def _surface(self) -> QRect:
        return self.rect().marginsRemoved(self.margins())

    def submit(self) -> None:
        """Send what is written, if there is anything and nothing keeps it from being sent."""
        if not is_blank(self.text) and (not self._block or self._is_block_old):
            self.sent.emit(self.text)

    def _escape(self) -> None:
        if self._is_replying:
            self.stop_requested.emit()

    def _change(self) -> None:
        self._is_block_old = self._holds_until_changed
        self._show_button()

    def _act(self) -> None:
        if self.button.mode == "stop":
            self.stop_requested.emit()
        else:
            self.submit()

    def _show_button(self) -> None:
        if self._is_replying:
            self.button.set_mode("stop", can_act=True)
        else:
            can_send = not is_blank(self.text) and not self._block
            self.button.set_mode("send", can_act=can_send, reason=self._block)
