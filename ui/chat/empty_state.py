"""What a new chat shows: a greeting, four suggestions, one line about models. GUI thread."""

from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from ui.controls.buttons import Button, HoverButton, centred
from ui.controls.labels import Label
from ui.controls.mark import Mark
from ui.look.icons import paint_icon
from ui.look.painting import paint_rounded
from ui.look.theme import Theme

_MARK_SIZE = 38
_CARD_HEIGHT = 76
_CARD_RADIUS = 12
_MARGIN = 8
_GAPS = (20, 6, 36)  # below mark, headline, and the sentence; there whatever is left out
_LINE_GAP = 28
_CARD_GAP = 12
_TILE_SIZE = 36
_ICON = 18
_LEAST_INSET = 8


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One card, and what it writes into the composer."""

    icon_name: str
    title: str
    detail: str
    prompt: str


SUGGESTIONS = (
    Suggestion(
        "pencil-line",
        "Write a message",
        "A short, friendly reply to my landlord",
        "Write a short, friendly reply to my landlord, who asks when the heating can be checked.",
    ),
    Suggestion(
        "lightbulb",
        "Explain something",
        "Why the sky turns violet at dusk",
        "Explain in a few sentences why the sky turns violet at dusk.",
    ),
    Suggestion(
        "code-xml",
        "Help with code",
        "A script that renames photos by date",
        "Write a Python script that renames the photos in a folder by the date they were taken.",
    ),
    Suggestion(
        "languages",
        "Say it differently",
        "A sentence in three tones",
        "Say this in three tones, formal, friendly and very short: "
        "I cannot come to the meeting on Friday.",
    ),
)


class SuggestionCard(HoverButton):
    """A card with an icon, a title and a line below."""

    def __init__(self, theme: Theme, suggestion: Suggestion) -> None:
        super().__init__(theme)
        self.suggestion = suggestion
        self.setAccessibleName(f"{suggestion.title}: {suggestion.detail}")
        self.setToolTip(suggestion.prompt)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setProperty("focusRadius", _CARD_RADIUS)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        """Qt override."""
        return QSize(334, self.theme.px(_CARD_HEIGHT))

    def minimumSizeHint(self) -> QSize:
        """Qt override."""
        return QSize(160, self.theme.px(_CARD_HEIGHT))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        painter = QPainter(self)
        palette = self.theme.palette
        rect = QRectF(self.rect())
        paint_rounded(painter, rect, _CARD_RADIUS, fill=palette.raised, outline=palette.border_2)
        veil = self.veil()
        if veil is not None:
            paint_rounded(painter, rect, _CARD_RADIUS, fill=veil)
        tile = QRectF(16, (self.height() - _TILE_SIZE) / 2, _TILE_SIZE, _TILE_SIZE)
        paint_rounded(painter, tile, 8, fill=palette.accent_soft)
        # It grows within its tile: the room beside that is for the title, which has to be whole.
        icon = min(self.theme.px(_ICON), _TILE_SIZE - _LEAST_INSET)
        place = centred(tile.toRect(), icon)
        paint_icon(painter, self.suggestion.icon_name, palette.accent_text, place)
        title_line = self.theme.line_height("ui_title")
        detail_line = self.theme.line_height("label")
        top = (self.height() - title_line - detail_line - 2) / 2
        left = 16 + _TILE_SIZE + 14
        width = self.width() - left - 12
        self._line(painter, QRectF(left, top, width, title_line), "ui_title", "text")
        below = QRectF(left, top + title_line + 2, width, detail_line)
        self._line(painter, below, "label", "text_2")

    def _line(self, painter: QPainter, place: QRectF, style: str, role: str) -> None:
        text = self.suggestion.title if style == "ui_title" else self.suggestion.detail
        font = self.theme.font(style)
        painter.setFont(font)
        painter.setPen(QColor(getattr(self.theme.palette, role)))
        text = QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, int(place.width()))
        painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, text)


class EmptyState(QWidget):
    """The first screen.

    Signals:
        suggestion_chosen: Text for the composer.
        open_model_requested: "Open a model…" was clicked.
    """

    suggestion_chosen = Signal(str)
    open_model_requested = Signal()

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._lacks_model = False
        self._headline = Label(theme, style="welcome")
        self._subline = Label(theme, style="body", role="text_2")
        self._model_line = Label(theme, style="label", role="text_2")
        self._open_button = Button(theme, "Open a model…", "quiet")
        self._mark = Mark(theme, _MARK_SIZE)
        self._line = QWidget()
        self._open_button.clicked.connect(self.open_model_requested)
        for label in (self._headline, self._subline):
            label.setAlignment(Qt.AlignmentFlag.AlignHCenter)
            label.setWordWrap(True)
        self.cards = [SuggestionCard(theme, suggestion) for suggestion in SUGGESTIONS]
        for card in self.cards:
            card.clicked.connect(
                lambda _checked=False, prompt=card.suggestion.prompt: self.suggestion_chosen.emit(
                    prompt
                )
            )
        self._lay_out()
        theme.changed.connect(self._fit)

    def show_lines(self, headline: str, subline: str, model_line: str) -> None:
        """Set the greeting, the sentence below it and the one beside "Open a model…"."""
        self._headline.setText(headline)
        self._subline.setText(subline)
        self._model_line.setText(model_line)
        self._model_line.setVisible(bool(model_line))

    def ask_for_model(self, lacks_model: bool) -> None:
        """Whether there is no model at all: then opening one is what the page offers."""
        self._lacks_model = lacks_model
        self._open_button.kind = "primary" if lacks_model else "quiet"
        self._open_button.update()
        self._fit()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override."""
        QPainter(self).fillRect(self.rect(), self._theme.color("surface"))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        """Leave out what does not fit, the least useful first; nothing is ever squeezed."""
        card = self._theme.px(_CARD_HEIGHT) + _CARD_GAP
        parts: list[tuple[tuple[QWidget, ...], int]] = [
            ((self._headline,), self._theme.px(36)),
            ((self._subline,), self._theme.px(24)),
            (tuple(self.cards[:2]), card),
            (tuple(self.cards[2:]), card),
            ((self._line,), self._open_button.sizeHint().height() + _LINE_GAP),
            ((self._mark,), _MARK_SIZE),
        ]
        if self._lacks_model:  # a suggestion would only lead to an error
            parts = [*parts[:2], *parts[4:]]
            for suggestion in self.cards:
                suggestion.hide()
        room = self.height() - 2 * _MARGIN - sum(_GAPS)
        for widgets, height in parts:
            room -= height
            for widget in widgets:
                widget.setVisible(room >= 0)

    def _lay_out(self) -> None:
        grid = QGridLayout()
        grid.setSpacing(_CARD_GAP)
        grid.setContentsMargins(0, 0, 0, 0)
        for number, card in enumerate(self.cards):
            grid.addWidget(card, number // 2, number % 2)
        line = QHBoxLayout(self._line)
        line.setContentsMargins(0, _LINE_GAP, 0, 0)
        line.setSpacing(0)
        line.addStretch()
        line.addWidget(self._model_line)
        line.addWidget(self._open_button)
        line.addStretch()
        column = QWidget()
        column.setMaximumWidth(680)
        column.setLayout(grid)
        row = QHBoxLayout()
        row.addStretch(1)
        row.addWidget(column, 100)
        row.addStretch(1)
        inner = QVBoxLayout(self)
        inner.setContentsMargins(28, _MARGIN, 28, _MARGIN)
        inner.setSpacing(0)
        inner.addStretch(10)
        inner.addWidget(self._mark, 0, Qt.AlignmentFlag.AlignHCenter)
        inner.addSpacing(_GAPS[0])
        inner.addWidget(self._headline)
        inner.addSpacing(_GAPS[1])
        inner.addWidget(self._subline)
        inner.addSpacing(_GAPS[2])
        inner.addLayout(row)
        inner.addWidget(self._line)
        inner.addStretch(11)
