"""Guessing is chosen where it pays, by what it costs and how often guesses are right."""

import pytest

from inference.speculation.acceptance import PRIORS
from inference.speculation.controller import Controller, Offer
from inference.speculation.costs import StepCosts

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
    # 1.8 tokens in 10.5 ms, then 2.44 in 20, at last 4.16 in 20
    controller = controller_for({1: 10.0, 2: 10.5, 3: 20.0, 8: 20.0, 16: 80.0})
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


def test_rate_is_that_of_the_best_length_of_at_least_one() -> None:
    controller = controller_for({1: 10.0, 2: 12.0, 3: 14.0, 4: 40.0, 16: 160.0})
    # 1.5 tokens in 12 ms, 1.75 in 14, and far fewer for more rows
    assert controller.rate(Offer("ngram 3-4", 1)) == pytest.approx(1.5 / 12)
    assert controller.rate(Offer("ngram 9+", 16)) == pytest.approx(2.44 / 14)
    assert controller.rate(Offer("draft", 2, ms_per_token=9.0, begin_ms=2.0)) == pytest.approx(
        1.6 / 23
    )


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


def test_draft_model_that_became_right_is_on_again_after_two_tries() -> None:
    controller = controller_for()
    teach(controller, "draft", 0, 4)
    assert steps_with_guesses(controller, 34, is_right=True) == [32, 33]
    assert not controller.is_paying
    assert steps_with_guesses(controller, 1, is_right=True) == [0]
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
