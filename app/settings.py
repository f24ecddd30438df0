"""What a person set, as one frozen value, and the JSON file that keeps it. GUI thread.

A file is never trusted: each field is checked alone, a bad one falls back to its default with a
warning, and the file as it was is kept beside the new one. Saving happens a moment later on a
helper thread, because an fsync can take far longer than a frame.
"""

import dataclasses
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from app.errors import SettingError, StorageError
from app.kept_copies import keep_copy
from app.private_files import private_opener
from inference.config import KV_SCHEMES, SamplingParams
from inference.errors import InvalidRequestError
from inference.regular_file import open_regular

logger = logging.getLogger(__name__)

ThemeName = Literal["system", "light", "dark", "contrast"]

FORMAT_VERSION = 1
MAX_RECENT_MODELS = 8
MAX_TEXT_CHARS = 100_000

# Each entry lifts the raw file from its key's version to the next one.
Migration = Callable[[dict[str, object]], dict[str, object]]
MIGRATIONS: Mapping[int, Migration] = {}


@dataclass(frozen=True, slots=True)
class Settings:
    """All general settings. Checked on construction.

    Attributes:
        theme: "system" follows light and dark of the desktop.
        text_size_percent: 80 to 200.
        model_path: The model to open at start; "" takes the starter model.
        recent_models: Paths, newest first, without repeats.
        sampling: For chats that have no own.
        system_prompt: For chats that have no own.
        context_tokens: Most tokens of prompt and reply; None takes what model and memory allow.
        num_threads: CPU threads; None takes the physical cores.
        kv_cache_bytes, ram_cache_bytes, disk_cache_bytes: Budgets of what models have read, on the
            device, put aside in RAM, and on disk; None chooses; 0 (not on the device) is off.
        kv_schemes: How keys and values are stored, by the model's path; models that are not here take
            the default.
        guess_ahead: Whether tokens are guessed ahead where it pays.
        draft_models: The second model that guesses, by the model's path; models that are not here have
            none.
        sidebar_width: Logical pixels.
        window_geometry: As the toolkit wrote it, base64; "" before the first close.
    """

    theme: ThemeName = "system"
    text_size_percent: int = 100
    model_path: str = ""
    recent_models: tuple[str, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    system_prompt: str = ""
    context_tokens: int | None = None
    num_threads: int | None = None
    kv_cache_bytes: int | None = None
    ram_cache_bytes: int | None = None
    disk_cache_bytes: int | None = None
    kv_schemes: tuple[tuple[str, str], ...] = ()
    guess_ahead: bool = True
    draft_models: tuple[tuple[str, str], ...] = ()
    sidebar_visible: bool = True
    sidebar_width: int = 252
    window_geometry: str = ""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))


def _checked_theme(name: str, value: object) -> object:
    if value not in ("system", "light", "dark", "contrast"):
        raise SettingError(name, f"must be system, light, dark or contrast, not {value!r:.40}.")
    return value


def _checked_text(name: str, value: object) -> object:
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS:
        raise SettingError(name, f"must be text of at most {MAX_TEXT_CHARS:,} characters.")
    return value


def _checked_bool(name: str, value: object) -> object:
    if not isinstance(value, bool):
        raise SettingError(name, f"must be true or false, not {value!r:.40}.")
    return value


