"""A stop that comes while guesses are verified, through the engine thread's loop: the real engine, a tiny model."""

from collections.abc import Callable, Sequence

import pytest
from torch import Tensor

from app.engine_loop import EngineLoop
from app.messages import (
    Event,
    Generate,
    LoadModel,
    ReplyEnded,
    ReplyId,
    Shutdown,
    StopReply,
)
from inference.config import EngineConfig, SamplingParams
from inference.engine import Engine
from inference.model.base import Runner
from inference.model.step import Chunk
from inference.request import ChatMessage, LoadProgress
from tests.inference.draft_models import RecordingRunner, draft_for
from tests.inference.tiny_engine import make_parts

PARAMS = SamplingParams(temperature=0.0, max_tokens=40)


class WatchedRunner(RecordingRunner):
    """Calls before each step that verifies guesses."""

    def __init__(self, inner: Runner, on_verify: Callable[[], None]) -> None:
        super().__init__(inner)
        self._on_verify = on_verify

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        if any(chunk.needs_all_logits for chunk in chunks):
            self._on_verify()
        return super().run(chunks)


class Bench:
    """The loop on this thread; `num_verified` counts the steps that verified guesses."""

    def __init__(self, *, draft_seed: int | None, stop_at: int | None) -> None:
        self.num_verified = 0
        self.ends: list[ReplyEnded] = []
        self.engine: Engine | None = None
        self._draft_seed = draft_seed
        self._stop_at = stop_at
        self.loop = EngineLoop(self._open, self._take, check=lambda path: None)

    def ask(self, number: int) -> None:
        message = ChatMessage("user", "Why does a plane tree drop its bark?")
        self.loop.post(Generate(ReplyId(number), "c", (message,), PARAMS))

    def run(self) -> None:
        """Open the model, ask once, and once more when that reply has ended."""
        self.loop.post(LoadModel("/m/tiny.gguf", EngineConfig()))
        self.ask(1)
        self.loop.run()

    def _take(self, event: Event) -> None:
        if isinstance(event, ReplyEnded):
            assert self.engine is not None
            self.ends.append(event)
            if len(self.ends) == 1:
                self.ask(2)
            else:
                self.engine.check_integrity()
                self.loop.post(Shutdown())

    def _note_verify(self) -> None:
        self.num_verified += 1
        if self.num_verified == self._stop_at:
            self.loop.post(StopReply(ReplyId(1)))  # as the window's thread does at any moment

    def _open(
        self, path: str, config: EngineConfig, on_progress: Callable[[LoadProgress], None]
    ) -> Engine:
        parts = make_parts(guess="off", draft_tokens=4)
        parts.runner = WatchedRunner(parts.runner, self._note_verify)
        self.engine = Engine(parts)
        if self._draft_seed is not None:
            parts.speculator.use(draft_for(parts, seed=self._draft_seed))
            parts.speculator.set_guess("draft")
        return self.engine


@pytest.fixture(scope="module")
def plain() -> tuple[int, ...]:
    """What the model says without guesses."""
    bench = Bench(draft_seed=None, stop_at=None)
    bench.run()
    first, second = (end.reply_token_ids for end in bench.ends)
    assert first == second
    assert first is not None
    assert len(first) > 30
    assert bench.num_verified == 0
    return first


@pytest.mark.parametrize("draft_seed", [0, 1], ids=["right", "often wrong"])
@pytest.mark.parametrize("stop_at", [1, 2, 5])
def test_stop_in_a_step_that_verifies_ends_the_reply_behind_it(
    plain: tuple[int, ...], draft_seed: int, stop_at: int
) -> None:
    bench = Bench(draft_seed=draft_seed, stop_at=stop_at)
    bench.run()
    stopped, whole = bench.ends
    assert stopped.finish_reason == "aborted"
    assert stopped.reply_token_ids is not None
    # What that step brought is there, and nothing after it.
    assert stop_at < len(stopped.reply_token_ids) <= 5 * stop_at + 1
    assert stopped.reply_token_ids == plain[: len(stopped.reply_token_ids)]
    # Nothing that was refused stayed in the memory, of which the next reply takes the prompt.
    assert whole.reply_token_ids == plain
    assert bench.num_verified > stop_at
