"""Events at the display's pace: order kept, nothing lost."""

from dataclasses import replace

import pytest
from pytestqt.qtbot import QtBot

from app.messages import Event, ModelUnloaded, ReplyEnded, ReplyId, ReplyProgressed
from inference.metrics import RequestMetrics
from ui.controls.throttle import Throttle
from ui.event_pacer import EventPacer, merged


def _step(reply: int, text: str, token: int) -> ReplyProgressed:
    metrics = RequestMetrics(completion_tokens=token)
    return ReplyProgressed(ReplyId(reply), text, (token,), 10, metrics)


def test_steps_of_one_frame_are_merged_per_reply(qtbot: QtBot) -> None:
    got: list[Event] = []
    pacer = EventPacer(got.append)
    for step in (_step(1, "a", 1), _step(2, "x", 1), _step(1, "b", 2)):
        pacer.push(step)
    assert got == []
    qtbot.waitUntil(lambda: len(got) == 2)
    assert got[0] == ReplyProgressed(
        ReplyId(1), "ab", (1, 2), 10, RequestMetrics(completion_tokens=2)
    )
    assert got[1] == _step(2, "x", 1)


def test_other_events_go_at_once_and_after_what_came_before(qtbot: QtBot) -> None:
    got: list[Event] = []
    pacer = EventPacer(got.append)
    pacer.push(_step(1, "a", 1))
    ended = ReplyEnded(ReplyId(1), "stop", RequestMetrics())
    pacer.push(ended)
    pacer.push(ModelUnloaded())
    assert got == [_step(1, "a", 1), ended, ModelUnloaded()]


@pytest.mark.parametrize("is_all_shown", [True, False])
def test_merged_of_one_step_is_that_step(is_all_shown: bool) -> None:
    step = replace(_step(3, "z", 9), is_all_shown=is_all_shown)
    assert merged([step]) == step
    before = replace(_step(3, "y", 8), is_all_shown=not is_all_shown)
    assert merged([before, step]).is_all_shown == is_all_shown


def test_throttle_runs_the_first_at_once_and_then_the_last(qtbot: QtBot) -> None:
    ran: list[int] = []
    throttle = Throttle(30)
    for number in range(5):
        throttle.call(lambda number=number: ran.append(number))  # type: ignore[misc]
    assert ran == [0]
    qtbot.waitUntil(lambda: ran == [0, 4])


def test_throttle_cancel_forgets_what_waits(qtbot: QtBot) -> None:
    ran: list[int] = []
    throttle = Throttle(10)
    throttle.call(lambda: ran.append(1))
    throttle.call(lambda: ran.append(2))
    throttle.cancel()
    throttle.call(lambda: ran.append(3))
    assert ran == [1, 3]
