"""Where Quire keeps its files. Pure Python; any thread.

Without a profile each kind of file goes where the system keeps it (platformdirs). With one,
everything lies under that folder, which is how tests and portable use stay apart.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from app.errors import ProfileError
from app.private_files import keep_private, make_private_folder

APP_NAME = "Quire"


@dataclass(frozen=True)
class Paths:
    """The files of one profile. Nothing is made before `prepare`.

    Attributes:
        profile: The folder that holds everything; None takes the system's own places.
    """

    profile: Path | None = None
    config_dir: Path = field(init=False)
    data_dir: Path = field(init=False)
    log_dir: Path = field(init=False)
    cache_dir: Path = field(init=False)

    def __post_init__(self) -> None:
        if self.profile is None:
            config = platformdirs.user_config_path(APP_NAME, appauthor=False)
            data = platformdirs.user_data_path(APP_NAME, appauthor=False)
            logs = platformdirs.user_log_path(APP_NAME, appauthor=False)
            cache = platformdirs.user_cache_path(APP_NAME, appauthor=False)
        else:
            root = Path(os.path.abspath(os.path.expanduser(self.profile)))
            object.__setattr__(self, "profile", root)
            config, data, logs, cache = root, root, root / "logs", root / "cache"
        object.__setattr__(self, "config_dir", config)
        object.__setattr__(self, "data_dir", data)
        object.__setattr__(self, "log_dir", logs)
        object.__setattr__(self, "cache_dir", cache)

    @property
    def settings_file(self) -> Path:
        """The settings, JSON."""
        return self.config_dir / "settings.json"

    @property
    def database_file(self) -> Path:
        """The chats, SQLite."""
        return self.data_dir / "chats.db"

    @property
    def log_file(self) -> Path:
        """The newest log; older ones lie beside it with a number."""
        return self.log_dir / "quire.log"

    @property
    def kv_dir(self) -> Path:
        """What models have read, to be used again; may be deleted at any time."""
        return self.cache_dir / "kv"

    @property
    def socket_name(self) -> str:
        """Names this profile among running programs: short, plain ASCII, one per folder."""
        where = os.path.normcase(os.path.realpath(self.data_dir))
        return "quire-" + hashlib.sha256(os.fsencode(where)).hexdigest()[:20]

    def prepare(self) -> None:
        """Make the folders, check that they can be written, and close them and our files to others.

        A folder that was there before, given as the profile, stays as open as it is. Without that of the
        log Quire works as well; who opens the log says what is wrong with it.

        Raises:
            ProfileError: A folder cannot be made or written; names it and the reason.
        """
        for folder in dict.fromkeys((self.config_dir, self.data_dir)):
            try:
                make_private_folder(folder)
                with tempfile.TemporaryFile(dir=folder):
                    pass
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise ProfileError(folder, reason[:1].lower() + reason[1:]) from error
        with contextlib.suppress(OSError):
            make_private_folder(self.log_dir)
        for path in (*self._own_folders(), *self._own_files()):
            keep_private(path)

    def prepare_cache(self) -> None:
        """Make the cache folder; where that is refused, who writes there says so."""
        with contextlib.suppress(OSError):
            make_private_folder(self.cache_dir)

    def _own_folders(self) -> list[Path]:
        """Those that were made for Quire, as far as can be known."""
        if self.profile is None:
            return [self.config_dir, self.data_dir, self.log_dir, self.cache_dir]
        return [file.parent for file in (self.log_file, self.kv_dir) if os.path.exists(file)]

    def _own_files(self) -> Iterator[Path]:
        """All that older versions may have made for others to read as well."""
        for file, beside in (
            (self.settings_file, ("{0}", "{0}.bak", "{0}.bak-*")),
            (self.database_file, ("{0}", "{0}-wal", "{0}-shm", "{1}.format-*", "{1}.damaged-*")),
            (self.log_file, ("{0}", "{0}.*")),
        ):
            for pattern in beside:
                yield from file.parent.glob(pattern.format(file.name, file.stem))
