"""Everything that the app's own parts may raise on purpose. Pure Python; any thread.

    AppError
    ├── ProfileError             a folder of the profile cannot be made or written
    ├── SettingError             a setting was given a value out of range
    └── StorageError             the database refused: full disk, no rights, locked
        ├── DatabaseTooNewError      made by a newer Quire; left alone
        └── DatabaseDamagedError     not readable; kept under another name

Each carries `hint`: what a person can do next, one sentence, or "" if there is nothing.
"""

from pathlib import Path


class AppError(Exception):
    """Base of all errors of the app.

    Attributes:
        hint: One sentence that says what to do next; may be empty.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ProfileError(AppError):
    """The profile's folder cannot be used.

    Attributes:
        path: The folder at fault.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(
            f"The folder {path} cannot be used: {reason}.",
            hint="Choose another folder with --profile, or change the rights of this one.",
        )


class SettingError(AppError):
    """A setting has no such name, or a value out of range.

    Attributes:
        field: The setting's name.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        super().__init__(f"{field}: {reason}")


class StorageError(AppError):
    """The database, or the settings, could not be read or written; what was stored before is still there."""


class DatabaseTooNewError(StorageError):
    """A newer Quire made this database; nothing in it was touched."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(
            f"The chats in {path} were stored by a newer Quire (format {found}, this one knows "
            f"{known}). Nothing was changed.",
            hint="Start the newer Quire, or use another folder with --profile.",
        )


class DatabaseDamagedError(StorageError):
    """The database file is damaged.

    Attributes:
        kept_as: Where the damaged file is now; None when it was not moved.
    """

    def __init__(self, path: Path, kept_as: Path | None, *, hint: str) -> None:
        self.kept_as = kept_as
        kept = f"It is kept as {kept_as}." if kept_as else "It was left as it is."
        super().__init__(
            f"The chats in {path} cannot be read, the file is damaged. {kept}",
            hint=hint,
        )
