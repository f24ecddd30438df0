"""The GUI thread never pauses while a reply streams."""

import threading
import time
from collections.abc import Callable

import pytest
from PySide6.QtCore import QObject, Qt, QTimer
from pytestqt.qtbot import QtBot

from tests.app.fake_engine import FakeScript
from tests.ui.lost_time import LostTime, num_pages_read, num_turns
from tests.ui.machine_speed import slowness
from tests.ui.open_window import OpenWindow

pytestmark = pytest.mark.usefixtures("spared_collector")
Opener = Callable[..., OpenWindow]

WORST_PAUSE_MS = 50.0
TOKENS_PER_S = 200.0

SECTION = """## A heading over some text

A paragraph with **strong words**, `inline code`, a [link](https://example.org) and enough text to
wrap over more than one line of the column, so that the layout has something to do each time.

- one item of a list
- another item, *in italics*

```python
def fibonacci(count: int) -> list[int]:
    numbers = [0, 1]
    while len(numbers) < count:
        numbers.append(numbers[-1] + numbers[-2])  # the sum of the last two
    return numbers
```

| Name | Value |
|---|---:|
| first | 1.25 |
| second | 2.50 |

"""


class Heartbeat(QObject):
    """Measures how long the event loop was away between two beats of a fast timer.

    The wall clock counts, because a GUI thread that waits for a lock or a file stands still as well.
    From it goes what the machine took from us (`LostTime`): a busy one makes whoever holds a lock
    wait for a processor, which is no fault of ours. Nor is it that on a cold one pages of Qt are read
    from the disk when they are first run, or that all of it stood still (`num_turns`): of such a
    pause only what the thread computed counts. And never does a pause count as less than that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pauses_ms: list[float] = []
        self._lost = LostTime()
        self._last = self._clocks()
        self._turn: int | None = None
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(1)
        self._timer.timeout.connect(self._beat)

    def start(self) -> None:
        self._last = self._clocks()
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()
        self._lost.close()

    @property
    def worst_ms(self) -> float:
        return max(self.pauses_ms)

    def _clocks(self) -> tuple[float, float, float, int]:
        return time.perf_counter(), time.thread_time(), self._lost.seconds(), num_pages_read()

    def _beat(self) -> None:
        now = self._clocks()
        passed, computed, lost, pages = (b - a for a, b in zip(self._last, now, strict=True))
        turn = num_turns()
        stood_still = turn is not None and turn == self._turn
        waited = 0.0 if pages or stood_still else passed - lost
        self._turn = turn
        self.pauses_ms.append(max(computed, waited) * 1000)
        self._last = now


def _stream(window: OpenWindow, seconds: float) -> Heartbeat:
    """Let a long reply stream for so long, and watch the event loop."""
    heart = Heartbeat()
    window.start_engine()
    window.type("Write a long text")
    window.press(Qt.Key.Key_Return)
    heart.start()  # before the first word, for which some things are loaded
    window.wait(lambda: bool(window.texts[-1]))
    end = time.monotonic() + seconds
    window.qtbot.waitUntil(lambda: time.monotonic() > end, timeout=int(seconds * 1000) + 20_000)
    heart.stop()
    assert window.session.is_replying, "the reply must last longer than the measurement"
    window.session.stop()
    window.wait(lambda: not window.session.is_replying)
    return heart


def test_gui_thread_pauses_less_than_50_ms_while_streaming(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=[SECTION * 60], tokens_per_s=TOKENS_PER_S))
    heart = _stream(window, 4.0)
    assert heart.worst_ms < WORST_PAUSE_MS * slowness()


@pytest.mark.slow
def test_gui_thread_pauses_less_than_50_ms_in_30_s_of_streaming(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=[SECTION * 400], tokens_per_s=TOKENS_PER_S))
    heart = _stream(window, 30.0)
    assert heart.worst_ms < WORST_PAUSE_MS * slowness()


def _beat_through(qtbot: QtBot, work: Callable[[], object]) -> float:
    """The worst pause when this is done between two beats, in milliseconds."""
    heart = Heartbeat()
    heart.start()
    qtbot.waitUntil(lambda: len(heart.pauses_ms) > 3)
    work()
    num_beats = len(heart.pauses_ms)
    qtbot.waitUntil(lambda: len(heart.pauses_ms) > num_beats)
    heart.stop()
    return heart.worst_ms


def test_heartbeat_notes_a_thread_that_computes(qtbot: QtBot) -> None:
    def compute() -> None:
        end = time.thread_time() + 0.08
        while time.thread_time() < end:
            pass

    assert _beat_through(qtbot, compute) >= 80.0


def test_heartbeat_notes_a_thread_that_waits(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.ui.test_smoothness.num_pages_read", int)
    free = threading.Event()
    began = LostTime()
    before = began.seconds()
    worst = _beat_through(qtbot, lambda: free.wait(0.2))
    lost_ms = (began.seconds() - before) * 1000
    began.close()
    assert worst >= 200.0 - lost_ms
