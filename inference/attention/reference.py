"""The truth about attention: plain, slow, on any device. Engine thread only.

It gathers every key and value of a sequence, masks by position and computes in float32. Tests hold
the fast backends against it; a user can choose it to rule a fault of theirs out.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from inference.attention.base import SMALL_BLOCK_SIZE, LayerCall, Span
from inference.kv_cache.layer_memory import KeyValues, LayerMemory


class ReferenceAttention:
    """Gather, mask, float32 softmax."""

    name = "reference"
    block_size = SMALL_BLOCK_SIZE

    def __init__(self) -> None:
        self._spans: Sequence[Span] = ()

    def begin_step(self, spans: Sequence[Span]) -> None:
        """See `AttentionBackend`."""
        self._spans = spans

    def attend(self, query: Tensor, new: KeyValues, past: LayerMemory, call: LayerCall) -> Tensor:
        """See `AttentionBackend`; `new` is not read, because the blocks hold the same."""
        del new
        parts = [
            _attend_span(query[0, :, span.row : span.row + span.num_rows], past, span, call)
            for span in self._spans
        ]
        return torch.cat(parts, dim=1).transpose(0, 1).unsqueeze(0).to(query.dtype)


def _attend_span(query: Tensor, past: LayerMemory, span: Span, call: LayerCall) -> Tensor:
    """Attend for one sequence: query (H, T, D) to (H, T, D), float32."""
    slots = torch.cat(
        [torch.arange(first, first + count, device=query.device) for first, count in span.extents]
    )
    KH, D = past.geometry.num_kv_heads, past.geometry.head_dim
    both = torch.empty(2 * KH, len(slots), D, dtype=torch.float32, device=query.device)
    past.read_slots(slots, both)
    keys, values = both.repeat_interleave(query.shape[0] // KH, dim=0).chunk(2)
    scores = query.float() @ keys.transpose(1, 2) * call.scaling
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    distance = torch.arange(span.start, len(slots), device=query.device)[:, None] - torch.arange(
        len(slots), device=query.device
    )
    is_hidden = distance < 0
    if call.window is not None:
        is_hidden |= distance >= call.window
    scores.masked_fill_(is_hidden, -torch.inf)
    if call.sinks is not None:
        sinks = call.sinks.float().view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1] @ values
    return scores.softmax(dim=-1) @ values
