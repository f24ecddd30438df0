"""How the open model guesses ahead, and with which draft model. Pure Python, GUI thread.

The draft model is loaded after the model itself is open: if it is broken or gone, that is told, and
the chat goes on without it.
"""

import os
from collections.abc import Callable
from dataclasses import replace

from app.announcer import Announcer
from app.engine_setup import draft_model_of, with_draft_model
from app.messages import Command, DraftChanged, DraftsFound, Failure, FindDrafts, SetGuessing
from app.session_changes import DraftRefused, GuessingChanged, GuessState
from app.settings import SettingsStore

GuessEvent = DraftsFound | DraftChanged

GONE = Failure("model_file", "The file is not where it was.")


class GuessDesk:
    """Guessing ahead in the window.

    Args:
        settings: Remember whether it is on, and draft models per model.
        post: Sends a command to the engine thread.
        announcer: Tells the listeners.

    Attributes:
        state: How the open model guesses.
        starter: Path of the starter model, which is installed without ever having been opened; "" if
            there is none.
    """

    def __init__(
        self, settings: SettingsStore, *, post: Callable[[Command], None], announcer: Announcer
    ) -> None:
        self.state = GuessState(settings.value.guess_ahead)
        self.starter = ""
        self._told = self.state
        self._settings = settings
        self._post = post
        self._announcer = announcer
        self._model = ""  # path of the open one
        self._in_use = ""  # path of the draft model, as the engine said last
        self._change_id = 0

    def model_opened(self, path: str, *, is_guessing: bool) -> None:
        """A model is open, without a draft model; `is_guessing` is how it was opened."""
        general = self._settings.value
        self._model, self._in_use = path, ""
        self.state = GuessState(general.guess_ahead, draft_model_of(general, path))
        draft = self.state.draft_path
        if draft and not os.path.exists(draft):
            self._refuse(draft, GONE, instead="")
        if (self.state.draft_path and self.state.is_on) or is_guessing != self.state.is_on:
            self._tell_engine(can_wait=True)
        known = dict.fromkeys((*general.recent_models, self.starter))
        others = tuple(known_path for known_path in known if known_path not in ("", path))
        self._post(FindDrafts(others, beside=path))
        self._announce()

    def model_left(self) -> None:
        """No model is open any more, or another one is being opened."""
        if self._model:
            self._model = ""
            self.state = GuessState(self._settings.value.guess_ahead)
            self._announce()

    def switch(self, is_on: bool) -> None:
        """Guess ahead or not, from now on; the draft model's memory is given back while it is off."""
        if is_on == self.state.is_on:
            return
        self._settings.change(guess_ahead=is_on)
        self.state = replace(self.state, is_on=is_on)
        if self._model:
            self._tell_engine(can_wait=True)
        self._announce()

    def choose_draft(self, path: str) -> None:
        """Guess ahead with this model for the open one; "" is none. Who chooses one wants guessing on."""
        if not self._model or (path == self.state.draft_path and self.state.is_on):
            return
        self._settings.change(guess_ahead=self.state.is_on or bool(path))
        self._keep_choice(path)
        self.state = replace(self.state, is_on=self._settings.value.guess_ahead)
        self._tell_engine(can_wait=False)
        self._announce()

    def handle(self, event: GuessEvent) -> None:
        """Take one event of the engine thread; those of a model that is gone are ignored."""
        if not self._model:
            return
        if isinstance(event, DraftsFound):
            self.state = replace(self.state, matching=event.paths)
        elif event.change_id == self._change_id:
            self._in_use = event.path or ""
            self.state = replace(self.state, is_loading=False, draft=event.info)
            if event.failure is not None:
                self._refuse(self.state.draft_path, event.failure, instead=self._in_use)
        self._announce()

    def _tell_engine(self, *, can_wait: bool) -> None:
        state = self.state
        draft = state.draft_path if state.is_on else ""
        self._change_id += 1
        guess = "auto" if state.is_on else "off"
        self._post(SetGuessing(self._change_id, guess, draft or None, can_wait))  # type: ignore[arg-type]  # a GuessName
        self.state = replace(state, is_loading=bool(draft) and draft != self._in_use)

    def _refuse(self, path: str, failure: Failure, *, instead: str) -> None:
        self._keep_choice(instead)
        self._announcer.notify(DraftRefused(path, failure))

    def _keep_choice(self, path: str) -> None:
        pairs = with_draft_model(self._settings.value, self._model, path)
        self._settings.change(draft_models=pairs)
        self.state = replace(self.state, draft_path=path)

    def _announce(self) -> None:
        if self.state != self._told:
            self._told = self.state
            self._announcer.notify(GuessingChanged(self.state))
