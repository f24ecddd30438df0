"""Replays decode steps that were captured once: on a GPU, launching costs more than computing a token.

A step of a 1B model is some four hundred kernels, each launched by the processor. A captured step is
one launch. What is captured is addresses: so a step reads its tokens, places, slots and block table
from tensors that stay where they are and are filled anew before each replay.

A captured step has a fixed number of rows and a fixed width of its block table. Both go up in powers
of two, a shape is captured when it is first needed, and rows that are not needed compute a token of
their own in the spare block, which is in no table. Steps with prompts in them are computed eagerly.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from inference.attention.base import Extent, Span
from inference.attention.paged import PagedAttention, PagedStep, TableShape, power_of_two
from inference.kv_cache.tensors import KvTensors
from inference.model.runner import ModelRunner, StepCache, TorchModel
from inference.model.step import Chunk, Step, lay_out

logger = logging.getLogger(__name__)

MAX_ROWS = 32  # of a captured step; beyond, computing takes long enough to launch beside it

Replay = Callable[[], Tensor]
"""Computes what was captured, from what its tensors hold now. The result is good until the next one."""


class Capture(Protocol):
    """Something that captures work on a device."""

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        """Capture what a function does; it is called several times meanwhile.

        Raises:
            RuntimeError: It cannot be captured.
        """


class GraphRunner:
    """A model whose decode steps are replayed. Engine thread only.

    Attributes:
        kv: The memory of the blocks, with a spare one.
        device: Where the model and that memory are.
        num_replays: Steps that were replayed.
    """

    def __init__(
        self,
        model: TorchModel,
        kv: KvTensors,
        attention: PagedAttention,
        eager: ModelRunner,
        capture: Capture,
    ) -> None:
        """Join the parts.

        Args:
            model: Computes; reads nothing of the processor's memory while it does.
            kv: Memory with a spare block.
            attention: Reads it.
            eager: Runs what is not replayed, on the same parts.
            capture: Captures.
        """
        assert kv.spare_slot is not None, "rows that fill a step need a place"
        self.kv = kv
        self.device = eager.device
        self.num_replays = 0
        self._model = model
        self._attention = attention
        self._cache = model.make_cache(kv, attention)
        self._eager = eager
        self._capture: Capture | None = capture
        self._steps: dict[TableShape, _CapturedStep] = {}

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """See `Runner`."""
        if self._capture is None or not _is_decode(chunks, self.kv.block_size):
            return self._eager.run(chunks)
        step = lay_out(chunks, self.kv)
        keep = list(step.keep)
        _fill_up(step, self.kv)
        with torch.inference_mode():
            captured = self._captured(step)
            if captured is None:
                return self._eager.run(chunks)
            logits = captured.replay()
            self.num_replays += 1
            rows = slice(len(keep)) if keep == list(range(len(keep))) else keep
            return logits[rows].clone()  # the next replay writes where these are

    def _captured(self, step: Step) -> "_CapturedStep | None":
        """The captured step of this one's shape, filled with it; None if none can be captured."""
        shape = TableShape.of(step.spans, self.kv.block_size)
        known = self._steps.get(shape)
        if known is not None:
            known.fill(step)
            return known
        assert self._capture is not None, "nobody comes here after it failed"
        made = _CapturedStep(shape, self._model, self._cache, self._attention, self.device)
        made.fill(step)
        try:
            made.capture(self._capture)
        except RuntimeError as error:
            logger.warning("decode steps are computed without graphs from now on: %s", error)
            self._capture = None
            self._steps.clear()
            return None
        self._steps[shape] = made
        return made


class _CapturedStep:
    """One shape of step: its tensors and how to replay it."""

    def __init__(
        self,
        shape: TableShape,
        model: TorchModel,
        cache: StepCache,
        attention: PagedAttention,
        device: torch.device,
    ) -> None:
        rows = shape.num_sequences
        self._shape = shape
        self._model = model
        self._cache = cache
        self._attention = attention
        self._rows = torch.zeros(3, rows, dtype=torch.int64, device=device)
        self._numbers = torch.zeros(shape.num_numbers, dtype=torch.int32, device=device)
        self._paged = PagedStep.over(
            self._numbers, shape, max_rows=1, block_size=attention.block_size
        )
        self._keep = torch.arange(rows, device=device)
        self._replay: Replay | None = None

    def fill(self, step: Step) -> None:
        """Take over a step of this shape."""
        self._rows.copy_(torch.tensor([step.token_ids, step.positions, step.slots]))
        numbers = PagedStep.numbers(step.spans, self._shape, self._attention.block_size)
        self._numbers.copy_(torch.tensor(numbers, dtype=torch.int32))

    def capture(self, capture: Capture) -> None:
        """Capture it, as it is filled: what is computed meanwhile is that step, over and over."""
        self._replay = capture(self._compute)

    def replay(self) -> Tensor:
        """Logits of all rows, (B, V), float32."""
        assert self._replay is not None, "it was captured"
        return self._replay()

    def _compute(self) -> Tensor:
        token_ids, positions, slots = self._rows.unbind()
        self._attention.use(self._paged)
        self._cache.slots = slots
        return self._model.forward(token_ids[None], positions[None], self._keep, self._cache)


def _is_decode(chunks: Sequence[Chunk], block_size: int) -> bool:
    """Whether a step may be replayed: a token for each of a few sequences."""
    most = min(MAX_ROWS, block_size)  # all rows that fill up have places in one block
    return len(chunks) <= most and all(len(chunk.token_ids) == 1 for chunk in chunks)


def _fill_up(step: Step, kv: KvTensors) -> None:
    """Add rows until their number is a power of two: each the first token of a text in the spare block."""
    assert kv.spare_slot is not None, "it has one"
    for place in range(power_of_two(len(step.spans)) - len(step.spans)):
        step.spans.append(Span(len(step.token_ids), 1, 0, (Extent(kv.spare_slot, 1),)))
        step.token_ids.append(0)
        step.positions.append(0)
        step.slots.append(kv.spare_slot + place)  # apart, so that no two rows write one place
