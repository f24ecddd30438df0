"""What a person has written and not sent yet, of each chat. Pure Python, GUI thread."""

from app.announcer import OnceTold
from app.conversation import ConversationId
from app.sending import Sending
from app.surroundings import Surroundings
from app.texts import joined, storable


class Drafts:
    """Kept over a restart, however the program ends. A failure to store never raises.

    Args:
        around: What the session works with.
        sending: Has the text that was taken and is not stored as a message yet.
    """

    def __init__(self, around: Surroundings, sending: Sending) -> None:
        self._store = around.store
        self._announcer = around.announcer
        self._sending = sending
        self._told = OnceTold(around.announcer)
        self._known: tuple[ConversationId | None, str] | None = None  # what need not be stored

    def of(self, conversation_id: ConversationId | None) -> str:
        """What is written in this chat; None is the one that is stored with its first message."""
        text = self._announcer.stored(lambda: self._store.draft_of(conversation_id)) or ""
        self._known = (conversation_id, text)
        return text

    def keep(self, conversation_id: ConversationId | None, text: str) -> None:
        """Store what is written in the chat that is shown; returns at once.

        What waits before it to be sent comes back with it, if the program ends before.
        """
        text = storable(joined(self._sending.text_on_its_way, text))
        if (conversation_id, text) != self._known:
            self._known = (conversation_id, text)
            self._store.keep_draft(conversation_id, text)
        self.tell_problem()

    @property
    def is_all_stored(self) -> bool:
        """Whether what is written could be stored; if not, closing loses it."""
        return self._store.draft_problem is None

    def tell_problem(self) -> None:
        """Say that what is written cannot be stored: once, until it goes well again."""
        self._told.note(self._store.draft_problem)
