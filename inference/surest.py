"""The likeliest tokens of rows of logits, wherever these lie."""

from collections.abc import Sequence

import torch
from torch import Tensor

from inference.likeliest import surest


def surest_of(rows: Sequence[Tensor] | Tensor) -> list[tuple[int, float]]:
    """The likeliest token of each row, and its probability in the softmax of the row.

    Args:
        rows: Of logits, (V,) each, float32, on one device.

    Raises:
        ComputeError: A logit on the CPU is NaN or infinite.
    """
    if not len(rows):
        return []
    if rows[0].device.type == "cpu":
        return [surest(row.numpy()) for row in rows]
    logits = rows if isinstance(rows, Tensor) else torch.stack(list(rows))
    highest, token_ids = logits.max(dim=-1)
    probabilities = (highest - logits.logsumexp(dim=-1)).exp()
    return list(zip(token_ids.tolist(), probabilities.tolist(), strict=True))
