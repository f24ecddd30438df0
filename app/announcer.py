"""Tells listeners of changes, and of what the store refused. Pure Python; GUI thread."""

import logging
from collections.abc import Callable
from typing import TypeVar

from app.errors import StorageError
from app.session_changes import SessionChange, StorageFailed

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Announcer:
    """The listeners of one session."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[SessionChange], None]] = []

    def subscribe(self, listener: Callable[[SessionChange], None]) -> Callable[[], None]:
        """Tell `listener` of every change from now on; call the result to end that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def notify(self, change: SessionChange) -> None:
        """Tell every listener, in the order in which they came."""
        for listener in list(self._listeners):
            listener(change)

    def storage_failed(self, error: StorageError) -> None:
        """Tell that something could not be stored or read."""
        logger.error("Storage failed: %s", error)
        self.notify(StorageFailed(str(error), error.hint))

    def stored(self, action: Callable[[], T]) -> T | None:
        """What `action` gives; None, and the listeners were told, when the store refused."""
        try:
            return action()
        except StorageError as error:
            self.storage_failed(error)
            return None

    def done(self, action: Callable[[], object]) -> bool:
        """Whether `action` was done; if the store refused, the listeners were told."""
        try:
            action()
        except StorageError as error:
            self.storage_failed(error)
            return False
        return True


class OnceTold:
    """Tells of a problem that is there for a while: once, until it is gone."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer
        self._is_told = False

    def note(self, problem: StorageError | None) -> None:
        """What the problem is now; None while all goes well. To be called often."""
        if problem is not None and not self._is_told:
            self._announcer.storage_failed(problem)
        self._is_told = problem is not None
