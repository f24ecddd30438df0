"""Measures what steps of few rows take, on this machine and model. Engine thread, before the first request."""

import time
from collections.abc import Callable

from inference.config import MAX_DRAFT_TOKENS
from inference.kv_cache.manager import KvCacheManager
from inference.model.base import Runner
from inference.model.step import Chunk

USUAL_DEAREST = 0.5
BUDGET_MS = 150.0
"""For all of it: a large model is measured at few numbers of rows only, and then while it replies."""
_LEAST = frozenset((1, 4))
"""However long that takes: what a further row costs is what guessing depends on."""

_ROWS = (1, 4, 8, 2, 16, 9, 6, 12, 3)  # what matters most comes first
_ROUNDS = 3


def measure_steps(
    runner: Runner,
    kv: KvCacheManager,
    *,
    clock: Callable[[], float] = time.perf_counter,
    budget_ms: float = BUDGET_MS,
    dearest: float = USUAL_DEAREST,
) -> dict[int, float]:
    """Run steps of one sequence with 1 to 16 rows, all with logits, in blocks that nobody uses.

    Args:
        runner: The model; no request may be running.
        kv: Lends the blocks; nothing that is cached is lost for them.
        clock: Seconds, never falling.
        budget_ms: No step is begun after so long, but for one of each of `_LEAST`.
        dearest: What a further row costs at most, as a part of the first: all of it with experts, as each
            row may have others.

    Returns:
        Milliseconds, the least of some rounds, by number of rows; empty if there is no room. What other
        programs took of a step is no part of its cost: no further row is believed to cost more than
        `dearest`. What is really dearer shows while guesses are verified.
    """
    began = clock()
    table: list[int] = []
    if kv.counts().free < kv.blocks_for(MAX_DRAFT_TOKENS) or not kv.grow(table, MAX_DRAFT_TOKENS):
        return {}
    found: dict[int, float] = {}
    try:
        width = _run(runner, table, [0])  # the first step of all also sets things up
        for num_rows in _ROWS * _ROUNDS:
            if (clock() - began) * 1000 > budget_ms and found.keys() >= _LEAST:
                break
            before = clock()
            # Tokens that differ: a mixture of experts computes equal ones by the same experts, for less.
            _run(runner, table, [row * width // num_rows for row in range(num_rows)])
            took_ms = (clock() - before) * 1000
            found[num_rows] = min(took_ms, found.get(num_rows, took_ms))
    finally:
        touched = list(table)
        kv.release(table)
        runner.kv.discard(touched)  # a chat that is never begun takes no memory
    return {
        num_rows: min(ms, found[1] * (1 + (num_rows - 1) * dearest))
        for num_rows, ms in found.items()
    }


def _run(runner: Runner, table: list[int], token_ids: list[int]) -> int:
    """Compute tokens, and tell how many logits there are of each."""
    logits = runner.run([Chunk(token_ids, 0, table, True, needs_all_logits=True)])
    float(logits[-1, 0])  # it is looked at, as a device computes later than it is told to
    return logits.shape[1]
