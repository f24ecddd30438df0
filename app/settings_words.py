"""What was wrong with the file of the settings, in words for people. Pure Python; any thread."""

from app.settings import SettingsStore


def settings_problem(store: SettingsStore) -> str:
    """What was wrong with the file when it was read, and what was done; "" if nothing was."""
    if not store.warnings:
        return ""
    sentences = [f"Not all settings in {store.path} are used.", store.warnings[0]]
    if len(store.warnings) > 1:
        sentences.append(f"The log names {len(store.warnings) - 1:,} more.")
    if store.kept_as is not None:
        sentences.append(f"The file as it was is kept as {store.kept_as.name}.")
    return " ".join(sentences)
