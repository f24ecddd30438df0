"""A scrolling column of messages: who gets time, where each one stands, what stays in view.

GUI thread. Views are made, filled and laid out in slices of a few milliseconds: first those on
screen, then the others from the end upwards. Until a view is ready, an estimate of its height holds
its place.
"""

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QWidget

from app.conversation import Message, MessageId
from ui.look.fade_edge import FADE_HEIGHT, FadeEdge
from ui.look.theme import Theme
from ui.replies.found_words import SoughtWords
from ui.replies.kept_place import Anchor, LaidOutFor, anchor_in, top_in
from ui.replies.left_out_mark import LeftOutMark, LeftOutMarks
from ui.replies.message_view import MessageView
from ui.replies.reply_buttons import ToEndButton
from ui.replies.reply_disposal import Disposal
from ui.replies.reply_footer import BLEED
from ui.replies.smooth_stream import FramePacer

COLUMN_WIDTH = 680
MARGIN, NARROW_MARGIN = 28, 16
NARROW_BELOW = 640
SLICE_S = 0.002
_TOP, _BOTTOM = 14, 14
_REPLY_GAP, _QUESTION_GAP = 14, 20
_AT_END = 4
_ABOVE_SOUGHT = 4  # this part of the screen is above words that were sought
_CHARS_PER_LINE = 85
_LEAST_COLUMN = 120


@dataclass(frozen=True)
class _Frame:
    """What all places depend on, besides the heights; another one moves everything."""

    messages: tuple[Message, ...]
    first_seen_id: MessageId | None
    left: int
    column: int
    line_height: int


