"""How long the rest of a prompt takes: exact where reading slows down as it should, sane where it does not."""

import random

import pytest

from ui.replies.reading_pace import MIN_POINTS, ReadingPace


def read(pace: ReadingPace, seconds_of: dict[int, float]) -> None:
    for num_tokens, seconds in seconds_of.items():
        pace.note(num_tokens, 100.0 + seconds)


@pytest.mark.parametrize("first", [0, 3000])
@pytest.mark.parametrize(("a", "b"), [(0.001, 0.0), (0.001, 2e-7), (0.0, 1e-6)])
def test_pace_that_is_as_it_should_be_is_continued_exactly(first: int, a: float, b: float) -> None:
    def seconds(num_tokens: int) -> float:
        return a * (num_tokens - first) + b * (num_tokens**2 - first**2)

    pace = ReadingPace(first, 100.0)
    places = range(first + 256, first + 256 * 9, 256)
    read(pace, {place: seconds(place) for place in places})
    left = pace.seconds_left(first + 8000)
    assert left == pytest.approx(seconds(first + 8000) - seconds(places[-1]), rel=1e-6)


def test_uneven_steps_are_no_trend() -> None:
    worst = 1.0
    for seed in range(300):
        dice = random.Random(seed)
        pace, now = ReadingPace(0, 0.0), 0.0
        for step in range(1, 79):
            now += dice.uniform(0.85, 1.15)
            pace.note(256 * step, now)
            left = pace.seconds_left(256 * 80)
            assert left is not None
            if step >= 8:
                worst = max(worst, left / (80 - step), (80 - step) / left)
    assert worst < 1.5


def test_few_steps_make_no_trend() -> None:
    pace = ReadingPace(0, 100.0)
    assert pace.seconds_left(1000) is None
    read(pace, {100: 1.0, 200: 3.0, 300: 6.0})
    assert MIN_POINTS > 3
    assert pace.seconds_left(1000) == pytest.approx(6.0 / 300 * 700)


def test_reading_that_gets_faster_is_not_thought_to_end_before_it_began() -> None:
    pace = ReadingPace(0, 100.0)
    read(pace, {100 * n: n**0.5 for n in range(1, 12)})
    assert pace.seconds_left(2200) == pytest.approx(11**0.5)


def test_reading_that_slows_down_more_than_it_can_stays_finite_and_positive() -> None:
    pace = ReadingPace(0, 100.0)
    read(pace, {100 * n: float(n) ** 4 for n in range(1, 12)})
    assert pace.seconds_left(2200) == pytest.approx(11.0**4 * 3)


def test_what_says_nothing_changes_nothing() -> None:
    pace = ReadingPace(50, 100.0)
    read(pace, {50: 1.0, 40: 2.0, 60: 0.0})
    assert pace.seconds_left(1000) is None
    read(pace, {60: 1.0})
    assert pace.seconds_left(60) == 0.0
    assert pace.seconds_left(55) == 0.0
