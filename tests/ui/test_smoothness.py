"""The GUI thread never pauses while a reply streams."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QObject, Qt, QTimer

from tests.app.fake_engine import FakeScript
from tests.ui.machine_speed import slowness
from tests.ui.open_window import OpenWindow

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

    Time in which this thread could have run, but other programs had all processors, is no pause
    of ours; Linux counts it for each thread, elsewhere it stays in.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pauses_ms: list[float] = []
        self._last = 0.0
        self._last_waited = 0.0
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(1)
        self._timer.timeout.connect(self._beat)

    def start(self) -> None:
        self._last, self._last_waited = time.perf_counter(), _waited_s()
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()

    @property
    def worst_ms(self) -> float:
        return max(self.pauses_ms)

    def _beat(self) -> None:
        now, waited = time.perf_counter(), _waited_s()
        away = (now - self._last) - (waited - self._last_waited)
        self.pauses_ms.append(away * 1000)
        self._last, self._last_waited = now, waited


def _waited_s() -> float:
    """Seconds that this thread has waited for a processor so far."""
    place = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    try:
        return int(place.read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def _stream(window: OpenWindow, seconds: float) -> Heartbeat:
    """Let a long reply stream for so long, and watch the event loop."""
    heart = Heartbeat()
    window.start_engine()
    window.type("Write a long text")
    window.press(Qt.Key.Key_Return)
    window.wait(lambda: bool(window.texts[-1]))
    heart.start()
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
