"""A reply: blocks, caret while it comes, footer when it is there. GUI thread."""

import time
from collections.abc import Sequence

from PySide6.QtCore import QEvent, Signal
from PySide6.QtGui import QEnterEvent
from PySide6.QtWidgets import QWidget

from app.conversation import Message
from app.session_changes import WaitReason
from ui.controls.labels import Label
from ui.look.theme import Theme
from ui.markdown.stream import MarkdownStream
from ui.markdown.thinking import ThinkingSplitter
from ui.replies.answer_rows import RunningRow
from ui.replies.error_card import ErrorCard, actions_for
from ui.replies.message_view import MessageView
from ui.replies.reading_pace import ReadingPace
from ui.replies.reply_buttons import copy_to_clipboard
from ui.replies.reply_caret import WAITS, Caret, prefill_text
from ui.replies.reply_flow import BlockFlow
from ui.replies.reply_footer import BLEED, ReplyFooter
from ui.replies.reply_leaf import Leaf
from ui.replies.reply_thoughts import Thoughts

PREFILL_AFTER_MS = 500
_SLICE_CHARS = 1_000
_GAP = 10
_FOOTER_GAP = 6

NOTES = {
    "stopped": "Stopped. This is the reply so far.",
    "length": "Reached the length limit. This is the reply so far.",
}
STOPPED_AT_ONCE = "Stopped before the first word."


