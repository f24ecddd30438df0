"""Which model is open, and how it is to be opened. Pure Python, GUI thread."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

from app.announcer import Announcer
from app.engine_setup import engine_config, kv_scheme_of, with_kv_scheme
from app.guess_desk import GuessDesk, GuessEvent
from app.messages import (
    Command,
    DraftChanged,
    DraftsFound,
    LoadModel,
    ModelFailed,
    ModelLoading,
    ModelReady,
    ModelUnloaded,
    SetCacheBudgets,
)
from app.session_changes import (
    BudgetRefused,
    ModelChanged,
    ModelRefused,
    ModelState,
    SchemeRefused,
)
from app.settings import MAX_RECENT_MODELS, SettingsStore
from inference.config import EngineConfig, KvSchemeName
from inference.metrics import ModelInfo

ModelEvent = ModelLoading | ModelReady | ModelFailed | ModelUnloaded | GuessEvent


class ModelDesk:
    """The model of the window.

    Args:
        settings: Remember models, budgets, and schemes per model.
        post: Sends a command to the engine thread.
        announcer: Tells the listeners.
        kv_dir: Where blocks are kept on disk; None keeps none.
        changed: Called after the listeners were told of another state.

    Attributes:
        state: Which model is there, or on its way.
        guesses: How it guesses ahead.
    """

    def __init__(
        self,
        settings: SettingsStore,
        *,
        post: Callable[[Command], None],
        announcer: Announcer,
        kv_dir: Path | None,
        changed: Callable[[], None],
    ) -> None:
        self.state = ModelState()
        self.guesses = GuessDesk(settings, post=post, announcer=announcer)
        self._settings = settings
        self._post = post
        self._announcer = announcer
        self._kv_dir = kv_dir
        self._changed = changed
        self._config: EngineConfig | None = None  # of the newest load
        # While a model is opened with another budget of the device: what was set before.
        self._before: tuple[int | None] | None = None
        self._back = ""  # while a model is opened: path of the one that was open before

    def load(self, path: str) -> None:
        """Open a model; the one that is open is closed, its replies end as stopped.

        If it cannot be opened, the one before stays, or is opened again: ModelRefused tells so.
        """
        if path != self.state.path:
            self._before = None
        if self.state.kind == "ready":
            self._back = self.state.path
        if self._back == path:
            self._back = ""
        self._config = engine_config(self._settings.value, path, kv_dir=self._kv_dir)
        self._post(LoadModel(path, self._config))
        self._set(ModelState("loading", path))

    def set_kv_scheme(self, name: str) -> None:
        """Store keys and values of the model that is open in this way; it is opened again.

        Raises:
            SettingError: There is no such scheme.
        """
        path = self.state.path
        if not path or name == kv_scheme_of(self._settings.value, path):
            return
        scheme = cast(KvSchemeName, name)  # the settings check it
        self._settings.change(kv_schemes=with_kv_scheme(self._settings.value, path, scheme))
        self.load(path)

    def set_cache_budgets(
        self, device_bytes: int | None, ram_bytes: int | None, disk_bytes: int | None
    ) -> None:
        """Set how much may be kept of what models have read; None chooses.

        Only another budget of the device has the model opened again.

        Raises:
            SettingError: A budget is out of range; nothing was changed.
        """
        before = self._settings.value.kv_cache_bytes
        self._settings.change(
            kv_cache_bytes=device_bytes, ram_cache_bytes=ram_bytes, disk_cache_bytes=disk_bytes
        )
        self._post(SetCacheBudgets(ram_bytes, disk_bytes))
        if device_bytes != before and self.state.path:
            self._before = self._before or (before,)
            self.load(self.state.path)

    def handle(self, event: ModelEvent) -> None:
        """Take one event of the engine thread about models."""
        if isinstance(event, DraftsFound | DraftChanged):
            self.guesses.handle(event)
            return
        if isinstance(event, ModelUnloaded):
            if self.state.kind != "loading":
                self._set(ModelState())
            return
        path = event.info.path if isinstance(event, ModelReady) else event.path
        config = None if isinstance(event, ModelLoading) else event.config
        if path != self.state.path or config not in (None, self._config):
            return  # from a load that a newer one has replaced
        match event:
            case ModelLoading():
                self._set(ModelState("loading", path, event.stage, event.fraction))
            case ModelReady():
                self._opened(event.info)
            case ModelFailed():
                self._failed(event)

    def _opened(self, info: ModelInfo) -> None:
        self._before, self._back = None, ""
        self._set(ModelState("ready", info.path, info=info))
        self._remember(info.path)
        is_guessing = self._config is None or self._config.guess != "off"
        self.guesses.model_opened(info.path, is_guessing=is_guessing)

    def _failed(self, event: ModelFailed) -> None:
        general, before = self._settings.value, self._before
        self._before = None
        if event.kept is not None:
            self._config = event.kept.config
            self._announcer.notify(ModelRefused(event.path, event.failure))
            self._opened(event.kept.info)
            return
        if event.is_scheme_refused and kv_scheme_of(general, event.path) != "auto":
            self._settings.change(kv_schemes=with_kv_scheme(general, event.path, "auto"))
            self.load(event.path)
            self._announcer.notify(SchemeRefused(event.failure.message))
        elif event.failure.kind == "memory" and before is not None:
            self._settings.change(kv_cache_bytes=before[0])
            self.load(event.path)
            self._announcer.notify(BudgetRefused(event.failure.message))
        elif self._back:
            back, self._back = self._back, ""
            self._announcer.notify(ModelRefused(event.path, event.failure))
            self.load(back)
        else:
            self._set(ModelState("failed", event.path, failure=event.failure))

    def _set(self, state: ModelState) -> None:
        self.state = state
        if state.kind != "ready":
            self.guesses.model_left()
        self._announcer.notify(ModelChanged(state))
        self._changed()

    def _remember(self, path: str) -> None:
        others = [known for known in self._settings.value.recent_models if known != path]
        self._settings.change(model_path=path, recent_models=(path, *others)[:MAX_RECENT_MODELS])
