"""Our kernels against our decoder in torch, in float32, with real models.

The starter model, and those that QUIRE_TEST_MODELS names (paths as in PATH). The kernels round inputs of
products to 8 bits, so logits differ a little, and where two tokens are nearly equal the other may win:
`--log-cli-level=INFO` shows these.
"""

import logging
import os
from pathlib import Path
from typing import cast

import pytest
from torch import Tensor

from inference.attention.blocks import BlocksAttention
from inference.config import BackendName
from inference.kv_cache.schemes import find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.model.base import LanguageModel
from inference.model.loader import load_model
from inference.model.step import Chunk

logger = logging.getLogger(__name__)
pytestmark = pytest.mark.slow

P = 16
NUM_TOKENS = 96
PROMPTS = (
    "The sea is blue because",
    "def fibonacci(n):\n",
    "List five animals that live in a forest:\n1.",
)
_STARTER = "starter"
_MODELS = [_STARTER, *filter(None, os.environ.get("QUIRE_TEST_MODELS", "").split(os.pathsep))]


class Runner:
    """A model by one path, with room for one text."""

    def __init__(self, path: Path, backend: BackendName) -> None:
        loaded = load_model(path, dtype="float32", backend=backend, num_threads=2)
        self.tokenizer = loaded.tokenizer
        model = cast(LanguageModel, loaded.model)
        self._blocks = range(-(-2 * NUM_TOKENS // P))
        kv = KvTensors(
            model.geometry,
            num_blocks=len(self._blocks),
            block_size=P,
            scheme=find_scheme("fp16", model.dtype),
            device=model.device,
        )
        self._runner = model.make_runner(kv, BlocksAttention())

    def logits(self, token_ids: list[int], start: int = 0) -> Tensor:
        """Of all tokens from `start` on, (T, V)."""
        chunk = Chunk(token_ids[start:], start, self._blocks, True, needs_all_logits=True)
        return self._runner.run([chunk])

    def greedy(self, token_ids: list[int]) -> list[int]:
        """The text, and the likeliest tokens after it."""
        text, start = list(token_ids), 0
        while len(text) < len(token_ids) + NUM_TOKENS:
            best = int(self.logits(text, start)[-1].argmax())
            start = len(text)
            text.append(best)
        return text


@pytest.mark.parametrize("name", _MODELS)
def test_kernels_choose_the_tokens_of_the_reference_but_for_near_ties(
    name: str, starter_model_path: Path
) -> None:
    path = starter_model_path if name == _STARTER else Path(name)
    reference, kernels = Runner(path, "torch"), Runner(path, "fast")
    num_equal, num_rows, divergence = 0, 0, 0.0
    for prompt in PROMPTS:
        prompt_ids = reference.tokenizer.encode_text(prompt)
        text = reference.greedy(prompt_ids)
        expected = reference.logits(text)[len(prompt_ids) - 1 : -1]
        actual = kernels.logits(text)[len(prompt_ids) - 1 : -1]
        best, ours = expected.argmax(-1), actual.argmax(-1)
        gaps = (expected.gather(1, best[:, None]) - expected.gather(1, ours[:, None]))[:, 0]
        for row in (best != ours).nonzero()[:, 0].tolist():
            pair = [reference.tokenizer.decode([int(ids[row])]) for ids in (best, ours)]
            logger.info("%r, token %d: %r or %r, %.3f apart", prompt, row, *pair, float(gaps[row]))
        assert gaps.max() < 0.5, f"after {prompt!r}, token {int(gaps.argmax())}"
        num_equal += int((best == ours).sum())
        num_rows += len(best)
        a, b = expected.log_softmax(-1), actual.log_softmax(-1)
        divergence += float((a.exp() * (a - b)).sum())
    assert num_equal >= 0.9 * num_rows
    assert divergence / num_rows < 0.01
