"""How fast a draft model makes replies, as seen."""

import pytest

from inference.speculation.draft_speed import DraftSpeed


def test_speed_begins_with_what_is_expected_and_moves_to_what_is_seen():
    speed = DraftSpeed()
    assert speed.times(1.25) == 1.25
    speed.record(4, 80.0, 40.0)  # four tokens in the time of two
    assert speed.times(1.25) == pytest.approx((8 * 1.25 + 2.0) / 9)
    for _ in range(100):
        speed.record(1, 80.0, 40.0)
    assert speed.times(1.25) == pytest.approx(0.5, abs=1e-3)


def test_speed_that_is_not_seen_any_more_goes_back_to_what_is_expected():
    speed = DraftSpeed()
    for _ in range(100):
        speed.record(1, 80.0, 40.0)
    for _ in range(231):  # half of the way
        speed.pass_by()
    assert speed.times(1.25) == pytest.approx(0.875, abs=0.01)


def test_speed_is_proven_by_steps_that_were_seen_and_not_by_what_is_expected():
    speed = DraftSpeed()
    for _ in range(16):
        assert not speed.is_proven
        speed.record(4, 80.0, 40.0)
    assert speed.is_proven
    idle = DraftSpeed()
    for _ in range(16):
        idle.record(1, 40.0, 40.0)  # no faster than without
    assert not idle.is_proven
    for _ in range(20):
        speed.record(1, 80.0, 40.0)
    assert not speed.is_proven


def test_step_without_a_time_says_nothing():
    speed = DraftSpeed()
    speed.record(3, 0.0, 40.0)
    assert speed.times(1.25) == 1.25
