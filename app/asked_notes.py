"""What `ask` says of settings besides the answer, a line each. No Qt; main thread."""

from pathlib import Path

from app.complaint import complain
from app.settings import Settings, SettingsStore
from app.settings_words import settings_problem


def read_settings(path: Path) -> Settings:
    """The general settings; says so if something in their file cannot be used."""
    store = SettingsStore(path)
    problem = settings_problem(store)
    if problem:
        complain(f"{problem} Mend the file, or delete it.")
    return store.value
