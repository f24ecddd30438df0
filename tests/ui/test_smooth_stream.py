"""Work once per frame, less often when it is slow."""

from ui.replies.smooth_stream import FRAME_MS, MAX_WAIT_MS, FramePacer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_pacer(took_ms: float = 0.0) -> tuple[FramePacer, list[float], Clock]:
    clock = Clock()
    runs: list[float] = []

    def work() -> None:
        runs.append(clock.now)
        clock.now += took_ms / 1000

    return FramePacer(work, clock=clock), runs, clock


def test_pacer_many_requests_are_one_run(qtbot):
    pacer, runs, _clock = make_pacer()
    for _ in range(50):
        pacer.request()
    assert runs == []
    assert pacer.is_waiting
    qtbot.waitUntil(lambda: not pacer.is_waiting)
    assert runs == [100.0]


def test_pacer_flush_runs_now_and_clears_the_request(qtbot):
    pacer, runs, _clock = make_pacer()
    pacer.request()
    pacer.flush()
    assert (len(runs), pacer.is_waiting) == (1, False)


def test_pacer_first_request_runs_at_once_and_the_next_after_a_frame(qtbot):
    pacer, _runs, clock = make_pacer()
    pacer.request()
    assert pacer._timer.interval() == 0
    pacer.flush()
    clock.now += 0.004
    pacer.request()
    assert pacer._timer.interval() == FRAME_MS - 4


def test_pacer_slow_work_runs_less_often(qtbot):
    pacer, _runs, _clock = make_pacer(took_ms=20.0)
    pacer.flush()
    assert round(pacer.wait_ms) == 60
    slow, _runs, _clock = make_pacer(took_ms=900.0)
    slow.flush()
    assert slow.wait_ms == MAX_WAIT_MS