class MessageColumn(QScrollArea):
    """Places views; which ones there are is its subclass's business.

    Signals:
        scrolled: Whether something lies above the visible part.
    """

    scrolled = Signal(bool)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._messages: list[Message] = []
        self._views: dict[MessageId, MessageView] = {}
        self._heights: dict[MessageId, int] = {}
        self._kept: Anchor | None = None  # until its block is finished
        self._laid_out_for: dict[MessageId, LaidOutFor] = {}
        self._tops: dict[MessageId, int] = {}
        self._busy: set[MessageId] = set()  # views with work left, and messages without a view
        self._stale: set[MessageId] = set()  # views to lay out again
        self._unstyled: set[MessageId] = set()  # stale ones that also have old colours or sizes
        self._column = COLUMN_WIDTH
        self._follows_end = True
        self._sought: SoughtWords | None = None  # until all is laid out, or somebody scrolls
        self._is_placing = False
        self._disposal = Disposal(self)
        self._canvas = QWidget()
        self._canvas.setAccessibleName("Messages")
        self._marks = LeftOutMarks(theme, self._canvas)
        self._above: dict[MessageId, LeftOutMark] = {}  # what stands above a message
        self._frame = _Frame((), None, 0, 0, 0)
        self.setWidget(self._canvas)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setAutoFillBackground(False)
        self._canvas.setAutoFillBackground(False)
        self._fade = FadeEdge(theme, "surface", fades_down=True, parent=self)
        self._fade.hide()
        self._to_end = ToEndButton(theme, self)
        self._to_end.clicked.connect(self.go_to_end)
        self._to_end.hide()
        self._pacer = FramePacer(self._work, self)
        self.verticalScrollBar().valueChanged.connect(self._scrolled_to)
        self.verticalScrollBar().setSingleStep(40)
        theme.changed.connect(self._restyle)

    def mark_left_out(self, first_seen_id: MessageId | None) -> None:
        """Draw the line above the first message that the model still sees; None takes it away."""
        if first_seen_id != self._marks.first_seen_id:
            self._marks.first_seen_id = first_seen_id
            self._pacer.request()

    @abstractmethod
    def _make_view(self, message: Message) -> MessageView:
        """Make the view of a message, a child of the canvas, and register it."""

    def _drop_view(self, message_id: MessageId) -> None:
        view = self._views.pop(message_id)
        for known in (self._busy, self._stale, self._unstyled):
            known.discard(message_id)
        self._heights.pop(message_id, None)
        self._laid_out_for.pop(message_id, None)
        view.blockSignals(True)  # it has nothing to say to the column any more
        view.hide()
        self._disposal.add(view)

    def go_to_end(self) -> None:
        """Show the newest text and follow it."""
        self.follow_end()
        self._scroll_to(self.verticalScrollBar().maximum())

    def follow_end(self) -> None:
        """The newest text is what is shown."""
        self._follows_end, self._sought = True, None

    def seek(self, message_id: MessageId, words: Sequence[str]) -> None:
        """Show where a message holds one of these words; it stays in view while all else is laid out.

        Args:
            message_id: One of those that are shown.
            words: As they were searched for; without any of them the message's beginning is shown.
        """
        self._follows_end, self._kept = False, None
        self._sought = SoughtWords(message_id, words)
        self._pacer.flush()

    @property
    def follows_end(self) -> bool:
        """Whether new text keeps the view at the end."""
        return self._follows_end

    @property
    def is_settled(self) -> bool:
        """Whether every message has its view and its place, and nothing is left to do."""
        return self._is_filled and not self._pacer.is_waiting

    @property
    def _is_filled(self) -> bool:
        return not (self._busy or self._stale)

    def _mark_stale(self, message_id: MessageId) -> None:
        self._stale.add(message_id)
        if not self._is_placing:
            self._pacer.request()

    def _mark_busy(self, message_id: MessageId) -> None:
        self._busy.add(message_id)
        self._pacer.request()

    # ------------------------------------------------------------ work in slices

    def _work(self) -> None:
        """One frame: a slice of work, then one layout."""
        messages = self._by_urgency(self._busy)
        deadline = time.perf_counter() + SLICE_S  # a long chat's own upkeep must not use it up
        for message in messages:
            if self._advance(message, deadline):
                self._busy.discard(message.id)
            if time.perf_counter() > deadline:
                break
        self._place(deadline)
        if self._busy or self._stale:
            self._pacer.request()

    def _advance(self, message: Message, deadline: float) -> bool:
        view = self._views.get(message.id) or self._make_view(message)
        return view.advance(deadline)

    def _by_urgency(self, waiting: set[MessageId]) -> list[Message]:
        """Of these messages those on screen, then the others from the end."""
        start = self.verticalScrollBar().value()
        end = start + self.viewport().height()
        placeless = start if self._follows_end else end + 1  # who has no place yet comes at the end
        seen: list[Message] = []
        unseen: list[Message] = []
        for message in reversed(self._messages):
            if message.id in waiting:
                top = self._tops.get(message.id, placeless)
                is_seen = top <= end and top + self._height_of(message) >= start
                (seen if is_seen else unseen).append(message)
        return seen + unseen

    # ------------------------------------------------------------ layout

    def _place(self, deadline: float) -> None:
        """Give every view its place; what is on screen stays where it is."""
        self._is_placing = True
        anchor = self._kept or self._anchor()
        changed = self._lay_out_stale(deadline)
        left = (self.width() - self._column) // 2 - BLEED
        frame = _Frame(
            tuple(self._messages),
            self._marks.first_seen_id,
            left,
            self._column,
            self._theme.line_height("body"),
        )
        first = self._first_of(changed)
        if frame != self._frame:
            self._frame, first = frame, 0
            self._above = self._marks.above(self._messages)
        self._place_from(first)
        self._canvas.resize(self.viewport().width(), self._bottom_of(len(self._messages)) + _BOTTOM)
        self._restore(anchor)
        self._is_placing = False
        self._show_edges()

    def _first_of(self, changed: set[MessageId]) -> int:
        """The first of these; all above it stays, and a reply mostly grows at the end of a chat."""
        places = range(len(self._messages))
        return next((i for i in places if self._messages[i].id in changed), len(places))

    def _place_from(self, first: int) -> None:
        left, width = self._frame.left, self._column + 2 * BLEED
        y = self._bottom_of(first)
        for index, message in enumerate(self._messages[first:], first):
            if index:
                y += _REPLY_GAP if message.role == "assistant" else _QUESTION_GAP
            mark = self._above.get(message.id)
            if mark is not None:
                mark.setGeometry(left + BLEED, y, self._column, mark.wanted_height())
                mark.show()
                y += mark.height() + _QUESTION_GAP
            self._tops[message.id] = y
            height = self._height_of(message)
            view = self._views.get(message.id)
            if view is not None:
                view.setGeometry(left, y, width, height)
                if view.isHidden() and message.id in self._heights:
                    view.show()
            y += height

    def _bottom_of(self, index: int) -> int:
        """Where the message before this one ends."""
        if index == 0:
            return _TOP
        message = self._messages[index - 1]
        return self._tops[message.id] + self._height_of(message)

    def _height_of(self, message: Message) -> int:
        """Without a view an estimate, so that the scroll bar is about right."""
        height = self._heights.get(message.id)
        if height:
            return height
        lines = len(message.content) // _CHARS_PER_LINE + 1
        return lines * self._frame.line_height + 40

    def _lay_out_stale(self, deadline: float) -> set[MessageId]:
        """Those that were laid out."""
        done: set[MessageId] = set()
        for message_id in [message.id for message in self._by_urgency(self._stale)]:
            self._stale.discard(message_id)
            view = self._views.get(message_id)
            if view is None:
                continue
            if message_id in self._unstyled:
                self._unstyled.discard(message_id)
                view.restyle()
            self._heights[message_id] = view.layout_to(self._column)
            self._laid_out_for[message_id] = (self._column, self._theme.line_height("body"))
            done.add(message_id)
            if time.perf_counter() > deadline:
                break
        return done

    def _anchor(self) -> Anchor | None:
        """What is at the top of the screen; None if the end is followed."""
        if self._follows_end:
            return None
        value = self.verticalScrollBar().value()
        for message in self._messages:
            top = self._tops.get(message.id)
            if top is not None and top + self._height_of(message) > value:
                return anchor_in(
                    message.id,
                    self._views.get(message.id),
                    value - top,
                    self._laid_out_for.get(message.id),
                )
        return None

    def _restore(self, anchor: Anchor | None) -> None:
        self._kept = None
        if self._sought is not None and self._sought.message_id in self._tops:
            self._scroll_to(self._top_of(self._sought) - self.viewport().height() // _ABOVE_SOUGHT)
            if self._is_filled:
                self._sought = None
        elif self._follows_end:
            self._scroll_to(self.verticalScrollBar().maximum())
        elif anchor is not None and anchor.message_id in self._tops:
            view = self._views.get(anchor.message_id)
            now = self._laid_out_for.get(anchor.message_id)
            self._scroll_to(self._tops[anchor.message_id] + anchor.offset_in(view, now))
            leaf = anchor.leaf_in(view)
            if leaf is not None and not leaf.is_finished and now != anchor.laid_out_for:
                self._kept = anchor  # what it is scaled by is known when all its rows are laid out

    def _top_of(self, sought: SoughtWords) -> int:
        """The block with the words, or the message as long as it has none."""
        top, view = self._tops[sought.message_id], self._views.get(sought.message_id)
        leaf = sought.leaf_in(view.leaves()) if view is not None else None
        return top if leaf is None or view is None else top + top_in(view, leaf)

    def _scroll_to(self, value: int) -> None:
        was_placing, self._is_placing = self._is_placing, True
        self.verticalScrollBar().setValue(value)
        self._is_placing = was_placing
        self._show_edges()

    def _scrolled_to(self, value: int) -> None:
        if not self._is_placing:
            self._kept = self._sought = None
            self._follows_end = value >= self.verticalScrollBar().maximum() - _AT_END
            if self._busy or self._stale:
                self._pacer.request()
        self._show_edges()

    def _show_edges(self) -> None:
        bar = self.verticalScrollBar()
        is_scrolled = bar.value() > 0
        if is_scrolled == self._fade.isHidden():
            self._fade.setVisible(is_scrolled)
            self.scrolled.emit(is_scrolled)
        is_away = not self._follows_end and bar.maximum() - bar.value() > _AT_END
        self._to_end.setVisible(is_away)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Qt override."""
        super().resizeEvent(event)
        margin = NARROW_MARGIN if self.width() < NARROW_BELOW else MARGIN
        column = max(min(COLUMN_WIDTH, self.width() - 2 * margin), _LEAST_COLUMN)
        if column != self._column:
            self._column = column
            self._stale |= set(self._views)
        self._fade.setGeometry(0, 0, self.viewport().width(), FADE_HEIGHT)
        x = (self.width() - self._to_end.width()) // 2
        self._to_end.move(x, self.height() - self._to_end.height() + self._to_end.reach - 12)
        self._pacer.flush()

    def _restyle(self) -> None:
        self._unstyled |= set(self._views)
        self._stale |= self._unstyled
        self.viewport().update()
        self._pacer.flush()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Qt override: the chat's own background, whatever lies behind."""
        QPainter(self.viewport()).fillRect(event.rect(), self._theme.color("surface"))
