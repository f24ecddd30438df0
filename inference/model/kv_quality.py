"""What storing keys and values in fewer bits costs a model, measured on the model itself.

Some models bear four bits, others do not, and no table knows which. So a text of some thousand tokens
goes through the model twice, and the perplexities are compared: how surprised it is by each next
token, with all before it read back from the blocks. What came out is remembered in a small file, and
the file may go or be damaged at any time: then the answer is worked out again.
"""

import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from inference.attention.base import AttentionBackend
from inference.kv_cache.schemes import KvScheme, find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.model.base import LanguageModel, Runner
from inference.model.step import Chunk
from inference.regular_file import open_regular

logger = logging.getLogger(__name__)

MAX_INT4_LOSS = 0.02
# A chunk's logits are all kept until its losses are known: 64 rows of 256,000 are 65 MB.
_CHUNK_TOKENS = 64
_FILE_VERSION = 2


@dataclass(frozen=True, slots=True)
class KvVerdict:
    """Whether a model may store its keys and values in int4.

    Attributes:
        loss: By how much its perplexity grows, 0.01 is 1 %.
        is_offered: Whether that is little enough.
        reason: Why not, one sentence; "" if it is offered.
    """

    loss: float
    is_offered: bool
    reason: str


def perplexity(
    runner: Runner,
    token_ids: Sequence[int],
    on_progress: Callable[[float], None] | None = None,
) -> float:
    """How surprised the model is by each token of a text, given those before it.

    Args:
        runner: The model; its blocks 0, 1, ... are overwritten and must hold the whole text.
        token_ids: At least two.
        on_progress: Told the share that is done, on this thread.
    """
    mean = float(token_losses(runner, token_ids, on_progress).mean())
    return math.exp(mean) if mean < 700.0 else math.inf  # NaN goes through as it is


def token_losses(
    runner: Runner,
    token_ids: Sequence[int],
    on_progress: Callable[[float], None] | None = None,
) -> Tensor:
    """Minus the logarithm of each token's probability, given those before it: see `perplexity`.

    Returns:
        (T - 1,), float64, on the CPU.
    """
    size = runner.kv.block_size
    table = range(-(-len(token_ids) // size))
    losses = []
    for low in range(0, len(token_ids) - 1, _CHUNK_TOKENS):
        high = min(low + _CHUNK_TOKENS, len(token_ids) - 1)
        chunk = Chunk(token_ids[low:high], low, table, needs_logits=True, needs_all_logits=True)
        logits = runner.run([chunk])
        following = torch.tensor(token_ids[low + 1 : high + 1], device=logits.device)
        loss = functional.cross_entropy(logits, following, reduction="none")
        losses.append(loss.to("cpu", torch.float64))
        if on_progress is not None:
            on_progress(high / (len(token_ids) - 1))
    return torch.cat(losses)


def scheme_loss(
    model: LanguageModel,
    attention: AttentionBackend,
    token_ids: Sequence[int],
    scheme: KvScheme,
    block_size: int,
    on_progress: Callable[[float], None] | None = None,
) -> float:
    """By how much a scheme raises the perplexity of a text, 0.01 is 1 %.

    Args:
        model: The model.
        attention: The backend that will be used.
        token_ids: The text.
        scheme: Compared with what "auto" stands for.
        block_size: P.
        on_progress: Told the share that is done, on this thread.
    """
    found = []
    for index, each in enumerate((find_scheme("auto", model.dtype), scheme)):
        kv = KvTensors(
            model.geometry,
            num_blocks=-(-len(token_ids) // block_size),
            block_size=block_size,
            scheme=each,
            device=model.device,
        )
        runner = model.make_runner(kv, attention)
        found.append(perplexity(runner, token_ids, _half(on_progress, index)))
    return found[1] / found[0] - 1.0


def assess_int4(
    model: LanguageModel,
    attention: AttentionBackend,
    token_ids: Sequence[int],
    block_size: int,
    on_progress: Callable[[float], None] | None = None,
) -> KvVerdict:
    """Find out whether int4 may be offered for a model.

    Args:
        model: The model.
        attention: The backend that will be used.
        token_ids: Of `sample_text`, with the model's own beginning of a text.
        block_size: P.
        on_progress: Told the share that is done, on this thread.
    """
    if any(layer.head_dim % 2 for layer in model.geometry):
        return KvVerdict(math.inf, False, "This model's heads have an odd size; int4 needs pairs.")
    loss = scheme_loss(
        model, attention, token_ids, find_scheme("int4", model.dtype), block_size, on_progress
    )
    logger.info("int4 keys and values raise the perplexity by %.2f %%", 100 * loss)
    return verdict_of(loss)


def verdict_of(loss: float) -> KvVerdict:
    """What a loss means; one that is no number is too much, and so is a gain: it is another model then."""
    if abs(loss) <= MAX_INT4_LOSS:
        return KvVerdict(loss, True, "")
    limit = f"the limit is {100 * MAX_INT4_LOSS:.0f}%."
    if not math.isfinite(loss):
        return KvVerdict(math.inf, False, f"int4 would spoil this model's predictions; {limit}")
    # Rounded up, so that it never reads as if it were just the limit.
    percent = f"{math.ceil(1000 * abs(loss) - 1e-9) / 10:.1f}%"
    change = f"make this model's predictions {percent} worse"
    if loss < 0:
        change = f"change this model's predictions by {percent}"
    return KvVerdict(loss, False, f"int4 would {change}; {limit}")


def sample_text() -> str:
    """Some pages of English of several kinds, to measure on."""
    return (resources.files("inference.model") / "kv_quality.txt").read_text(encoding="utf-8")


def load_verdict(folder: Path, fingerprint: str) -> KvVerdict | None:
    """What was found out about a model before; None if nothing is known, or nothing readable."""
    try:
        with open_regular(_file(folder, fingerprint)) as file:
            stored = json.load(file)
        if stored["version"] != _FILE_VERSION or stored["fingerprint"] != fingerprint:
            return None
        loss = stored["loss"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(loss, bool) or not isinstance(loss, (int, float)):
        return None
    return verdict_of(float(loss)) if abs(loss) < 1e300 else verdict_of(math.inf)


def save_verdict(folder: Path, fingerprint: str, verdict: KvVerdict) -> None:
    """Remember what was found out; if that fails, it is found out again another time."""
    stored = {"version": _FILE_VERSION, "fingerprint": fingerprint, "loss": verdict.loss}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix="kv-quality-", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(stored, file)
            os.replace(name, _file(folder, fingerprint))
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        logger.warning("what int4 costs this model could not be remembered: %s", error)


def _file(folder: Path, fingerprint: str) -> Path:
    return folder / f"kv-quality-{fingerprint}.json"


def _half(
    on_progress: Callable[[float], None] | None, index: int
) -> Callable[[float], None] | None:
    if on_progress is None:
        return None
    return lambda share: on_progress((index + share) / 2)
