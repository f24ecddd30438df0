"""A model of eight tokens whose law is known: tables of logits, exact probabilities, and chi-square.

The logits after a text depend on its last two tokens. The law of the first tokens of a reply is worked out
here from what the settings mean, in float64, one token of history after the other, and by none of the code
under test.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from inference.config import SamplingParams

V = 8
PROMPT = (3, 1, 6)
NUM_COUNTED = 3  # first tokens of each reply

LOGITS = np.random.default_rng(4).normal(scale=1.4, size=(V, V, V)).astype(np.float32)
"""After [the token before the last, the last]."""

_TABLE = torch.from_numpy(LOGITS)
_MIN_EXPECTED = 5.0  # replies in a cell

Law = np.ndarray
Reply = tuple[int, ...]


def logits_after(before_last: int, token_ids: Sequence[int]) -> Tensor:
    """Logits after each of some tokens, (T, V)."""
    before = [before_last, *token_ids[:-1]]
    return _TABLE[before, list(token_ids)]


# ------------------------------------------------------------------ the law


def law_after(reply: Reply, params: SamplingParams) -> Law:
    """Probabilities of the token after the prompt and these tokens of the reply, (V,)."""
    text = (*PROMPT, *reply)
    logits = LOGITS[text[-2], text[-1]].astype(np.float64)
    for token_id in range(V):
        if token_id in text:
            penalty = params.repetition_penalty
            logits[token_id] *= penalty if logits[token_id] <= 0 else 1 / penalty
        count = reply.count(token_id)
        logits[token_id] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    return filtered(np.exp(logits / params.temperature), params)


def filtered(weights: Law, params: SamplingParams) -> Law:
    """What top-k, then top-p, then min-p leave of weights, with sum 1."""
    order = np.argsort(-weights, kind="stable")
    law = weights / weights.sum()
    if params.top_k:
        law = _only(law, order[: params.top_k])
    # The fewest of the likeliest that together have top_p: each before which less than that lies.
    before = np.cumsum(law[order]) - law[order]
    if params.top_p < 1:
        law = _only(law, order[before < params.top_p])
    return _only(law, np.flatnonzero(law >= params.min_p * law.max()))


def _only(law: Law, kept: Law) -> Law:
    mask = np.zeros(V)
    mask[kept] = 1.0
    kept_law: Law = law * mask / (law * mask).sum()
    return kept_law


@cache
def joint_law(params: SamplingParams) -> Law:
    """Probabilities of the first tokens of a reply, (V,) * NUM_COUNTED."""
    joint = np.zeros((V,) * NUM_COUNTED)
    for first, first_share in enumerate(law_after((), params)):
        for second, share in enumerate(law_after((first,), params)):
            joint[first, second] = first_share * share * law_after((first, second), params)
    return joint


# ------------------------------------------------------------------ is it followed?


def p_values(replies: Sequence[Reply], params: SamplingParams) -> dict[str, float]:
    """How likely replies that follow the law would be at least as far from it as these.

    Args:
        replies: The first tokens of many, NUM_COUNTED of each.
        params: How they were drawn.

    Returns:
        By what was looked at: the first token, and the first and the last two as pairs.
    """
    joint = joint_law(params)
    views: dict[str, tuple[Law, Callable[[Reply], Reply]]] = {
        "first": (joint.sum((1, 2)), lambda reply: reply[:1]),
        "pair": (joint.sum(2), lambda reply: reply[:2]),
        "later pair": (joint.sum(0), lambda reply: reply[1:]),
    }
    return {
        name: chi_square(Counter(map(part, replies)), law) for name, (law, part) in views.items()
    }


def chi_square(counts: Counter[Reply], law: Law) -> float:
    """Pearson's test of counts, by index, against a law; 0 if anything was seen that cannot be."""
    total = counts.total()
    cells = sorted((total * share, counts[index]) for index, share in np.ndenumerate(law))
    if any(seen for expected, seen in cells if expected == 0.0):
        return 0.0
    distance, num_cells = 0.0, 0
    sum_expected = sum_seen = 0.0
    for expected, seen in cells:
        sum_expected += expected
        sum_seen += seen
        if sum_expected >= _MIN_EXPECTED:  # rare ones are looked at together
            distance += (sum_seen - sum_expected) ** 2 / sum_expected
            num_cells += 1
            sum_expected = sum_seen = 0.0
    assert sum_expected == 0.0, "the largest cell is no rare one"
    return upper_tail(distance, num_cells - 1)


def upper_tail(distance: float, degrees: int) -> float:
    """Probability that a chi-square variable with so many degrees of freedom is larger."""
    half = torch.tensor([degrees / 2, distance / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
