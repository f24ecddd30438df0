"""The engine thread's loop on the test's own thread, with a fake engine."""

from collections.abc import Callable
from pathlib import Path

from app.engine_loop import EngineLoop
from app.messages import (
    Event,
    Generate,
    LoadModel,
    ReplyEnded,
    ReplyId,
    ReplyProgressed,
    Shutdown,
    StatsSampled,
)
from inference.config import EngineConfig, SamplingParams
from inference.request import ChatMessage
from tests.app.fake_engine import FakeEngineFactory, FakeScript

LOAD = LoadModel("/m/a.gguf", EngineConfig())


class Bench:
    """A loop on this thread. `run` ends when all replies have ended: by itself it would wait.

    Attributes:
        now: The clock; each event moves it on by `tick`.
    """

    def __init__(self, script: FakeScript | None = None, *, kv_dir: Path | None = None) -> None:
        self.factory = FakeEngineFactory(script)
        self.events: list[Event] = []
        self.now = 0.0
        self.tick = 0.0
        self.on_event: Callable[[Event], None] = lambda _: None
        self.loop = EngineLoop(
            self.factory,
            self.take,
            clock=lambda: self.now,
            kv_dir=kv_dir,
            check=self.factory.check,
        )

    @property
    def script(self) -> FakeScript:
        return self.factory.script

    def take(self, event: Event) -> None:
        self.events.append(event)
        self.now += self.tick
        self.on_event(event)

    def generate(self, number: int = 1, **params: object) -> None:
        self.loop.post(
            Generate(
                ReplyId(number),
                "c",
                (ChatMessage("user", "Hi"),),
                SamplingParams(**params),  # type: ignore[arg-type]
            )
        )

    def run(self, *, until: Callable[[Event], bool] | None = None) -> list[Event]:
        """Run until an event, or until the commands that were posted are done; then shut down."""
        if until is None:
            self.loop.post(Shutdown())
        else:
            before = self.on_event

            def look(event: Event) -> None:
                before(event)
                if until(event):
                    self.loop.post(Shutdown())

            self.on_event = look
        self.loop.run()
        return [event for event in self.events if not isinstance(event, StatsSampled)]

    def text_of(self, number: int) -> str:
        return "".join(
            event.text
            for event in self.events
            if isinstance(event, ReplyProgressed) and event.reply_id == number
        )

    def ends(self) -> list[tuple[int, str]]:
        return [
            (event.reply_id, event.finish_reason)
            for event in self.events
            if isinstance(event, ReplyEnded)
        ]


def ended(count: int) -> Callable[[Event], bool]:
    """True at the last event of the count-th reply."""
    seen = 0

    def look(event: Event) -> bool:
        nonlocal seen
        seen += isinstance(event, ReplyEnded)
        return isinstance(event, ReplyEnded) and seen == count

    return look
