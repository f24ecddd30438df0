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
