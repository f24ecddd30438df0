import pytest

from inference.model.step_threads import StepThreads, _thread_counts


def run(chooser: StepThreads, seconds: dict[int, float], steps: int) -> list[int]:
    """Threads of so many steps, each of which takes what `seconds` says."""
    chosen = []
    for _ in range(steps):
        chosen.append(chooser.choose())
        chooser.record(seconds[chosen[-1]])
    return chosen


@pytest.mark.parametrize(
    ("most", "counts"),
    [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])],
)
def test_thread_counts_double_up_to_the_most(most, counts):
    assert _thread_counts(most) == counts


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({1: 1.0, 2: 0.95, 4: 0.9}, 1),  # one core reads all that the memory gives
        ({1: 1.0, 2: 0.6, 4: 0.58}, 2),
        ({1: 1.0, 2: 0.6, 4: 0.4}, 4),
    ],
)
def test_fewest_threads_that_are_about_as_fast_are_kept(seconds, best):
    chosen = run(StepThreads(4), seconds, 20)
    assert chosen == [1] * 3 + [2] * 3 + [4] * 3 + [best] * 11


def test_hopeless_number_of_threads_gets_one_step():
    chosen = run(StepThreads(4), {1: 1.0, 2: 7.0, 4: 9.0}, 8)
    assert chosen == [1, 1, 1, 2, 4, 1, 1, 1]


def test_one_slow_step_of_a_trial_does_not_count():
    chooser = StepThreads(2)
    for seconds in (1.0, 1.0, 1.0, 0.5, 0.9, 0.9):
        chooser.record(seconds)
    assert chooser.choose() == 2


def test_single_thread_needs_no_trial():
    assert run(StepThreads(1), {1: 1.0}, 1200) == [1] * 1200


def test_choice_is_asked_again_when_the_machine_has_changed():
    chooser = StepThreads(2)
    assert run(chooser, {1: 1.0, 2: 0.5}, 506) == [1] * 3 + [2] * 503
    busy = run(chooser, {1: 1.0, 2: 3.0}, 10)
    assert busy == [1, 1, 1, 2, 1, 1, 1, 1, 1, 1]
