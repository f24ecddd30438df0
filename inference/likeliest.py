"""Finds the likeliest tokens of one row of logits, which is all that most samplers have to look at. Any thread.

To read 50,000 logits that other cores have just written takes a tenth of a millisecond each time, so our kernels
look at them once and do all of it. Without the kernels numpy does the same.
"""

import math

import numpy as np
import numpy.typing as npt

from inference.errors import ComputeError
from inference.kernels.library import NOT_FINITE, load_kernels
from inference.kernels.structures import Filters

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


def likeliest(logits: Floats, count: int) -> Ids:
    """Some tokens that include the `count` highest and all equals of the lowest of those, in order of ids.

    Args:
        logits: (V,); not changed.
        count: At least 1; all V if it is not below V.

    Raises:
        ComputeError: A logit is NaN or infinite.
    """
    if count < len(logits) and logits.flags.c_contiguous and (kernels := load_kernels()):
        ids = np.empty(2 * count + 64, dtype=np.int32)
        size, room = len(logits), len(ids)
        found = kernels.likeliest(logits.ctypes.data, size, count, ids.ctypes.data, room)
        if found == NOT_FINITE:
            raise _not_finite()
        if found <= room:  # else very many are equal
            return ids[:found].astype(np.int64)
    check_finite(logits)
    return likeliest_by_numpy(logits, count)


def draw_by_kernels(logits: Floats, filters: Filters, number: float) -> int | None:
    """Draw a token as `sampling` does; None where that cannot be left to our kernels.

    Args:
        logits: (V,); not changed.
        filters: What may be drawn.
        number: Uniform in [0, 1).

    Raises:
        ComputeError: A logit is NaN or infinite.
    """
    if not (0 < filters.top_k < len(logits) and logits.flags.c_contiguous):
        return None
    kernels = load_kernels()
    if kernels is None:
        return None
    token_id = kernels.draw(logits.ctypes.data, len(logits), filters, number)
    if token_id == NOT_FINITE:
        raise _not_finite()
    return token_id


def surest(logits: Floats) -> tuple[int, float]:
    """The likeliest token, of equals the lowest id, and its probability in the softmax of all.

    Our kernels pass over tokens that are less likely by e^20: of a million, 0.2 % of that probability at most.
    Torch would do this with all its threads: to wake them takes longer than the work, and threads that do not
    sleep at once hold up the next step.

    Args:
        logits: (V,); not changed.

    Raises:
        ComputeError: A logit is NaN or infinite.
    """
    if logits.flags.c_contiguous and (kernels := load_kernels()):
        token_id, probability = kernels.surest(logits.ctypes.data, len(logits))
        if token_id == NOT_FINITE:
            raise _not_finite()
        return token_id, probability
    check_finite(logits)
    token_id = int(logits.argmax())
    with np.errstate(over="ignore"):  # the weight of what is that far below is 0
        return token_id, 1.0 / float(np.exp(logits - logits[token_id]).sum())


def likeliest_by_numpy(logits: Floats, count: int) -> Ids:
    """The same of finite logits, without our kernels.

    The vocabulary is cut into more than `count` rows. The count-th highest of the rows' maxima is a
    bound that at least `count` tokens reach, each in its own row, and that few others do. This is
    several times faster than a partition of the whole vocabulary.
    """
    if count >= len(logits):
        return np.arange(len(logits))
    width = max(1, min(128, len(logits) // (4 * count)))
    maxima = logits[: len(logits) // width * width].reshape(-1, width).max(axis=1)
    return np.flatnonzero(logits >= np.partition(maxima, -count)[-count])


def check_finite(logits: Floats) -> None:
    """Look whether all are numbers.

    Raises:
        ComputeError: A logit is NaN or infinite.
    """
    # A NaN is both the highest and the lowest.
    if not (math.isfinite(logits.max()) and math.isfinite(logits.min())):
        raise _not_finite()


def _not_finite() -> ComputeError:
    return ComputeError(
        "The model computed values that are not numbers.",
        hint="Its file may be damaged: download it again, or choose another model.",
    )