def _whole_number(low: int, high: int) -> Callable[[str, object], object]:
    def check(name: str, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise SettingError(
                name, f"must be a whole number from {low:,} to {high:,}, not {value!r:.40}."
            )
        return value

    return check


def _optional(check: Callable[[str, object], object]) -> Callable[[str, object], object]:
    return lambda name, value: None if value is None else check(name, value)


def _checked_recent(name: str, value: object) -> object:
    if not isinstance(value, (list, tuple)) or not all(isinstance(path, str) for path in value):
        raise SettingError(name, "must be a list of paths.")
    return tuple(dict.fromkeys(path for path in value if path))[:MAX_RECENT_MODELS]


def _checked_sampling(name: str, value: object) -> object:
    if not isinstance(value, SamplingParams):
        raise SettingError(name, f"must be sampling settings, not {type(value).__name__}.")
    return value


def _pairs(what: str, is_allowed: Callable[[str], bool]) -> Callable[[str, object], object]:
    """Pairs of a model's path and `what`; of two pairs for one model the later one counts."""

    def check(name: str, value: object) -> object:
        # From JSON the pairs are lists.
        if not isinstance(value, (list, tuple)) or not all(map(_is_pair_of_texts, value)):
            raise SettingError(name, f"must be pairs of a model's path and {what}.")
        pairs = dict(value)
        if not all(map(is_allowed, pairs.values())):
            raise SettingError(name, f"must be pairs of a model's path and {what}.")
        return tuple(pairs.items())

    return check


def _is_pair_of_texts(value: object) -> bool:
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    return is_pair and all(isinstance(item, str) for item in value)  # type: ignore[attr-defined]  # a pair


_CHECKS: Mapping[str, Callable[[str, object], object]] = {
    "theme": _checked_theme,
    "text_size_percent": _whole_number(80, 200),
    "model_path": _checked_text,
    "recent_models": _checked_recent,
    "sampling": _checked_sampling,
    "system_prompt": _checked_text,
    "context_tokens": _optional(_whole_number(2, 2**31 - 1)),
    "num_threads": _optional(_whole_number(1, 1024)),
    "kv_cache_bytes": _optional(_whole_number(2**20, 2**50)),
    "ram_cache_bytes": _optional(_whole_number(0, 2**50)),
    "disk_cache_bytes": _optional(_whole_number(0, 2**50)),
    "kv_schemes": _pairs(f"one of {', '.join(KV_SCHEMES)}", KV_SCHEMES.__contains__),
    "guess_ahead": _checked_bool,
    "draft_models": _pairs("the path of its draft model", bool),
    "sidebar_visible": _checked_bool,
    "sidebar_width": _whole_number(120, 1000),
    "window_geometry": _checked_text,
}


def settings_to_json(settings: Settings) -> str:
    """The file's text, fields in their order of declaration."""
    return json.dumps(
        {"version": FORMAT_VERSION, **dataclasses.asdict(settings)}, indent=2, ensure_ascii=False
    )


def settings_from_json(
    text: str, *, migrations: Mapping[int, Migration] = MIGRATIONS
) -> tuple[Settings, list[str]]:
    """Read a file's text, however bad.

    Returns:
        The settings, and one warning for each thing that was not taken over.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return Settings(), ["The file is not JSON; all settings have their defaults."]
    if not isinstance(raw, dict):
        return Settings(), ["The file holds no settings; all have their defaults."]
    warnings: list[str] = []
    raw = _migrated(raw, migrations, warnings)
    known: dict[str, object] = {}
    for name, value in raw.items():
        if name not in _CHECKS:
            warnings.append(f"{name:.60}: there is no such setting; left out.")
            continue
        try:
            if name == "sampling":
                value = sampling_from_raw(value, warnings)
            known[name] = _CHECKS[name](name, value)
        except SettingError as error:
            warnings.append(f"{error} The default is used.")
    return dataclasses.replace(Settings(), **known), warnings  # type: ignore[arg-type]  # checked above


def sampling_from_raw(raw: object, warnings: list[str]) -> SamplingParams:
    """Sampling from JSON, each field checked alone; what is not taken is added to `warnings`."""
    if not isinstance(raw, dict):
        warnings.append("sampling: must be an object. The default is used.")
        return SamplingParams()
    params = SamplingParams()
    names = {item.name for item in dataclasses.fields(SamplingParams)}
    for name, value in raw.items():
        if name not in names:
            warnings.append(f"sampling.{name:.60}: there is no such setting; left out.")
            continue
        try:
            params = dataclasses.replace(params, **{name: value})
        except InvalidRequestError as error:
            warnings.append(f"sampling.{error} The default is used.")
    return params


def _migrated(
    raw: dict[str, object], migrations: Mapping[int, Migration], warnings: list[str]
) -> dict[str, object]:
    newest = max(migrations, default=FORMAT_VERSION - 1) + 1
    version = raw.get("version", newest)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        warnings.append(f"version: {version!r:.40} is not a version; read as {newest}.")
        version = newest
    if version > newest:
        warnings.append("The file was written by a newer Quire; what is known was taken over.")
    while version in migrations:
        raw = migrations[version](raw)
        version += 1
    return {name: value for name, value in raw.items() if name != "version"}


class SettingsStore:
    """The settings in force and their file.

    Attributes:
        path: The file.
        warnings: What was wrong with the file when it was read, in words for people.
        kept_as: Where the file is kept as it was then; None if nothing was wrong, or it could not be.
        problem: Why the newest settings are not saved; None while all goes well.
    """

    def __init__(self, path: Path, *, delay_s: float = 0.3) -> None:
        self.path = path
        self.warnings: list[str] = []
        self.kept_as: Path | None = None
        self.problem: StorageError | None = None
        self._delay_s = delay_s
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._saved_text = ""
        self._value = self._read()

    @property
    def value(self) -> Settings:
        """The settings in force."""
        return self._value

    def change(self, **fields: object) -> Settings:
        """Set fields by name, at once in `value`, a moment later in the file.

        Raises:
            SettingError: A name or a value is not allowed; nothing was changed.
        """
        for name in fields:
            if name not in _CHECKS:
                raise SettingError(name, "there is no such setting.")
        changed = dataclasses.replace(self._value, **fields)  # type: ignore[arg-type]  # checked there
        if changed != self._value:
            self._value = changed
            self._save_later()
        return changed

    def flush(self) -> None:
        """Write now what is not in the file yet; waits for the disk."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._save()

    def save_again(self) -> None:
        """Try again if they could not be saved; returns at once. To be called often."""
        if self.problem is not None:
            self._save_later()

    def _save_later(self) -> None:
        if self._timer is not None:
            return  # it will take the newest values; a new thread for each would cost more
        self._timer = threading.Timer(self._delay_s, self._save_after_delay)
        self._timer.daemon = True
        self._timer.start()

    def _save_after_delay(self) -> None:
        self._timer = None  # first: a change from here on starts another one
        self._save()

    def _save(self) -> None:
        with self._lock:
            text = settings_to_json(self._value)
            if text == self._saved_text:
                return
            try:
                write_atomically(self.path, text)
                self._saved_text = text
                self.problem = None
            except OSError as error:
                if self.problem is None:
                    logger.error("Settings could not be saved: %s", error)
                self.problem = StorageError(
                    f"The settings could not be saved in {self.path}: {error.strerror}.",
                    hint="As soon as that is mended, they are saved by themselves.",
                )

    def _read(self) -> Settings:
        try:
            with open_regular(self.path) as file:
                content = file.read()
        except FileNotFoundError:
            return Settings()
        except OSError as error:
            reason = f"The settings could not be read: {error.strerror}; all have their defaults."
            self.warnings = [reason]
            logger.warning("Settings: %s", reason)
            return Settings()
        settings, self.warnings = settings_from_json(_text_from(content))
        if self.warnings:
            self._keep_copy(content)
        for warning in self.warnings:
            logger.warning("Settings: %s", warning)
        return settings

    def _keep_copy(self, content: bytes) -> None:
        try:
            self.kept_as = keep_copy(self.path, content)
        except OSError as error:
            logger.warning("The old settings could not be kept: %s", error)


def _text_from(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return ""  # which is no JSON either


def write_atomically(path: Path, text: str) -> None:
    """Put `text` in the file so that a crash leaves either the old or the new content.

    Nobody else can read it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # In JSON the escape of half a pair (the name of a file may hold one) is that half again.
        with open(
            temporary,
            "w",
            encoding="utf-8",
            errors="backslashreplace",
            newline="\n",
            opener=private_opener,
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
