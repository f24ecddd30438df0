"""Several replies to one question: what makes them differ. Pure Python; any thread."""

import itertools
from collections.abc import Collection
from dataclasses import replace

from inference.config import MAX_SEED, SamplingParams


def variant_of(params: SamplingParams, number: int) -> SamplingParams:
    """The sampling of reply `number` of several, counted from 0: each has a seed of its own.

    Without a fixed seed the engine draws a new one for each reply anyway.
    """
    if params.seed is None or not number:
        return params
    return replace(params, seed=(params.seed + number) % (MAX_SEED + 1))


def new_variants(
    params: SamplingParams, used_seeds: Collection[int | None], count: int
) -> list[int]:
    """The first numbers for `variant_of` with seeds that no reply to the same question was made with."""
    if params.seed is None:
        return list(range(count))
    numbers = (n for n in itertools.count() if variant_of(params, n).seed not in used_seeds)
    return list(itertools.islice(numbers, count))


def why_alike(params: SamplingParams) -> str:
    """Why all replies with this sampling say the same, to go on after "because"; "" if they differ."""
    if params.is_greedy:
        return "the temperature is 0"
    if params.top_k == 1:
        return "top-k is 1"
    if params.top_p == 0.0:
        return "top-p is 0"
    if params.min_p == 1.0:
        return "min-p is 1"
    return ""
