"""Which of some files are there, without waiting for a disk that does not answer. Pure Python; GUI thread."""

import os
import threading
from collections.abc import Iterable, Sequence

WAIT_S = 0.004
"""Mostly a look takes microseconds; a folder of another computer may take minutes."""


class PresentFiles:
    """Looks on threads of its own. Of what gives no answer in time, the last answer holds."""

    def __init__(self) -> None:
        self._missing: set[str] = set()
        self._looked_at: set[str] = set()  # by threads that have not come back

    def of(self, paths: Iterable[str], *, wait_s: float | None = None) -> list[str]:
        """Those of these files and folders that are there, in their order.

        Args:
            paths: What to look for.
            wait_s: Give up waiting after so long; None takes what no person notices.
        """
        wanted = list(paths)
        unseen = [path for path in wanted if path not in self._looked_at]
        self._looked_at.update(unseen)
        look = threading.Thread(target=self._look, args=(unseen,), name="files", daemon=True)
        look.start()
        look.join(WAIT_S if wait_s is None else wait_s)
        return [path for path in wanted if path not in self._missing]

    def _look(self, paths: Sequence[str]) -> None:
        for path in paths:
            if os.path.exists(path):
                self._missing.discard(path)
            else:
                self._missing.add(path)
            self._looked_at.discard(path)
