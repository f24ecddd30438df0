"""Whole replies with guesses of known quality: guessing is used where it pays, and costs nothing where it does not."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from inference.config import MAX_DRAFT_TOKENS
from inference.speculation.controller import Controller, Offer
from inference.speculation.costs import StepCosts

STARTER_MODEL = {1: 10.0, 4: 11.9, 8: 15.0, 16: 30.0}  # ms by rows, SmolLM2's shape


@dataclass
class Text:
    """A reply in which each token of a guess is right with a probability of its place."""

    rates: Sequence[float]
    seed: int
    source: str = "ngram 3-4"
    ms_per_token: float = 0.0

    def milliseconds(self, fixed: int | None = None) -> tuple[float, int]:
        """Computing it all, and the number of tokens made."""
        costs = StepCosts()
        costs.calibrate(STARTER_MODEL)
        controller = Controller(costs, fixed)
        draw = random.Random(self.seed)
        offer = Offer(self.source, MAX_DRAFT_TOKENS, self.ms_per_token)
        done, shadowed_until, ms = 0, 0, 0.0
        while done < len(self.rates):
            (length,) = controller.choose([offer])
            num_right = self._num_right(done, draw)
            accepted = min(length, num_right)
            if length:
                controller.observe(self.source, length, accepted)
            elif offer.is_free and done >= shadowed_until:
                controller.observe(self.source, MAX_DRAFT_TOKENS, num_right)
                shadowed_until = done + num_right + 1
            ms += costs.ms(1 + length) + length * self.ms_per_token
            done += accepted + 1
        return ms, done

    def _num_right(self, done: int, draw: random.Random) -> int:
        rates = self.rates[done : done + MAX_DRAFT_TOKENS]
        wrong = (place for place, rate in enumerate(rates) if draw.random() >= rate)
        return next(wrong, len(rates))

    def times_plain(self, fixed: int | None = None) -> float:
        """How many times as long as one token after the other it takes."""
        ms, num_tokens = self.milliseconds(fixed)
        return ms / (num_tokens * STARTER_MODEL[1])


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.8, 0.95, 1.0])
def test_reply_never_takes_longer_than_without_guessing(rate: float) -> None:
    times = [Text([rate] * 400, seed).times_plain() for seed in range(8)]
    assert max(times) <= 1.03
    assert mean(times) <= 1.005


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.8, 0.95])
def test_gain_is_nearly_that_of_the_best_fixed_length(rate: float) -> None:
    texts = [Text([rate] * 400, seed) for seed in range(5)]
    best = min(mean([text.times_plain(fixed) for text in texts]) for fixed in range(17))
    gain = 1 / mean([text.times_plain() for text in texts]) - 1
    assert gain >= 0.9 * (1 / best - 1)


@pytest.mark.parametrize("rate", [0.8, 0.9, 0.95])
def test_text_that_stops_repeating_costs_little(rate: float) -> None:
    lost = []
    for seed in range(8):
        before, num_before = Text([rate] * 200, seed).milliseconds()
        both, num_both = Text([rate] * 200 + [0.0] * 300, seed).milliseconds()
        lost.append((both - before) / ((num_both - num_before) * STARTER_MODEL[1]))
    assert mean(lost) <= 1.03


def test_text_that_begins_to_repeat_is_soon_guessed() -> None:
    times = [Text([0.0] * 200 + [0.95] * 200, seed).times_plain() for seed in range(8)]
    # Half at full cost, half at the best fixed length's 0.22.
    assert mean(times) <= 0.5 + 0.5 * 0.25


def drafted(rate: float, seed: int) -> Text:
    return Text([rate] * 300, seed, "draft", ms_per_token=3.5)


def test_good_draft_model_pays() -> None:
    assert mean([drafted(0.7, seed).times_plain() for seed in range(20)]) <= 0.92
    assert mean([drafted(0.85, seed).times_plain() for seed in range(20)]) <= 0.77


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.3, 0.4])
def test_bad_draft_model_is_soon_off(rate: float) -> None:
    assert max(drafted(rate, seed).times_plain() for seed in range(20)) <= 1.03
