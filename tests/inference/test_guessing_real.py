"""With real models: 500 tokens are the same with guesses of any length and without.

The starter model, and those that QUIRE_TEST_MODELS names (paths as in PATH). On the fast path rows never
depend on each other, so the ids are equal, always. torch computes several rows a little differently than
one: there another token may win where two are nearly equal, and only there.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from torch import Tensor

from inference.config import BackendName, EngineConfig, SamplingParams
from inference.engine import Engine
from inference.engine_loading import EngineParts, load_parts
from inference.metrics import RequestMetrics
from inference.model.base import Runner
from inference.model.loader import LoadedModel, load_model
from inference.model.step import Chunk
from tests.inference.loaded_models import endless
from tests.inference.tiny_engine import sampled_ids

logger = logging.getLogger(__name__)
pytestmark = pytest.mark.slow

NUM_TOKENS = 500
NUM_SAMPLED = 160
LENGTHS = (1, 2, 4, 8, 16)
NEAR_TIE = 2e-3
"""Of two logits in float32: what other shapes of the same products may change, many times over."""

# A text to change in places: much of it is said again, and where it is changed guesses are wrong.
SCRIPT = """def read_table(path, separator):
    rows = []
    with open(path) as file:
        for line in file:
            cells = line.strip().split(separator)
            rows.append([cell.strip() for cell in cells])
    return rows


def total_of(rows, column):
    total = 0.0
    for row in rows[1:]:
        total += float(row[column])
    return total


def average_of(rows, column):
    return total_of(rows, column) / (len(rows) - 1)
