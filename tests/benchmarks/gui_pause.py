"""Whether the window stays smooth while a reply streams: `python -m tests.benchmarks.gui_pause`.

The real program with the real engine on a profile of its own. A precise timer beats on the GUI
thread; how much later than due a beat comes is how long the thread could not react. The longest
such pause while replies stream, from the first token on, is the result. Each question has a chat of its own: one
chat is full sooner or later, and a window that only waits proves nothing, so the program ends with an error
if words came in less than nine tenths of the seconds.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from PySide6.QtCore import QEventLoop, QObject, Qt, QTimer

from app.conversation import MessageId
from app.paths import Paths
from app.session_changes import ReplyGrew, SessionChange
from app.starter_model import find_starter_model
from ui.program import Program
from ui.start import make_application

BEAT_MS = 2
LOAD_TIMEOUT_MS = 120_000
MIN_STREAMING = 0.9
SHOWN = (
    "replies", "updates", "streaming", "decode_tps", "beats", "median_ms", "p99_ms", "worst_ms",
)  # fmt: skip
QUESTION = (
    "Write a very long story about a lighthouse keeper, with a list of the ships that pass, a table "
    "of the weather, and the code of a small Python program that counts waves."
)


class Heartbeat(QObject):
    """Notes how late each beat of the GUI thread comes, while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_counting = False
        self.pauses_ms: list[float] = []
        self._last: float | None = None
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._beat)
        self._timer.start(BEAT_MS)

    def _beat(self) -> None:
        now = time.perf_counter()
        if self.is_counting and self._last is not None:
            self.pauses_ms.append(max(0.0, (now - self._last) * 1000 - BEAT_MS))
        self._last = now


class Run(QObject):
    """Keeps replies streaming for a while, one question after another."""

    def __init__(self, program: Program, seconds: float) -> None:
        super().__init__()
        self.num_growths = 0
        self.rates_tps: list[float] = []
        self.heartbeat = Heartbeat()
        self._program = program
        self._seconds = seconds
        self._began = 0.0
        self._replies: set[MessageId] = set()
        self._seconds_with_words: set[int] = set()
        self._loop = QEventLoop()
        self._pulse = QTimer(self)
        self._pulse.timeout.connect(self._ask_when_idle)
        program.session.subscribe(self._note)

    def go(self) -> None:
        """Returns when the time is over."""
        self._pulse.start(100)
        QTimer.singleShot(LOAD_TIMEOUT_MS, self._loop.quit)
        self._loop.exec()
        self._pulse.stop()
        if not self.num_growths:
            raise SystemExit(f"No reply came; the model is {self._program.session.model.kind}.")

    @property
    def num_replies(self) -> int:
        """Replies of which words came."""
        return len(self._replies)

    @property
    def streaming(self) -> float:
        """The share of the seconds in which words came."""
        num_seconds = max(1, int(self._seconds))
        return (
            len([second for second in self._seconds_with_words if second < num_seconds])
            / num_seconds
        )

    def _ask_when_idle(self) -> None:
        session = self._program.session
        if session.model.kind == "ready" and not session.is_replying:
            session.new_chat()
            session.send(QUESTION)

    def _note(self, change: SessionChange) -> None:
        if not isinstance(change, ReplyGrew):
            return
        if not self.num_growths:
            self.heartbeat.is_counting = True
            self._began = time.perf_counter()
            QTimer.singleShot(round(self._seconds * 1000), self._loop.quit)
        self.num_growths += 1
        self._replies.add(change.message_id)
        self._seconds_with_words.add(int(time.perf_counter() - self._began))
        if change.metrics.decode_tps is not None:
            self.rates_tps.append(change.metrics.decode_tps)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gui_pause",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=find_starter_model())
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as app/__main__.py does
    if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
        os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    with tempfile.TemporaryDirectory() as folder:
        paths = Paths(Path(folder) / "profile")
        paths.prepare()
        program = Program(make_application(), paths)
        run = Run(program, arguments.seconds)
        program.show()
        program.start_engine(arguments.model)
        run.go()
        program.window.close()
        program.close()
    pauses = sorted(run.heartbeat.pauses_ms)
    report = {
        "benchmark": "gui_pause",
        "seconds": arguments.seconds,
        "replies": run.num_replies,
        "updates": run.num_growths,
        "streaming": round(run.streaming, 3),
        "decode_tps": round(statistics.median(run.rates_tps), 1) if run.rates_tps else None,
        "beats": len(pauses),
        "median_ms": round(statistics.median(pauses), 2),
        "p99_ms": round(pauses[int(len(pauses) * 0.99)], 2),
        "worst_ms": round(pauses[-1], 2),
        "cores": os.cpu_count(),
    }
    for name in SHOWN:
        print(f"{name:<16}{report[name]:>10}")
    print(json.dumps(report))
    if run.streaming < MIN_STREAMING:
        raise SystemExit("Replies did not stream all the time, so this says nothing.")


if __name__ == "__main__":
    main()
