"""What steps cost is learned from a calibration and from steps, and no pause of the machine spoils it."""

import math
import random

import pytest

from inference.speculation.costs import PRIOR_MS, StepCosts

MEASURED = {1: 10.0, 4: 11.9, 8: 15.0, 16: 30.0}


def calibrated() -> StepCosts:
    costs = StepCosts()
    costs.calibrate(MEASURED)
    return costs


@pytest.mark.parametrize(
    ("num_rows", "times"),
    [(1, 1.0), (2, 1.07), (3, 1.135), (4, 1.2), (6, 1.4), (8, 1.6), (12, 2.4), (64, 12.8), (96, 19.2)],
)  # fmt: skip
def test_unmeasured_model_has_usual_costs(num_rows: int, times: float) -> None:
    assert StepCosts().ms(num_rows) == pytest.approx(PRIOR_MS * times)


def test_calibration_gives_what_was_measured_and_lines_between() -> None:
    costs = calibrated()
    assert costs.plain_ms == 10.0
    assert [costs.ms(rows) for rows in (1, 4, 6, 8, 12, 16)] == pytest.approx(
        [10.0, 11.9, 13.45, 15.0, 22.5, 30.0]
    )


def test_beyond_what_was_measured_costs_grow_as_usual() -> None:
    costs = calibrated()
    assert [costs.ms(rows) for rows in (24, 32, 64, 128)] == pytest.approx(
        [45.0, 60.0, 120.0, 240.0]
    )


def test_beyond_what_was_measured_no_row_is_cheaper_than_those_before() -> None:
    costs = StepCosts()
    costs.calibrate({1: 10.0, 4: 25.0})  # half a step a row, more than is usual
    assert [costs.ms(rows) for rows in (8, 16)] == pytest.approx([45.0, 85.0])
    alone = StepCosts()
    alone.calibrate({1: 10.0})
    assert [alone.ms(rows) for rows in (2, 4, 8)] == pytest.approx([15.0, 25.0, 45.0])


def test_where_nothing_was_measured_the_first_steps_are_averaged_and_say_nothing_of_one_row() -> (
    None
):
    costs = StepCosts()
    costs.calibrate({1: 10.0, 4: 12.0})
    for ms in (30.0, 34.0, 26.0, 30.0):
        costs.record(8, ms)
    assert costs.plain_ms == 10.0
    assert costs.ms(8) == pytest.approx(30.0)
    costs.record(8, 60.0)  # from now on what is seen moves it little
    assert costs.ms(8) / costs.plain_ms == pytest.approx(3.0, rel=0.01)
    assert costs.plain_ms > 10.0


def test_pause_in_the_first_step_of_so_many_rows_is_forgotten() -> None:
    costs = StepCosts()
    costs.calibrate({1: 10.0, 4: 12.0})
    costs.record(8, 60_000.0)
    for _ in range(60):
        costs.record(1, 10.0)
        costs.record(8, 20.0)
    assert costs.ms(8) / costs.plain_ms == pytest.approx(2.0, rel=0.3)


def test_calibration_without_one_row_gives_the_usual_share_of_it() -> None:
    costs = StepCosts()
    costs.calibrate({4: 24.0, 8: 40.0})
    assert costs.plain_ms == pytest.approx(20.0)
    assert [costs.ms(rows) for rows in (4, 8)] == pytest.approx([24.0, 40.0])


def test_calibration_leaves_out_what_is_no_duration() -> None:
    costs = StepCosts()
    costs.calibrate({1: 10.0, 2: 0.0, 4: math.nan, 8: -1.0, 16: math.inf, 0: 3.0})
    assert [costs.ms(rows) for rows in (1, 8)] == pytest.approx([10.0, 45.0])


def test_empty_calibration_changes_nothing() -> None:
    costs = calibrated()
    costs.calibrate({})
    costs.calibrate({1: math.nan})
    assert costs.ms(8) == pytest.approx(15.0)


def test_more_rows_never_cost_less_whatever_was_measured() -> None:
    costs = StepCosts()
    costs.calibrate({1: 10.0, 2: 14.0, 4: 9.0, 8: 12.0, 16: 30.0})
    took = [costs.ms(rows) for rows in range(1, 100)]
    assert took == sorted(took)
    assert took[:4] == pytest.approx([10.0, 14.0, 14.0, 14.0])


def test_first_step_sets_the_scale_if_nothing_was_measured() -> None:
    costs = StepCosts()
    costs.record(4, 60.0)
    assert costs.plain_ms == pytest.approx(50.0)
    assert costs.ms(8) == pytest.approx(80.0)


@pytest.mark.parametrize(
    ("num_rows", "ms"), [(0, 5.0), (1, 0.0), (1, -1.0), (1, math.nan), (1, math.inf)]
)
def test_steps_that_say_nothing_change_nothing(num_rows: int, ms: float) -> None:
    costs = calibrated()
    costs.record(num_rows, ms)
    assert costs.plain_ms == 10.0


def test_scale_follows_steps_of_one_row_by_a_quarter() -> None:
    costs = calibrated()
    costs.record(1, 12.0)
    assert costs.plain_ms == pytest.approx(10.5)
    assert costs.ms(8) == pytest.approx(15.75)


def test_scale_follows_steps_of_many_rows_by_a_tenth() -> None:
    costs = calibrated()
    costs.record(8, 18.0)
    assert costs.plain_ms == pytest.approx(10.2)
    assert costs.ms(8) / costs.plain_ms == pytest.approx(1.5 * (1 + 0.03 * (18 / (1.5 * 10.2) - 1)))


@pytest.mark.parametrize("num_rows", [1, 2, 8, 11, 40, 100])
def test_pause_of_the_machine_hardly_counts(num_rows: int) -> None:
    costs = calibrated()
    costs.record(num_rows, 60_000.0)
    assert costs.plain_ms <= 10.0 * 1.125
    for rows, ms in MEASURED.items():
        assert costs.ms(rows) / costs.plain_ms == pytest.approx(ms / 10.0, rel=0.01)


def test_shape_is_learned_while_steps_go_on() -> None:
    costs = calibrated()
    truth = {1: 12.0, 3: 14.0, 6: 21.0, 8: 28.0}
    draw = random.Random(1)
    for _ in range(800):
        rows = draw.choice(list(truth))
        costs.record(rows, truth[rows] * draw.uniform(0.95, 1.05))
    for rows, ms in truth.items():
        assert costs.ms(rows) == pytest.approx(ms, rel=0.08), rows
    assert costs.ms(1) == costs.plain_ms


def test_machine_that_becomes_slow_keeps_its_shape() -> None:
    costs = calibrated()
    for step in range(40):
        rows = (1, 8)[step % 2]
        costs.record(rows, 2 * MEASURED[rows])
    assert costs.plain_ms == pytest.approx(20.0, rel=0.05)
    assert costs.ms(8) / costs.plain_ms == pytest.approx(1.5, rel=0.05)
