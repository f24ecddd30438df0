"""Keeps what is written in the composer, for each chat. GUI thread."""

from PySide6.QtCore import QElapsedTimer, QObject, QTimer

from app.chat_session import ChatSession
from app.conversation import ConversationId
from ui.chat.composer import Composer

KEEP_DELAY_MS = 500
KEEP_WITHIN_MS = 3000


class DraftKeeper(QObject):
    """Stores the text a moment after the last key, and every few seconds while one goes on typing."""

    def __init__(self, session: ChatSession, composer: Composer, parent: QObject) -> None:
        super().__init__(parent)
        self._drafts = session.drafts
        self._composer = composer
        self._chat_id: ConversationId | None = None
        self._age = QElapsedTimer()  # of the oldest change that is not kept
        self._timer = QTimer(composer)  # not later than what it keeps
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self.keep)
        self._bring_back()
        composer.text_changed.connect(self._keep_later)

    def show(self, chat_id: ConversationId | None) -> None:
        """Keep what is written for the chat that goes, bring back what waits for the one that comes."""
        if chat_id != self._chat_id:
            self.keep()
            self._chat_id = chat_id
            self._bring_back()

    def keep(self) -> None:
        """Keep what is written now, if it is not kept yet."""
        self._timer.stop()
        self._age.invalidate()
        self._drafts.keep(self._chat_id, self._composer.text)

    def _bring_back(self) -> None:
        text = self._drafts.of(self._chat_id)
        if text != self._composer.text:
            self._composer.set_text(text)

    def _keep_later(self) -> None:
        if not self._age.isValid():
            self._age.start()
        left_ms = KEEP_WITHIN_MS - self._age.elapsed()
        self._timer.start(max(0, min(KEEP_DELAY_MS, left_ms)))
