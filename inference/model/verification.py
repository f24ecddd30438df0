"""Checks at load that the bridge gives what the model's own code gives. Engine thread only.

Families that the tests cover are taken at their word. Any other model that transformers knows runs
a dozen tokens both ways first: that costs three short passes and catches attention that differs
from what its configuration says.
"""

import logging
import math
from pathlib import Path

import torch

from inference.errors import ModelFileError, UnsupportedModelError
from inference.model.base import Runner
from inference.model.bridge import ATTENTION_NAME, TransformersBridge
from inference.model.library_errors import LIBRARY_ERRORS, first_line
from inference.model.memory import is_out_of_memory
from inference.model.step import Chunk

logger = logging.getLogger(__name__)

TESTED_ARCHITECTURES = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "phi3", "granite", "olmo2", "gemma2", "gemma3"}
)
VERIFIED_TOKENS = 12
_FIRST_CHUNK = 7
# Largest difference of logits, as a share of their range.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


def verify(architecture: str, bridge: TransformersBridge, runner: Runner, path: Path) -> None:
    """Compare the bridge with the model's own forward.

    Args:
        architecture: The model's, as its configuration calls it.
        bridge: Has the model; on return its attention is ours again.
        runner: Runs it over blocks; uses its first blocks, so nothing may be cached yet.
        path: Where the model came from, for the error.

    Raises:
        ModelFileError: What the model's own forward gives is of no use.
        UnsupportedModelError: They differ.
    """
    try:
        error = _largest_error(bridge, runner)
    except LIBRARY_ERRORS as failure:
        if is_out_of_memory(failure):
            raise
        raise UnsupportedModelError(
            path, f"Its code ({architecture}) cannot run over blocks: {first_line(failure)}"
        ) from failure
    if math.isnan(error):
        raise ModelFileError(
            path,
            "What it computes are not numbers, or all the same.",
            hint="It may be damaged: download it again, or choose another model.",
        )
    logger.info("compared the untested architecture %s: error %.2g", architecture, error)
    if not error <= _TOLERANCE.get(bridge.dtype, 0.1):
        raise UnsupportedModelError(
            path, f"Its attention ({architecture}) works differently from what Quire can do."
        )


def _largest_error(bridge: TransformersBridge, runner: Runner) -> float:
    """The largest difference of logits, as a share of the range of the model's own."""
    token_ids = [1 + 7 * index % (bridge.vocab_size - 1) for index in range(VERIFIED_TOKENS)]
    bridge.select_attention("eager")
    try:
        with torch.inference_mode():
            expected = bridge.forward_alone(torch.tensor([token_ids], device=runner.device))
    finally:
        bridge.select_attention(ATTENTION_NAME)
    expected = expected[[_FIRST_CHUNK - 1, VERIFIED_TOKENS - 1]]
    size = runner.kv.block_size
    table = list(range(-(-VERIFIED_TOKENS // size)))
    rows = [
        runner.run([Chunk(token_ids[low:high], low, table, needs_logits=True)])
        for low, high in ((0, _FIRST_CHUNK), (_FIRST_CHUNK, VERIFIED_TOKENS))
    ]
    difference = (torch.cat(rows) - expected).abs().max()
    return float(difference / (expected.max() - expected.min()))
