"""Draft models in tests: tiny ones beside tiny targets, and a runner that remembers what it computed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from inference.drafting.draft_model import DraftModel
from inference.engine_loading import EngineParts
from inference.model.base import Runner
from inference.model.loader import LoadedModel
from inference.model.step import Chunk
from inference.request import RequestId
from inference.sequence import Sequence as TokenSequence
from tests.inference.scripted_engine import eager_greedy
from tests.inference.tiny_engine import make_loaded, make_parts
from tests.inference.tiny_models import make_tokens


class RecordingRunner:
    """Computes as the one within, and notes each step; or fails when told to."""

    num_replays = 0

    def __init__(self, inner: Runner) -> None:
        self.kv = inner.kv
        self.device = inner.device
        self.calls: list[list[Chunk]] = []
        self.error: Exception | None = None
        self._inner = inner

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        self.calls.append(list(chunks))
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self._inner.run(chunks)

    def take(self) -> list[list[tuple[int, int]]]:
        """Of each step since the last call: start and number of tokens of each chunk."""
        calls, self.calls = self.calls, []
        return [[(chunk.start, len(chunk.token_ids)) for chunk in call] for call in calls]


class ShortRunner(RecordingRunner):
    """One that can leave out the last logits."""

    def __init__(self, inner: Runner, *, vocab_size: int) -> None:
        super().__init__(inner)
        self.num_logits = vocab_size
        self.logits_unit = 4
        self.logits_share = 0.3

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        return super().run(chunks)[:, : self.num_logits]


class DraftUnderTest:
    """A draft model with the parts that it is made of."""

    def __init__(self, parts: EngineParts, loaded: LoadedModel, *, vocab_size: int = 260) -> None:
        self.parts = parts
        self.runner = RecordingRunner(parts.runner)
        parts.runner = self.runner
        self.model = DraftModel(parts, vocab_size=vocab_size)
        self._module = loaded.module

    def guess(self, sequence: TokenSequence, count: int) -> list[int]:
        """One call for one sequence."""
        return list(self.model.propose([(sequence, count)])[0])

    def read_and_guess(self, sequence: TokenSequence, count: int) -> list[int]:
        """As many calls as it takes to read and load what is lacking."""
        for _ in range(1000):
            guesses = self.guess(sequence, count)
            if guesses:
                return guesses
            self.parts.memory.wait_for_transfer(0.05)
        raise AssertionError("no guesses came")

    def truth(self, sequence: TokenSequence, count: int) -> list[int]:
        """What transformers says comes next, computed from the first token on."""
        return eager_greedy(self._module, sequence.token_ids, count)


@contextmanager
def opened_draft(
    loaded: LoadedModel | None = None, *, vocab_size: int = 260, **config: object
) -> Iterator[DraftUnderTest]:
    """A draft model over blocks of 8; its integrity is proved at the end."""
    loaded = loaded or make_loaded()
    draft = DraftUnderTest(
        make_parts(loaded, **{"guess": "off", "ram_cache_bytes": 0, **config}),
        loaded,
        vocab_size=vocab_size,
    )
    try:
        yield draft
        draft.model.check_integrity()
    finally:
        draft.model.close()


def draft_for(parts: EngineParts, *, seed: int) -> DraftModel:
    """A draft model for a tiny target, of the same shape; with the target's seed it is the target itself."""
    loaded = make_loaded(seed=seed)
    return DraftModel.load(Path("small"), parts, load=lambda path, **options: loaded)


def make_sequence(
    num_tokens: int, *, request_id: int = 1, chat: str = "chat", seed: int = 1
) -> TokenSequence:
    """A sequence of a target's, with random tokens."""
    return TokenSequence(RequestId(request_id), chat, make_tokens(num_tokens, seed=seed))
