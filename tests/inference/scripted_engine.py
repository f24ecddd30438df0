"""Asking an engine in tests: short ways to ask, a model that says what it is told, a clock."""

from collections.abc import Sequence

import torch
from torch import Tensor

from inference.config import SamplingParams
from inference.engine import Engine
from inference.model.step import Chunk
from inference.request import GenerateRequest, StepOutput
from inference.text.vocabulary import BYTE_ALPHABET
from tests.inference.tiny_engine import EOS_ID, make_loaded, make_parts, run_until_idle
from tests.inference.tiny_models import VOCAB_SIZE, eager_logits

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def greedy(max_tokens: int | None = 12, *, stop: Sequence[str] = ()) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, stop=tuple(stop))


def ask(
    prompt: Sequence[int], params: SamplingParams = GREEDY, *, chat: str = "chat"
) -> GenerateRequest:
    return GenerateRequest(chat, prompt_token_ids=tuple(prompt), params=params)


def answer(engine: Engine, request: GenerateRequest) -> list[StepOutput]:
    """All outputs of one request; nothing else may be running."""
    request_id = engine.add_request(request)
    outputs = run_until_idle(engine)
    assert list(outputs) == [request_id]
    engine.check_integrity()
    return outputs[request_id]


def eager_greedy(module: torch.nn.Module, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy decoding with transformers' eager forward over the whole text, again and again."""
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(int(eager_logits(module, token_ids)[-1].argmax()))
    return token_ids[len(prompt) :]


class FakeClock:
    """Time that moves only when told, or by a fixed amount per look."""

    def __init__(self, *, tick: float = 0.0) -> None:
        self.now = 100.0
        self.tick = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class ScriptedRunner:
    """Gives logits that make greedy sampling say a text; or fails when told to."""

    num_replays = 0

    def __init__(self, inner: object, token_ids: Sequence[int] = ()) -> None:
        self.kv = inner.kv  # type: ignore[attr-defined]  # a ModelRunner
        self.calls: list[list[Chunk]] = []
        self.error: Exception | None = None
        self._script = list(token_ids)

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        self.calls.append(list(chunks))
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        rows = [chunk for chunk in chunks if chunk.needs_logits]
        logits = torch.zeros(len(rows), VOCAB_SIZE)
        for row in range(len(rows)):
            logits[row, self._script.pop(0) if self._script else 50] = 9.0
        return logits


def scripted_engine(text: str | bytes, **config: object) -> tuple[Engine, ScriptedRunner]:
    """An engine whose model says exactly this text, one byte per token, then ends."""
    # Its runner gives the next token only, whatever is guessed.
    parts = make_parts(make_loaded(eos_ids=[EOS_ID]), guess="off", **config)
    script = [id_of(byte) for byte in (text.encode() if isinstance(text, str) else text)]
    runner = ScriptedRunner(parts.runner, [*script, EOS_ID])
    parts.runner = runner  # type: ignore[assignment]  # the seam for fakes
    return Engine(parts), runner


def id_of(byte: int) -> int:
    return 4 + [*BYTE_ALPHABET.values()].index(byte)
