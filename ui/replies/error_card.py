"""A reply that failed: what happened, what is kept, and what one can do. GUI thread."""

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSize, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.failure_kind import FailureKind
from ui.controls.buttons import Button
from ui.look.icons import paint_icon
from ui.look.painting import paint_rounded
from ui.look.theme import Theme
from ui.markdown.blocks import Paragraph, Run
from ui.replies.reply_text import TextBlock, TextLook

RADIUS = 12
_PADDING = 16
_ICON = 18
_TEXT_GAP = 14
_OUTLINE_OPACITY = 0.38
_FILL_OPACITY = 0.4
_MAX_TITLE_CHARS = 90
_TITLE = TextLook("ui_title", "ui_title")
_BODY = TextLook("label", "label", "text_2")


@dataclass(frozen=True, slots=True)
class CardAction:
    """One button of the card.

    Attributes:
        name: Sent when it is pressed: "try_again", "open_model", "plain_text", "new_chat",
            "details".
        label: Words on the button.
    """

    name: str
    label: str


TRY_AGAIN = CardAction("try_again", "Try again")
OPEN_MODEL = CardAction("open_model", "Open another model")
PLAIN_TEXT = CardAction("plain_text", "Continue as plain text")
NEW_CHAT = CardAction("new_chat", "Start a new chat")
DETAILS = CardAction("details", "Details")


def actions_for(kind: FailureKind | None) -> tuple[CardAction, ...]:
    """What solves a failure of this kind best comes first; Details is always last."""
    match kind:
        case "template":
            return (PLAIN_TEXT, OPEN_MODEL, DETAILS)
        case "context_full":
            # The same question would not fit again.
            return (NEW_CHAT, DETAILS)
        case "memory" | "model_file":
            return (OPEN_MODEL, TRY_AGAIN, DETAILS)
        case _:
            return (TRY_AGAIN, OPEN_MODEL, DETAILS)


def split_error(error: str) -> tuple[str, str]:
    """Title and the rest: the first sentence, unless it is long."""
    first, dot, rest = error.strip().partition(". ")
    if not dot or len(first) > _MAX_TITLE_CHARS:
        return ("The reply could not be finished", error.strip())
    return (first, rest.strip())


class ErrorCard(QWidget):
    """In the place of the reply, or below what came of it.

    Signals:
        action_requested: Name of the action whose button was pressed.
    """

    action_requested = Signal(str)

    def __init__(
        self, theme: Theme, error: str, actions: Sequence[CardAction], parent: QWidget
    ) -> None:
        super().__init__(parent)
        self._theme = theme
        title, body = split_error(error)
        self._title = TextBlock(Paragraph((Run(title),)), theme, self, look=_TITLE)
        self._body = TextBlock(Paragraph((Run(body),)), theme, self, look=_BODY)
        self._buttons: list[Button] = []
        for index, action in enumerate(actions):
            kind = "secondary" if index == 0 else "quiet"
            button = Button(theme, action.label, kind, parent=self)  # type: ignore[arg-type]  # a literal
            button.clicked.connect(
                lambda _=False, name=action.name: self.action_requested.emit(name)
            )
            self._buttons.append(button)
        self.setAccessibleName(f"{title}. {body}")

    def layout_to(self, width: int) -> int:
        """Place text and buttons; gives the height."""
        text_left = _PADDING + self._theme.px(_ICON) + _TEXT_GAP
        inner = width - text_left - _PADDING
        y = _PADDING - 2
        for block in (self._title, self._body):
            height = block.layout_to(inner)
            block.setGeometry(text_left, y, inner, height)
            y += height + 2
        y += 14
        x = text_left
        for button in self._buttons:
            size: QSize = button.sizeHint()
            if x > text_left and x + size.width() > width - _PADDING:
                x = text_left
                y += size.height() + 8
            button.setGeometry(x, y, size.width(), size.height())
            x += size.width() + 8
        return y + (self._buttons[-1].height() if self._buttons else 0) + _PADDING

    def restyle(self) -> None:
        """Colours or sizes are new."""
        self._title.restyle()
        self._body.restyle()
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        colors = self._theme.palette
        outline = QColor(colors.danger)
        fill = QColor(colors.danger_soft)
        if not colors.is_contrast:
            outline.setAlphaF(_OUTLINE_OPACITY)
            fill.setAlphaF(_FILL_OPACITY)
        paint_rounded(painter, QRectF(self.rect()), RADIUS, fill=fill, outline=outline)
        line = self._theme.line_height("ui_title")
        edge = self._theme.px(_ICON)
        top = self._title.y() + (line - edge) / 2
        paint_icon(painter, "circle-alert", colors.danger, QRectF(_PADDING, top, edge, edge))
