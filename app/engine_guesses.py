"""Guessing ahead on the engine thread: the draft model in use, and which models could be one. Pure Python.

A draft model takes seconds to load, and a look into a model's file some hundredths of one. Unless a
person waits for it, both happen when no reply is in the making, and one thing at a time.
"""

import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from app.engine_like import EngineLike
from app.failures import failure_from
from app.messages import DraftChanged, DraftsFound, Event, FindDrafts, SetGuessing
from inference.errors import EngineError
from inference.metrics import ModelInfo

logger = logging.getLogger(__name__)

MAX_BESIDE = 16


class EngineGuesses:
    """How the open model guesses ahead.

    Args:
        emit: Takes each event.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self.reset()

    @property
    def has_work(self) -> bool:
        """Whether `tend` has something to do."""
        return self._wish is not None or self._is_searching

    def reset(self) -> None:
        """The model is closed, and its draft model with it."""
        self._draft: str | None = None  # in use
        self._info: ModelInfo | None = None
        self._wish: SetGuessing | None = None  # whose draft model is not loaded yet
        self._is_searching = False
        self._unseen: deque[str] = deque()
        self._matching: list[str] = []

    def take(self, engine: EngineLike | None, command: SetGuessing | FindDrafts) -> None:
        """Do what is asked, or note it for `tend`; without a model there is nobody who waits for it."""
        if engine is None:
            return
        if isinstance(command, FindDrafts):
            self._is_searching = True
            self._unseen = deque(_candidates(command))
            self._matching = []
            return
        engine.set_guess(command.guess)
        self._wish = command
        is_quick = command.draft_model in (None, self._draft)
        if is_quick or not command.can_wait:
            self._use_wished(engine)

    def tend(self, engine: EngineLike) -> None:
        """Do one thing of those that could wait."""
        if self._wish is not None:
            self._use_wished(engine)
        elif self._unseen:
            self._matching += engine.find_drafts([self._unseen.popleft()])
        elif self._is_searching:
            self._is_searching = False
            self._emit(DraftsFound(tuple(self._matching)))

    def _use_wished(self, engine: EngineLike) -> None:
        wish, self._wish = self._wish, None
        assert wish is not None, "the caller looked"
        failure = None
        if wish.draft_model != self._draft:
            try:
                self._info = engine.use_draft(wish.draft_model)
                self._draft = wish.draft_model
            except EngineError as error:
                logger.warning("A draft model cannot be used: %s", error)
                failure = failure_from(error)
        self._emit(DraftChanged(wish.change_id, self._draft, self._info, failure))


def _candidates(command: FindDrafts) -> list[str]:
    """The models to look at, each once: those that are known, then smaller ones beside the open one."""
    beside = _smaller_files_beside(Path(command.beside)) if command.beside else []
    seen = {os.path.abspath(command.beside)}
    candidates = []
    for path in (*command.paths, *beside):
        place = os.path.abspath(path)
        if place not in seen and os.path.exists(place):
            candidates.append(path)
        seen.add(place)
    return candidates


def _smaller_files_beside(model: Path) -> list[str]:
    """GGUF files in the same folder that are smaller, by name; none for a model folder.

    A larger model could not guess for a smaller one in less time than that takes itself.
    """
    try:
        if not model.is_file():
            return []
        size = model.stat().st_size
        files = sorted(path for path in model.parent.glob("*.gguf") if path.is_file())
        smaller = [str(path) for path in files if path.stat().st_size < size]
    except OSError as error:
        logger.info("The folder of the model could not be searched: %s", error.strerror)
        return []
    return smaller[:MAX_BESIDE]
