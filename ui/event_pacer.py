"""Brings the engine's events to the display's pace. GUI thread.

The engine may send hundreds of small steps a second; each frame needs at most one. Steps of a
reply are merged and handed on once per frame; every other event goes through at once, after the
steps that came before it.
"""

from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer

from app.messages import Event, ReplyId, ReplyProgressed

FRAME_MS = 16


class EventPacer(QObject):
    """Keeps the order of events, and at most one step per reply and frame.

    Args:
        deliver: Takes the events, in order.
        parent: Owner.
    """

    def __init__(self, deliver: Callable[[Event], None], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._deliver = deliver
        self._waiting: dict[ReplyId, list[ReplyProgressed]] = {}
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(FRAME_MS)
        self._timer.timeout.connect(self.flush)

    def push(self, event: Event) -> None:
        """Take an event from the engine thread's signal."""
        if isinstance(event, ReplyProgressed):
            self._waiting.setdefault(event.reply_id, []).append(event)
            if not self._timer.isActive():
                self._timer.start()
            return
        self.flush()
        self._deliver(event)

    def flush(self) -> None:
        """Hand on what waits."""
        self._timer.stop()
        waiting, self._waiting = self._waiting, {}
        for steps in waiting.values():
            self._deliver(merged(steps))


def merged(steps: list[ReplyProgressed]) -> ReplyProgressed:
    """One step that does what all of `steps` (of one reply, at least one) do in order."""
    last = steps[-1]
    return ReplyProgressed(
        last.reply_id,
        "".join(step.text for step in steps),
        tuple(token_id for step in steps for token_id in step.token_ids),
        last.prefilled_tokens,
        last.metrics,
        last.is_all_shown,
    )
