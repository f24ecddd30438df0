"""What `ask` says of settings and chats besides the answer, a line each. No Qt; main thread."""

from pathlib import Path

from app.asked_chat import AskedChat
from app.complaint import complain
from app.errors import StorageError
from app.settings import Settings, SettingsStore
from app.settings_words import settings_problem


def read_settings(path: Path) -> Settings:
    """The general settings; says so if something in their file cannot be used."""
    store = SettingsStore(path)
    problem = settings_problem(store)
    if problem:
        complain(f"{problem} Mend the file, or delete it.")
    return store.value


def tell_unfinished(chat: AskedChat) -> None:
    """Say that the model sees a part only of what may be a longer reply in a moment."""
    if chat.follows_unfinished:
        complain("the reply before is not finished: the model sees what there is of it by now.")


def tell_deleted(chat: AskedChat) -> None:
    """Say that nobody will find the answer, if the chat is not there any more."""
    try:
        is_deleted = chat.is_deleted
    except StorageError:
        return  # that the answer was stored is known, and all that was asked for
    if is_deleted:
        complain("the chat was deleted meanwhile, and this answer with it.")
