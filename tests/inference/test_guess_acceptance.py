"""Guesses are counted by who made them and how far they were right."""

import pytest

from inference.speculation import sureness
from inference.speculation.acceptance import PRIORS, acceptance_of
from inference.speculation.base import Proposal
from inference.speculation.ngram import SOURCES
from inference.speculation.shadow import Outcome, Shadow


@pytest.mark.parametrize("source", sorted(PRIORS))
def test_source_that_was_never_heard_has_its_prior(source: str) -> None:
    rate = PRIORS[source]
    expected = [rate, rate**2, rate**3]
    assert acceptance_of(source).survival(3) == pytest.approx(expected)


def test_every_kind_of_guess_has_a_prior() -> None:
    assert set(PRIORS) == {*SOURCES, *sureness.SOURCES}
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


def test_faded_counts_give_way_sooner() -> None:
    kept, faded = acceptance_of("draft"), acceptance_of("draft")
    for acceptance in (kept, faded):
        for _ in range(40):
            acceptance.observe(1, 0)
    faded.fade()
    for acceptance in (kept, faded):
        for _ in range(4):
            acceptance.observe(1, 1)
    assert faded.survival(1)[0] > kept.survival(1)[0] + 0.1


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
