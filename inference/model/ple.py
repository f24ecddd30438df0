"""Per-layer embeddings: what each layer is given of the token itself. Engine thread only.

The formula is in `spec`. Source: Gemma 3n and 4, as in transformers.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from inference.model.linear import Linear, fast_linear
from inference.model.norms import norm_weight, rms_norm
from inference.model.spec import ModelSpec, WeightKey


class Ple(NamedTuple):
    """The model's part of them; L layers, P numbers for each.

    Attributes:
        spec: The model.
        embedding: (V, L * P).
        projection: From (T, hidden) to (T, L * P).
        norm: (P,).
    """

    spec: ModelSpec
    embedding: Tensor
    projection: Linear
    norm: Tensor

    @classmethod
    def build(
        cls,
        spec: ModelSpec,
        weights: Mapping[WeightKey, Tensor],
        ready: Mapping[WeightKey, Linear],
    ) -> "Ple":
        """Take its weights out of a model's, or products that are there already."""
        embedding = weights[WeightKey("ple_embedding")]
        key = WeightKey("ple_projection")
        projection = ready[key] if key in ready else fast_linear(weights[key], None)
        norm = norm_weight(weights[WeightKey("ple_norm")], embedding.dtype)
        return cls(spec, embedding, projection, norm)

    def parts(self, token_ids: Tensor, x: Tensor) -> Tensor:
        """Each layer's part for tokens (T,) with embeddings (T, hidden): (T, L, P)."""
        size = self.spec.ple_size
        told = functional.embedding(token_ids, self.embedding) * math.sqrt(size)
        projected = (self.projection(x) / math.sqrt(self.spec.hidden_size)).view(-1, size)
        normed = rms_norm(projected, self.norm, self.spec.norm_epsilon).view(told.shape)
        parts = (normed + told) * math.sqrt(0.5)
        return parts.view(*token_ids.shape, -1, size)
