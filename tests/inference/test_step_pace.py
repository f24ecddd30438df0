"""The token budget follows what steps take."""

import pytest

from inference.step_pace import FEWEST, TARGET_S, StepPace, usual_step_tokens


@pytest.mark.parametrize(
    ("device_type", "has_paged_kernel", "expected"),
    [("cpu", False, 256), ("mps", False, 256), ("cuda", False, 512), ("cuda", True, 2048)],
)
def test_steps_are_as_long_as_is_good_for_the_device(
    device_type: str, has_paged_kernel: bool, expected: int
) -> None:
    assert usual_step_tokens(device_type, has_paged_kernel=has_paged_kernel) == expected


def test_quick_machine_gets_all_that_is_allowed() -> None:
    pace = StepPace(256)
    assert pace.budget == 128
    pace.record(128, 0.1)
    assert pace.budget == 256


def test_slow_machine_gets_what_it_does_in_the_time() -> None:
    pace = StepPace(256)
    for _ in range(5):
        pace.record(pace.budget, pace.budget / 200)  # 200 tokens a second
    assert pace.budget == 48  # 60 of them, in sixteens
    assert pace.budget / 200 <= TARGET_S


def test_very_slow_machine_still_gets_some() -> None:
    pace = StepPace(256)
    pace.record(128, 30.0)
    assert pace.budget == FEWEST


def test_one_slow_step_counts_half() -> None:
    pace = StepPace(1024)
    pace.record(128, 0.1)
    assert pace.budget == 384
    pace.record(384, 3.0)
    assert pace.budget == 208


def test_decode_steps_and_clocks_that_stand_still_say_nothing() -> None:
    pace = StepPace(256)
    pace.record(1, 0.5)
    pace.record(128, 0.0)
    assert pace.budget == 128


def test_budget_of_a_few_tokens_is_kept() -> None:
    pace = StepPace(5)
    pace.record(5, 10.0)
    assert pace.budget == 5
