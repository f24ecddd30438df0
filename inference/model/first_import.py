"""Makes the first import of transformers cheaper, then and later. Thread of the load."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_HEART = "transformers.modeling_utils"


@contextmanager
def quick_first_import() -> Iterator[None]:
    """Pause the garbage collector while transformers is imported for the first time.

    Importing makes 300,000 objects that live as long as the process. Searching them for garbage
    again and again takes a fifth of the import (0.5 s of CPU time). Afterwards they are taken out
    of the collector's sight: a full collection, which stops all threads and so the window, would
    otherwise take over 100 ms for the rest of the session. Nothing of a model may exist inside.
    """
    if _HEART in sys.modules:
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
