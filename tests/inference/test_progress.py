from inference.model.progress import LoadReporter
from inference.request import LoadProgress


def test_reporter_small_steps_are_joined():
    seen: list[LoadProgress] = []
    reporter = LoadReporter(seen.append)
    reporter.begin("A", until=0.5)
    for step in range(1001):
        reporter.advance(step, 1000)
    reporter.begin("B", until=0.4)
    reporter.advance(1, 0)
    reporter.finish()
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert 40 < len(seen) <= 54
    assert (seen[-1].stage, seen[-1].fraction) == ("Ready", 1.0)


def test_reporter_item_moves_inside_its_share_of_the_stage():
    seen: list[LoadProgress] = []
    reporter = LoadReporter(seen.append)
    reporter.begin("A", until=0.5)
    reporter.begin_item(1, 2, 4)
    for done, fraction in ((0, 0.125), (1, 0.25), (2, 0.375), (3, 0.375)):
        reporter.advance_item(done, 2)
        assert abs(seen[-1].fraction - fraction) < 1e-9
    reporter.begin("B", until=1.0)
    reporter.advance_item(1, 2)  # of no item: it stays where the stage begins
    assert seen[-1].fraction == 0.5