"""
PROMPT = (
    f"Here is a script, and the same script with type hints and docstrings.\n\n```python\n{SCRIPT}```\n\n"
    "With type hints and docstrings:\n\n```python\n"
)
SAMPLED = SamplingParams(
    temperature=0.8, top_p=0.9, repetition_penalty=1.05, seed=7, max_tokens=NUM_SAMPLED
)
_STARTER = "starter"
_MODELS = [_STARTER, *filter(None, os.environ.get("QUIRE_TEST_MODELS", "").split(os.pathsep))]


class GapsRunner:
    """Computes as the one within, and notes by how much the best logit of each last row leads."""

    num_replays = 0

    def __init__(self, inner: Runner) -> None:
        self.kv = inner.kv
        self.device = inner.device
        self.gaps: list[float] = []
        self._inner = inner

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        logits = self._inner.run(chunks)
        if len(logits):
            best = logits[-1].topk(2).values
            self.gaps.append(float(best[0] - best[1]))
        return logits


@dataclass
class Model:
    """One model on one path; its weights are read once, and what it says without guesses is kept."""

    path: Path
    loaded: LoadedModel
    backend: BackendName
    num_threads: int
    gaps: list[float] = field(default_factory=list)
    _plain: dict[SamplingParams, list[int]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, backend: BackendName, num_threads: int) -> "Model":
        loaded = load_model(path, dtype="float32", backend=backend, num_threads=num_threads)
        return cls(path, loaded, backend, num_threads)

    @property
    def prompt(self) -> list[int]:
        return self.loaded.tokenizer.encode_text(PROMPT)

    def parts(self, **config: object) -> EngineParts:
        values: dict[str, object] = {
            "num_threads": self.num_threads,
            "context_tokens": 1536,
            **config,
        }
        parts = load_parts(
            self.path,
            EngineConfig(backend=self.backend, **values),  # type: ignore[arg-type]  # fields of tests
            None,
            load=lambda path, **options: self.loaded,
        )
        parts.tokenizer = endless(self.loaded.tokenizer)
        return parts

    def plain(self, params: SamplingParams) -> list[int]:
        """The ids without guesses; notes the gaps."""
        if params not in self._plain:
            parts = self.parts(guess="off")
            runner = GapsRunner(parts.runner)
            parts.runner = runner
            engine = Engine(parts)
            ids, metrics = answer(engine, self.prompt, params)
            engine.close()
            assert (metrics.drafted_tokens, len(runner.gaps)) == (0, len(ids))
            self._plain[params], self.gaps = ids, runner.gaps
        return self._plain[params]


def greedy(num_tokens: int = NUM_TOKENS) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=num_tokens)


def answer(
    engine: Engine, prompt: Sequence[int], params: SamplingParams
) -> tuple[list[int], RequestMetrics]:
    outputs = list(engine.generate(conversation_id="c", prompt_token_ids=prompt, params=params))
    engine.check_integrity()
    return sampled_ids(outputs), outputs[-1].metrics


def check_counts(metrics: RequestMetrics, num_tokens: int) -> None:
    """It guessed, sometimes rightly and sometimes wrongly, and the counts are those of the reply."""
    assert metrics.completion_tokens == num_tokens
    assert 0 < metrics.accepted_tokens < metrics.drafted_tokens
    assert metrics.accepted_tokens + metrics.verify_steps <= num_tokens


@pytest.fixture(scope="module", params=_MODELS, ids=lambda name: Path(name).stem)
def fast(request: pytest.FixtureRequest, starter_model_path: Path) -> Model:
    name = str(request.param)
    return Model.load(starter_model_path if name == _STARTER else Path(name), "fast", 2)


@pytest.fixture(scope="module")
def reference(starter_model_path: Path) -> Model:
    return Model.load(starter_model_path, "torch", 1)


@pytest.mark.parametrize("num_guessed", LENGTHS)
def test_greedy_ids_are_equal_on_the_fast_path(fast: Model, num_guessed: int) -> None:
    known = fast.plain(greedy())
    engine = Engine(fast.parts(guess="ngram", draft_tokens=num_guessed))
    assert engine.info.compute_path == "fast"
    ids, metrics = answer(engine, fast.prompt, greedy())
    engine.close()
    assert ids == known
    check_counts(metrics, len(known))
    assert len(known) == NUM_TOKENS


@pytest.mark.parametrize("num_guessed", [None, 4, 16])
def test_seed_gives_the_same_text_on_the_fast_path(fast: Model, num_guessed: int | None) -> None:
    known = fast.plain(SAMPLED)
    engine = Engine(fast.parts(guess="ngram", draft_tokens=num_guessed))
    ids, metrics = answer(engine, fast.prompt, SAMPLED)
    engine.close()
    assert ids == known
    if num_guessed is not None:
        check_counts(metrics, len(known))


@pytest.mark.parametrize("num_guessed", LENGTHS)
@pytest.mark.parametrize("params", [greedy(), SAMPLED], ids=("greedy", "sampled"))
def test_smaller_model_that_guesses_changes_no_id(
    fast: Model, params: SamplingParams, num_guessed: int
) -> None:
    known = fast.plain(params)
    engine = Engine(fast.parts(guess="off"))
    drafts = engine.find_drafts(_MODELS[1:])
    engine.close()
    if not drafts:
        pytest.skip("QUIRE_TEST_MODELS names no smaller model of this vocabulary")
    ids, metrics = guessed_by(fast, drafts[0], params, num_guessed)
    assert ids == known
    check_counts(metrics, len(known))


@pytest.mark.parametrize("num_guessed", LENGTHS)
def test_model_that_guesses_for_itself_changes_no_id(fast: Model, num_guessed: int) -> None:
    known = fast.plain(greedy())
    ids, metrics = guessed_by(fast, str(fast.path), greedy(), num_guessed)
    assert ids == known
    assert len(known) == NUM_TOKENS
    # It is nearly always right: it chooses among part of the vocabulary, and a token that it misses costs
    # the rest of a guess.
    assert 0.75 * metrics.drafted_tokens < metrics.accepted_tokens <= metrics.drafted_tokens
    assert metrics.verify_steps < 1.3 * NUM_TOKENS / (1 + num_guessed) + 1


def guessed_by(
    model: Model, draft: str, params: SamplingParams, num_guessed: int
) -> tuple[list[int], RequestMetrics]:
    """What a model says while another one guesses for it, so many tokens each time."""
    parts = model.parts(guess="draft", draft_model="set below", draft_tokens=num_guessed)
    engine = Engine(parts)
    parts.tokenizer = model.loaded.tokenizer  # as it is compared with the draft model's
    engine.use_draft(draft)
    parts.tokenizer = endless(model.loaded.tokenizer)
    ids, metrics = answer(engine, model.prompt, params)
    engine.close()
    return ids, metrics


@pytest.mark.parametrize("num_guessed", LENGTHS)
def test_greedy_ids_differ_on_the_torch_path_at_near_ties_only(
    reference: Model, num_guessed: int
) -> None:
    known = reference.plain(greedy())
    engine = Engine(reference.parts(guess="ngram", draft_tokens=num_guessed))
    assert engine.info.compute_path == "torch"
    done = num_accepted = 0
    while done < NUM_TOKENS:
        prompt = [*reference.prompt, *known[:done]]
        ids, metrics = answer(engine, prompt, greedy(NUM_TOKENS - done))
        num_accepted += metrics.accepted_tokens
        place = done + num_equal(ids, known[done:])
        if place < NUM_TOKENS:
            # After the near tie it goes on from what the plain run said.
            gap = reference.gaps[place]
            logger.warning("a near tie: at token %d the best logit leads by %.2g", place, gap)
            assert gap < NEAR_TIE, f"token {place} differs, where the best logit leads by {gap:.3g}"
        done = place + 1
    engine.close()
    assert num_accepted > 0


def num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first ids are the same."""
    equal = (left == right for left, right in zip(one, other, strict=True))
    return next((place for place, is_equal in enumerate(equal) if not is_equal), len(one))
