"""Runs one step of a model that torch computes: chunks in, logits out. Engine thread only."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from inference.attention.base import AttentionBackend
from inference.kv_cache.tensors import KvTensors
from inference.model.step import Chunk, Step, lay_out
from inference.model.step_threads import StepThreads


class StepCache(Protocol):
    """Takes a step's keys and values and attends; the model asks it layer by layer."""

    slots: Tensor
    """Where this step's tokens go, (T,), int64."""


class TorchModel(Protocol):
    """A model that torch computes."""

    def make_cache(self, kv: KvTensors, attention: AttentionBackend) -> StepCache:
        """What `forward` stores in and reads from."""

    def forward(self, token_ids: Tensor, positions: Tensor, keep: Tensor, cache: Any) -> Tensor:
        """Run all layers once.

        Args:
            token_ids: (1, T), int64.
            positions: Each token's place in its own sequence, (1, T), int64.
            keep: Rows of T that need logits, int64; may be empty.
            cache: What `make_cache` gave.

        Returns:
            Logits (len(keep), V), float32.
        """


class ModelRunner:
    """One model with its KV memory.

    Attributes:
        kv: The memory of the blocks.
        device: Where the model and that memory are.
    """

    num_replays = 0

    def __init__(
        self,
        model: TorchModel,
        kv: KvTensors,
        attention: AttentionBackend,
        *,
        device: torch.device,
        has_fast_rows: bool = False,
    ) -> None:
        """Join the parts.

        Args:
            model: Computes.
            kv: Memory of the model's geometry, on `device`.
            attention: How to read it.
            device: Where the model is.
            has_fast_rows: Whether a step of one token may run on any number of threads, as with
                `FastLinear`; else all steps run on as many as torch is set to.
        """
        self.kv = kv
        self._model = model
        self._attention = attention
        self.device = device
        self._cache = model.make_cache(kv, attention)
        self._num_threads = torch.get_num_threads()
        self._one_row_threads = StepThreads(self._num_threads) if has_fast_rows else None

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """See `Runner`."""
        step = lay_out(chunks, self.kv)
        if len(step.token_ids) > 1 or self._one_row_threads is None:
            torch.set_num_threads(self._num_threads)
            return self._forward(step)
        torch.set_num_threads(self._one_row_threads.choose())
        began = time.perf_counter()
        logits = self._forward(step)
        self._one_row_threads.record(time.perf_counter() - began)
        return logits

    def _forward(self, step: Step) -> Tensor:
        with torch.inference_mode():
            self._attention.begin_step(step.spans)
            self._cache.slots = self._tensor(step.slots)
            ids, places = self._tensor(step.token_ids)[None], self._tensor(step.positions)[None]
            return self._model.forward(ids, places, self._tensor(step.keep), self._cache)

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)
