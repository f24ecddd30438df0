"""What the parts of a chat session work with. Pure Python, GUI thread."""

from collections.abc import Callable
from dataclasses import dataclass

from app.announcer import Announcer
from app.messages import Command
from app.model_desk import ModelDesk
from app.settings import SettingsStore
from app.storage import ConversationStore


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The same for all parts of one session.

    Attributes:
        store: The chats.
        settings: The general settings.
        models: Know which model is there.
        post: Sends a command to the engine thread.
        announcer: Tells the listeners.
        clock: Seconds since the epoch.
    """

    store: ConversationStore
    settings: SettingsStore
    models: ModelDesk
    post: Callable[[Command], None]
    announcer: Announcer
    clock: Callable[[], float]
