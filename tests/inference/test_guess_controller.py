"""Guessing is chosen where it pays, by what it costs and how often guesses are right."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from inference.config import MAX_DRAFT_TOKENS
from inference.speculation.acceptance import PRIORS, acceptance_of
from inference.speculation.base import Proposal
from inference.speculation.controller import Controller, Offer
from inference.speculation.costs import StepCosts
from inference.speculation.ngram import SOURCES
from inference.speculation.shadow import Outcome, Shadow

STARTER_MODEL = {1: 10.0, 4: 11.9, 8: 15.0, 16: 30.0}  # ms by rows, SmolLM2's shape


def costs_of(measured: dict[int, float]) -> StepCosts:
    costs = StepCosts()
    costs.calibrate(measured)
    return costs


def controller_for(measured: dict[int, float] | None = None) -> Controller:
    return Controller(costs_of(measured or STARTER_MODEL))


def teach(controller: Controller, source: str, num_right: int, num_tested: int) -> None:
    for _ in range(40):
        controller.observe(source, num_tested, num_right)


# ------------------------------------------------------------------------------ acceptance


@pytest.mark.parametrize("source", sorted(PRIORS))
def test_source_that_was_never_heard_has_its_prior(source: str) -> None:
    rate = PRIORS[source]
    expected = [rate, rate**2, rate**3]
    assert acceptance_of(source).survival(3) == pytest.approx(expected)


def test_every_kind_of_ngram_has_a_prior() -> None:
    assert set(PRIORS) == {*SOURCES, "draft"}
    assert acceptance_of("another").survival(1) == [0.5]


def test_first_outcomes_move_the_rate_by_their_share() -> None:
    acceptance = acceptance_of("draft")
    acceptance.observe(2, 1)
    # Of the source (1 * .9 right, 1.9 tested), with 3 tokens of .6; of each position 1 tested, with 8 of that.
    rate = (0.9 + 3 * 0.6) / (1.9 + 3)
    first, second = (1 + 8 * rate) / 9, (8 * rate) / 9
    assert acceptance.survival(3) == pytest.approx([first, first * second, first * second * rate])


def test_tokens_behind_a_wrong_one_are_no_trials() -> None:
    one, other = acceptance_of("draft"), acceptance_of("draft")
    one.observe(16, 1)
    other.observe(2, 1)
    assert one.survival(16) == other.survival(16)


def test_position_has_its_own_rate() -> None:
    acceptance = acceptance_of("draft")
    for _ in range(60):
        acceptance.observe(4, 2)
    first, second, third, _ = acceptance.survival(4)
    assert first > 0.8
    assert second / first > 0.8
    assert third / second < 0.4


@pytest.mark.parametrize(("before", "after"), [(8, 0), (0, 8)])
def test_other_text_is_noticed_within_a_few_guesses(before: int, after: int) -> None:
    acceptance = acceptance_of("ngram 3-4")
    for _ in range(50):
        acceptance.observe(8, before)
    (old,) = acceptance.survival(1)
    for _ in range(10):
        acceptance.observe(8, after)
    (new,) = acceptance.survival(1)
    assert min(old, new) < 0.4
    assert max(old, new) > 0.75


# ------------------------------------------------------------------------------ choosing


def test_nothing_offered_gives_no_guess() -> None:
    controller = controller_for()
    assert controller.choose([]) == []
    assert controller.choose([None, None]) == [0, 0]
    assert not controller.is_paying


def test_length_with_most_tokens_per_millisecond_is_chosen() -> None:
    """Always by the definition: every length is tried by hand."""
    for source, rate in PRIORS.items():
        costs = costs_of(STARTER_MODEL)
        rates = [
            sum(rate**i for i in range(length + 1)) / costs.ms(1 + length) for length in range(17)
        ]
        best = max(range(17), key=lambda length: rates[length])
        assert Controller(costs).choose([Offer(source, 16)]) == [best]
        assert best > 0


def test_cheap_steps_behind_a_dear_one_are_found() -> None:
    """The second row costs much and the next six nothing: one token more never pays, seven do."""
    controller = controller_for({1: 10.0, 2: 19.5, 8: 19.5, 16: 80.0})
    assert controller.choose([Offer("ngram 9+", 1)]) == [0]
    assert controller.choose([Offer("ngram 9+", 16)]) == [7]


def test_gain_below_three_percent_is_left() -> None:
    offers = [Offer("ngram 3-4", 1)]  # 1.5 tokens
    assert controller_for({1: 10.0, 2: 15.0 / 1.02}).choose(offers) == [0]
    assert controller_for({1: 10.0, 2: 15.0 / 1.04}).choose(offers) == [1]


def test_making_a_guess_is_a_cost() -> None:
    measured = {1: 10.0, 2: 10.0, 16: 10.0}
    assert controller_for(measured).choose([Offer("draft", 1)]) == [1]
    assert controller_for(measured).choose([Offer("draft", 1, ms_per_token=5.5)]) == [1]
    assert controller_for(measured).choose([Offer("draft", 1, ms_per_token=5.9)]) == [0]
    assert controller_for(measured).choose([Offer("draft", 1, begin_ms=5.9)]) == [0]
    # What comes before the first token is paid once: with two, 1.96 tokens for 15.9 ms.
    assert controller_for(measured).choose([Offer("draft", 2, begin_ms=5.9)]) == [2]


def test_sequences_share_the_rows_and_the_surer_gets_more() -> None:
    """Eight rows are cheap: four sequences leave four, and the likeliest tokens get them."""
    controller = controller_for({1: 10.0, 8: 10.5, 9: 30.0, 16: 40.0})
    offers = [Offer("ngram 2", 16), None, Offer("ngram 9+", 16), Offer("ngram 3-4", 16)]
    # Survival: .35 .12 | .8 .64 .51 .41 .33 | .5 .25
    assert controller.choose(offers) == [0, 0, 3, 1]


def test_certain_tokens_of_one_sequence_stay_in_order() -> None:
    controller = controller_for()
    teach(controller, "ngram 9+", 16, 16)
    lengths = controller.choose([Offer("ngram 9+", 3), Offer("ngram 9+", 2)])
    assert lengths == [3, 2]


def test_nothing_is_guessed_where_rows_cost_as_much_as_steps() -> None:
    controller = controller_for({1: 10.0, 2: 20.0, 4: 40.0, 8: 80.0, 16: 160.0})
    teach(controller, "ngram 9+", 16, 16)
    assert controller.choose([Offer("ngram 9+", 16)]) == [0]
    assert not controller.is_paying


def test_is_paying_tells_of_the_last_offer() -> None:
    controller = controller_for()
    controller.choose([Offer("ngram 9+", 8)])
    assert controller.is_paying
    controller.choose([None])
    assert controller.is_paying
    teach(controller, "ngram 9+", 0, 8)
    controller.choose([Offer("ngram 9+", 8)])
    assert not controller.is_paying


def test_fixed_length_is_taken_whether_it_pays_or_not() -> None:
    controller = Controller(costs_of({1: 10.0, 2: 100.0}), fixed=4)
    teach(controller, "draft", 0, 4)
    offers = [Offer("draft", 16, ms_per_token=50.0), None, Offer("ngram 2", 3)]
    assert controller.choose(offers) == [4, 0, 3]
    assert controller.is_paying


# ------------------------------------------------------------------------------ trying again


def steps_with_guesses(controller: Controller, num_steps: int, *, is_right: bool) -> list[int]:
    """The steps at which a draft model was asked, each time being right or wrong."""
    asked = []
    for step in range(num_steps):
        (length,) = controller.choose([Offer("draft", 8, ms_per_token=3.5)])
        if length:
            asked.append(step)
            controller.observe("draft", length, length if is_right else 0)
    return asked


def test_draft_model_that_is_wrong_is_tried_ever_more_seldom() -> None:
    controller = controller_for()
    teach(controller, "draft", 0, 4)
    asked = steps_with_guesses(controller, 2500, is_right=False)
    assert asked == [32, 97, 226, 483, 996, 1509, 2022]
    assert not controller.is_paying


def test_try_is_short() -> None:
    controller = controller_for()
    teach(controller, "draft", 0, 4)
    chosen = [controller.choose([Offer("draft", 8, ms_per_token=3.5)])[0] for _ in range(33)]
    assert chosen == [0] * 32 + [2]


def test_only_one_sequence_tries() -> None:
    controller = controller_for()
    teach(controller, "draft", 0, 4)
    offers = [None, Offer("draft", 8, ms_per_token=3.5), Offer("draft", 1, ms_per_token=3.5)]
    chosen = [controller.choose(offers) for _ in range(33)]
    assert chosen[31:] == [[0, 0, 0], [0, 2, 0]]


def test_draft_model_that_became_right_is_on_again_after_a_few_tries() -> None:
    controller = controller_for()
    teach(controller, "draft", 0, 4)
    asked = steps_with_guesses(controller, 40, is_right=True)
    assert asked == list(range(32, 40))
    assert controller.is_paying


def test_waits_begin_anew_when_it_paid() -> None:
    controller = controller_for()
    teach(controller, "draft", 0, 4)
    steps_with_guesses(controller, 600, is_right=False)
    teach(controller, "draft", 4, 4)
    assert steps_with_guesses(controller, 3, is_right=True) == [0, 1, 2]
    teach(controller, "draft", 0, 4)
    assert steps_with_guesses(controller, 60, is_right=False) == [32]


def test_guess_that_costs_nothing_to_make_is_never_forced() -> None:
    controller = controller_for()
    teach(controller, "ngram 2", 0, 4)
    assert all(controller.choose([Offer("ngram 2", 8)]) == [0] for _ in range(600))


# ------------------------------------------------------------------------------ shadows


@pytest.mark.parametrize(
    ("came", "outcomes"),
    [
        ([9], [Outcome("draft", 1, 0)]),
        ([1, 9, 3], [None, Outcome("draft", 2, 1), None]),
        ([1, 2, 3], [None, None, Outcome("draft", 3, 3)]),
        ([1, 2, 3, 4], [None, None, Outcome("draft", 3, 3), None]),
        ([1, 2, 9], [None, None, Outcome("draft", 3, 2)]),
    ],
)
def test_shadow_tells_once_how_far_a_guess_was_right(
    came: list[int], outcomes: list[Outcome | None]
) -> None:
    shadow = Shadow(Proposal((1, 2, 3), "draft"))
    assert [shadow.feed(token_id) for token_id in came] == outcomes
    assert shadow.is_over
    assert shadow.end() is None


def test_shadow_that_ends_early_tells_what_was_compared() -> None:
    shadow = Shadow(Proposal((1, 2, 3), "draft"))
    assert shadow.feed(1) is None
    assert not shadow.is_over
    assert shadow.end() == Outcome("draft", 1, 1)
    assert shadow.end() is None
    assert shadow.feed(2) is None


def test_shadow_that_was_never_fed_tells_nothing() -> None:
    shadow = Shadow(Proposal((1,), "draft"))
    assert shadow.end() is None
    assert shadow.is_over


# ------------------------------------------------------------------------------ whole replies


@dataclass
class Text:
    """A reply in which each token of a guess is right with a probability of its place."""

    rates: Sequence[float]
    seed: int
    source: str = "ngram 3-4"
    ms_per_token: float = 0.0

    def milliseconds(self, fixed: int | None = None) -> tuple[float, int]:
        """Computing it all, and the number of tokens made."""
        costs = costs_of(STARTER_MODEL)
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
