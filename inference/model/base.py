"""What the engine needs of a model, whichever way it is computed. Engine thread only.

path      made of                                            computed by
fast      `native_model`: packed weights of a file           our C++ kernels, a step in one call
torch     `decoder`: our own decoder                         torch
bridge    `bridge`: any model that transformers knows        transformers
"""

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from inference.attention.base import AttentionBackend
from inference.kv_cache.schemes import LayerGeometry
from inference.kv_cache.tensors import KvTensors
from inference.model.step import Chunk

PathName = Literal["fast", "torch", "bridge"]


class Runner(Protocol):
    """One model with its KV memory."""

    @property
    def kv(self) -> KvTensors:
        """The memory of the blocks."""

    @property
    def device(self) -> torch.device:
        """Where the logits are."""

    @property
    def num_replays(self) -> int:
        """Steps that were captured before and only replayed."""

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Compute the chunks in one pass and store their keys and values.

        Args:
            chunks: At least one; no two may share a block that either writes to.

        Returns:
            (number of tokens whose logits are wanted, V), float32, in the order of the tokens.
        """


@runtime_checkable
class ShortLogits(Protocol):
    """A runner that can leave out the last logits, which saves the reading of their weights.

    Attributes:
        num_logits: How many first ones are computed; may be set, to a multiple of `logits_unit` or V.
        logits_unit: See there.
        logits_share: Of the weights that a step reads, those that make all V of them.
    """

    num_logits: int
    logits_unit: int
    logits_share: float


class LanguageModel(Protocol):
    """A causal model, ready to run over blocks."""

    @property
    def path_name(self) -> PathName:
        """Which way it is computed."""

    @property
    def kernels(self) -> str:
        """What computes it, for people: "avx2", "torch", ..."""

    @property
    def has_independent_rows(self) -> bool:
        """Whether a token's values are the same to the last bit in whatever step it is computed."""

    @property
    def geometry(self) -> tuple[LayerGeometry, ...]:
        """What each layer stores per token."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of keys and queries, as the model computes them."""

    @property
    def vocab_size(self) -> int:
        """V, length of the logits."""

    @property
    def stable_context_tokens(self) -> int | None:
        """Beyond this the rotary angles would change; None if they never do."""

    @property
    def has_attention_softcap(self) -> bool:
        """Whether its layers cap attention scores."""

    @property
    def config_text(self) -> str:
        """All that its values depend on beside weights and text: for telling models apart."""

    @property
    def device(self) -> torch.device:
        """Where it is."""

    def make_runner(self, kv: KvTensors, attention: AttentionBackend) -> Runner:
        """Join it with memory of its geometry, on its device.

        Args:
            kv: The memory of the blocks.
            attention: How to read it, where the model leaves that to others.
        """
