"""Guessing ahead on a device, as `gpu_check` measures it: what verifying costs, and what guesses bring."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from inference.config import GuessName
from inference.engine import Engine
from inference.model.step import Chunk
from tests.benchmarks.filled_blocks import fill_blocks
from tests.benchmarks.gpu_models import OpenModel, Result, seconds
from tests.benchmarks.guess_pairs import EndedEarlyError, Pair, measure_pairs, sum_up
from tests.benchmarks.guess_works import WORKS, Work, chat_prompt

ROWS = (1, 2, 4, 8, 16)
DEPTH = 1024  # of what is verified


def check_speculation(
    path: Path, device: torch.device, *, draft: Path | None, is_quick: bool, **config: object
) -> Result:
    """Plain decoding against guesses from the text (on an edit) and by a draft model (on new code).

    Args:
        path: The model.
        device: Where both compute.
        draft: A smaller model of the same vocabulary; None leaves its part out.
        is_quick: Small sizes, to see that it runs.
        config: Of the engine.

    Raises:
        EngineError: A model cannot be used.
    """
    opened = OpenModel(path, device, **config)
    try:
        engine = Engine(opened.parts)
        edit, code = (_sized(WORKS[name][0], is_quick=is_quick) for name in ("edit", "code"))
        rounds = 1 if is_quick else 3
        found: Result = {
            **measure_guesses(engine, edit, "ngram", rounds=rounds),
            **measure_guesses(engine, edit, "auto", rounds=rounds),
        }
        if draft is not None:
            engine.use_draft(draft)
            found |= measure_guesses(engine, code, "draft", rounds=rounds)
            found |= measure_guesses(engine, code, "auto", rounds=rounds)
            engine.use_draft(None)
        depth = 64 if is_quick else DEPTH
        found |= measure_verifying(opened, depth, times=1 if is_quick else 20)
    finally:
        opened.close()
    return found


def measure_guesses(engine: Engine, work: Work, guess: GuessName, *, rounds: int) -> Result:
    """One work with guesses and without, in turns."""
    name = f"{work.name}, {guess}"
    try:
        pairs = measure_pairs(engine, work, rounds=rounds, guess=guess)
    except EndedEarlyError as error:
        return {name: str(error)}
    row = sum_up(pairs)
    kept = {"off_tps": "plain tok/s", "on_tps": "tok/s", "ratio": "speed-up"}
    counts = ("drafted_tokens", "accepted_tokens", "verify_steps", "tokens")
    return {
        **{f"{name}, {word}": row[key] for key, word in kept.items()},
        **{f"{name}, {key.replace('_', ' ')}": row[key] for key in counts},
        f"{name}, share of replies alike": statistics.median(map(_alike, pairs)),
    }


def measure_verifying(opened: OpenModel, depth: int, *, times: int) -> Result:
    """Milliseconds of a step with so many rows of one chat, all their logits chosen from; and against one row.

    All blocks are overwritten.
    """
    fill_blocks(opened.kv)
    table = range(-(-(depth + max(ROWS)) // opened.kv.block_size))
    found: Result = {}
    took = {rows: _verify_seconds(opened, table, depth, rows, times=times) for rows in ROWS}
    for rows, each in took.items():
        found[f"verify {rows} ms"] = 1000 * each
        found[f"verify {rows} against one"] = each / took[1]
    return found


def _verify_seconds(
    opened: OpenModel, table: Sequence[int], depth: int, num_rows: int, *, times: int
) -> float:
    ids = [5 + row for row in range(num_rows)]
    chunk = Chunk(ids, depth, table, needs_logits=True, needs_all_logits=True)
    return seconds(
        lambda: opened.runner.run([chunk]).argmax(-1).tolist(), opened.device, times=times
    )


def _sized(work: Work, *, is_quick: bool) -> Work:
    return replace(work, max_tokens=40, prompt=chat_prompt, wanted=None) if is_quick else work


def _alike(pair: Pair) -> float:
    """The share of the longer reply that both begin with: on a GPU a row's values may depend on its company."""
    off, on = pair.off.token_ids, pair.on.token_ids
    both = enumerate(zip(off, on, strict=False))
    alike = next((index for index, (one, other) in both if one != other), min(len(off), len(on)))
    return alike / max(len(off), len(on))
