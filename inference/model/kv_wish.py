"""What keys and values are to be kept beside a model's weights, known before either is. Any thread."""

from dataclasses import dataclass

import torch

from inference.config import KvSchemeName
from inference.kv_cache.schemes import LayerGeometry, bytes_per_token, find_scheme
from inference.model.spec import ModelSpec

_LEAST_TOKENS = 8192  # of a context that is worth having weights on the host for


@dataclass(frozen=True, slots=True)
class KvWish:
    """What the caller wants; see `EngineConfig`.

    Attributes:
        scheme: How they are stored.
        context_tokens: The longest context; None for the model's.
        most_bytes: Budget of the blocks; None if there is none.
    """

    scheme: KvSchemeName = "auto"
    context_tokens: int | None = None
    most_bytes: int | None = None

    def least_bytes(self, spec: ModelSpec, dtype: torch.dtype) -> int:
        """What blocks should have room for: a whole context, or as much of it as most chats need.

        Args:
            spec: The model.
            dtype: What it computes in.
        """
        limits = (spec.context_tokens, spec.stable_context_tokens, self.context_tokens)
        num_tokens = min(_LEAST_TOKENS, *(limit for limit in limits if limit is not None))
        geometry = [LayerGeometry(*shape) for shape in spec.kv_shapes]
        size = num_tokens * bytes_per_token(geometry, find_scheme(self.scheme, dtype))
        return size if self.most_bytes is None else min(size, self.most_bytes)