class ReplyView(MessageView):
    """A reply.

    Signals:
        again_requested, several_requested: Make another version, or several at once.
        more_requested: The menu button was pressed.
        action_requested: Name of an action of the error card.
        stop_all_requested: All versions in the making are to end.
    """

    again_requested = Signal()
    several_requested = Signal()
    more_requested = Signal()
    action_requested = Signal(str)
    stop_all_requested = Signal()

    def __init__(
        self, message: Message, versions: Sequence[int], theme: Theme, parent: QWidget
    ) -> None:
        super().__init__(message, theme, parent)
        self._flow = BlockFlow(theme, self)
        self._flow.link_activated.connect(self.link_activated)
        self._flow.height_changed.connect(self._content_grew)
        self._flow.leaf_removed.connect(self.selection_lost)
        self._flow.work_added.connect(self.work_added)
        self._thoughts: Thoughts | None = None
        self._caret = Caret(theme, self)
        self._footer = ReplyFooter(theme, self)
        self._footer.version_requested.connect(self.version_requested)
        self._footer.copy_requested.connect(lambda: copy_to_clipboard(self.text))
        self._footer.again_requested.connect(self.again_requested)
        self._footer.several_requested.connect(self.several_requested)
        self._footer.more_requested.connect(self.more_requested)
        self._running = RunningRow(theme, self)
        self._running.version_requested.connect(self.version_requested)
        self._running.stop_all_requested.connect(self.stop_all_requested)
        self._versions: Sequence[int] = ()
        self._num_running = 0
        self._note = Label(theme, style="small", role="text_2", parent=self)
        self._note.hide()
        self._prefill = Label(theme, style="small", role="text_2", parent=self)
        for label in (self._note, self._prefill):
            label.setWordWrap(True)
        self._prefill.hide()
        self._reading: ReadingPace | None = None
        self._started = time.perf_counter()
        self._card: ErrorCard | None = None
        self._width = 0
        self._begin_text()
        self.show_message(message, versions)

    # ------------------------------------------------------------ text

    def _begin_text(self) -> None:
        self._stream = MarkdownStream()
        self._splitter = ThinkingSplitter()
        self._received: list[str] = []
        self._num_received = 0
        self._waiting: list[str] = []  # received, not parsed yet
        self._is_finished = False
        self._num_final_shown = 0
        self._is_shown = True

    def _clear(self) -> None:
        """The reply begins anew: nothing of the old one stays."""
        self._flow.clear()
        if self._thoughts is not None:
            self._thoughts.hide()
            self._thoughts.deleteLater()
            self._thoughts = None
        self._started = time.perf_counter()
        self._reading = None
        self._begin_text()

    @property
    def text(self) -> str:
        """The markdown source that came so far."""
        return "".join(self._received)

    def plain_text(self) -> str:
        """What is shown, without the marks of Markdown."""
        return "\n\n".join(leaf.plain_text() for leaf in self._flow.leaves)

    @property
    def more_button(self) -> QWidget:
        """Where the menu opens."""
        return self._footer.more_button

    @property
    def is_streaming(self) -> bool:
        """Whether more text may come."""
        return self.message.status == "streaming"

    def append_text(self, text: str) -> None:
        """More text came; it is shown by `advance`."""
        if text:
            self._end_waiting()
            self._received.append(text)
            self._num_received += len(text)
            self._waiting += [
                text[start : start + _SLICE_CHARS] for start in range(0, len(text), _SLICE_CHARS)
            ]
            self.work_added.emit()

    def show_message(self, message: Message, versions: Sequence[int]) -> None:
        """Take a new state; text that is known already stays as it is."""
        was_streaming, self.message = self.is_streaming, message
        known = self.text
        is_behind = was_streaming and self.is_streaming and known.startswith(message.content)
        # What was parsed to its end cannot go on in the middle of a paragraph.
        goes_on_after_its_end = self._is_finished and len(message.content) > len(known)
        if message.content.startswith(known) and not goes_on_after_its_end:
            self.append_text(message.content[self._num_received :])
        elif not is_behind:
            self._clear()
            self.append_text(message.content)
        self._versions = versions
        self._footer.show_message(message, versions)
        self._footer.setVisible(not self.is_streaming)
        self._show_status()
        self._announce("Reply", message.content)
        self.work_added.emit()

    def set_running(self, num_running: int) -> None:
        """How many versions of the reply are in the making, itself counted."""
        if num_running != self._num_running:
            self._num_running = num_running
            self._show_running()
            self.height_changed.emit()

    def _show_running(self) -> None:
        self._running.show_state(
            self._versions,
            self.message.id,
            is_streaming=self.is_streaming,
            num_running=self._num_running,
        )

    def _show_status(self) -> None:
        self._show_running()
        note = NOTES.get(self.message.status, "")
        is_empty = self.message.status == "stopped" and not self._num_received
        self._note.setText(STOPPED_AT_ONCE if is_empty else note)
        self._note.setVisible(bool(self._note.text()))
        if self.is_streaming:
            self._caret.start()
        else:
            self._caret.stop()
            self._prefill.hide()
        if self._card is not None:
            self._card.hide()
            self._card.deleteLater()
            self._card = None
        if self.message.status == "error":
            error = self.message.error or "The reply could not be finished."
            kept = "Above is the reply so far." if self._num_received else "Your message is kept."
            actions = actions_for(self.message.failure_kind)
            self._card = ErrorCard(self._theme, f"{error} {kept}", actions, self)
            self._card.action_requested.connect(self.action_requested)
            self._card.show()
        self.height_changed.emit()

    def set_prefill(self, done_tokens: int, total_tokens: int) -> None:
        """How much of the prompt is read; shown from half a second on, until text comes."""
        now = time.perf_counter()
        if self._reading is None:
            self._reading = ReadingPace(done_tokens, now)
        self._reading.note(done_tokens, now)
        since_ms = (now - self._started) * 1000
        self._end_waiting()
        if not self.is_streaming or self._num_received or since_ms < PREFILL_AFTER_MS:
            return
        seconds_left = self._reading.seconds_left(total_tokens)
        self._prefill.setText(prefill_text(done_tokens, total_tokens, seconds_left))
        self._prefill.show()
        self.height_changed.emit()

    def set_waiting(self, reason: WaitReason) -> None:
        """The model does not come to it yet, or does not go on with it, until more is said of it."""
        label = self._note if self._num_received else self._prefill
        if self.is_streaming and (label.isHidden() or label.text() != WAITS[reason]):
            label.setText(WAITS[reason])
            label.show()
            self.height_changed.emit()

    def _end_waiting(self) -> None:
        if self.is_streaming and not self._note.isHidden():
            self._note.hide()
            self.height_changed.emit()

    def advance(self, deadline: float) -> bool:
        """Parse what waits, make leaves, lay out put-off rows."""
        did_parse = bool(self._waiting)
        while self._waiting:
            piece = self._waiting.pop(0)
            self._feed(*self._splitter.push(piece))
            if time.perf_counter() > deadline:
                break
        if not self._waiting and not self.is_streaming and not self._is_finished:
            self._feed(*self._splitter.finish())
            self._stream.finish(is_cut=self.message.status != "complete")
            self._is_finished = did_parse = True
            self._num_final_shown = 0  # a link may be defined behind blocks that were final before
        if did_parse or not self._is_shown:
            self._prefill.setVisible(self._prefill.isVisible() and not self._num_received)
            blocks, num_same = self._stream.blocks, self._num_final_shown
            num_shown = self._flow.show_blocks(blocks, num_same=num_same, deadline=deadline)
            self._is_shown = num_shown == len(blocks)
            self._num_final_shown = min(self._stream.num_final, num_shown)
            self._content_grew()
        are_leaves_done = self._flow.advance(deadline)
        return not self._waiting and self._is_shown and are_leaves_done

    def _feed(self, thought: str, reply: str) -> None:
        if self._splitter.has_thought and self._thoughts is None:
            self._thoughts = Thoughts(self._theme, self)
            self._thoughts.height_changed.connect(self.height_changed)
            self._thoughts.show()
        if self._thoughts is not None:
            self._thoughts.append(thought, is_thinking=self._splitter.is_thinking)
        if reply:
            self._stream.feed(reply)

    def _content_grew(self) -> None:
        self.height_changed.emit()

    # ------------------------------------------------------------ layout

    def layout_to(self, width: int) -> int:
        """Thoughts, blocks, note, error card, footer."""
        self._width = width
        y = 0
        if self._thoughts is not None:
            height = self._thoughts.layout_to(width)
            self._thoughts.setGeometry(BLEED, y, width, height)
            y += height + 8
        height = self._flow.layout_to(width)
        self._flow.setGeometry(BLEED, y, width, height)
        flow_top, y = y, y + height
        if self.is_streaming:
            y = max(y, flow_top + self._place_caret(flow_top))
        has_content = bool(self._flow.leaves)
        for part in (self._card, self._note):
            if part is None or part.isHidden():
                continue
            y += self._theme.px(_GAP) if has_content else 0
            if isinstance(part, ErrorCard):
                height = part.layout_to(width)
            else:
                height = _label_height(part, width)
            part.setGeometry(BLEED, y, width, height)
            y += height
            has_content = True
        if not self._footer.isHidden():
            height = self._footer.wanted_height()
            self._footer.setGeometry(0, y + _FOOTER_GAP, width + 2 * BLEED, height)
            y += _FOOTER_GAP + height
        if not self._running.isHidden():
            gap = _FOOTER_GAP if self._footer.isHidden() else 0
            height = self._running.wanted_height()
            self._running.setGeometry(0, y + gap, width + 2 * BLEED, height)
            y += gap + height
        return y

    def _place_caret(self, flow_top: int) -> int:
        """Give the caret and what is said before the first word their places; gives the height of both."""
        point = self._flow.caret_point()
        x, y = (point.x() + 3, point.y()) if point is not None else (0.0, 0.0)
        line = self._theme.line_height("body")
        lift = (line - self._caret.height()) / 2
        self._caret.move(round(BLEED + x), round(flow_top + y + lift))
        self._caret.raise_()
        width = self._width - 14
        height = (
            line if self._prefill.isHidden() else max(line, _label_height(self._prefill, width))
        )
        self._prefill.setGeometry(BLEED + 14, flow_top, width, height)
        return height

    def restyle(self) -> None:
        """Colours or sizes are new."""
        self._flow.restyle()
        self._footer.restyle()
        self._note.restyle()
        self._prefill.restyle()
        self._running.place()
        for part in (self._card, self._thoughts):
            if part is not None:
                part.restyle()
        if self.is_streaming:
            self._caret.start()
        self.update()

    def leaves(self) -> list[Leaf]:
        """The blocks of the reply, after its thoughts if they are open."""
        thoughts = self._thoughts.leaves() if self._thoughts is not None else []
        return thoughts + self._flow.leaves

    def enterEvent(self, event: QEnterEvent) -> None:
        """Qt override."""
        self._footer.set_strong(True)

    def leaveEvent(self, event: QEvent) -> None:
        """Qt override."""
        self._footer.set_strong(False)


def _label_height(label: Label, width: int) -> int:
    """Height of a label whose words wrap."""
    return max(label.minimumHeight(), label.heightForWidth(width))
