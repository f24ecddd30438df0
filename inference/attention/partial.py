"""Attention over a part of the keys, and how parts become the whole. Engine thread only.

Softmax over a union of key sets needs of each set only its result and the logarithm of its sum of
exponentials (LSE):

    out = sum_i exp(lse_i - m) * out_i / sum_i exp(lse_i - m),   m = max_i lse_i

Source: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"; as used between key
blocks by Dao et al. 2022, "FlashAttention", section 3.1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from inference.attention.base import LayerCall
from inference.kv_cache.layer_memory import KeyValues

# Returns (out, lse); private, but stable since torch 2.2, and the only CPU kernel that gives the LSE.
_flash_for_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class Partial(NamedTuple):
    """Attention over some of the keys.

    Attributes:
        out: (1, H, T, D).
        lse: (1, H, T), float32; -inf where no key was visible (and out is 0 there).
    """

    out: Tensor
    lse: Tensor


def attend_all(query: Tensor, past: KeyValues, call: LayerCall) -> Partial:
    """Attend to all given keys, without any mask.

    The query heads that share a key head become rows of one matrix, so that keys are read once.

    Args:
        query: (1, H, T, D).
        past: (1, KH, S, D), S >= 1.
        call: Scaling and soft cap; the window is the caller's matter.
    """
    _, H, T, D = query.shape
    KH = past.keys.shape[1]
    rows = query.reshape(1, KH, H // KH * T, D)
    if _has_kernel(query, call):
        out, lse = _flash_for_cpu(rows, past.keys, past.values, 0.0, False, scale=call.scaling)
    else:
        out, lse = _plain(rows, past, call, None)
    return Partial(out.reshape(1, H, T, D), lse.reshape(1, H, T))


def attend_causal(query: Tensor, new: KeyValues, call: LayerCall) -> Partial:
    """Attend from each token to itself and the ones before it, all of them given.

    Args:
        query: (1, H, T, D).
        new: (1, KH, T, D).
        call: As in `attend_all`.
    """
    if _has_kernel(query, call):
        return Partial(*_flash_for_cpu(query, new.keys, new.values, 0.0, True, scale=call.scaling))
    T = query.shape[2]
    hidden = torch.ones(T, T, dtype=torch.bool, device=query.device).triu(1)
    return _plain_grouped(query, new, call, hidden)


def attend_edge(query: Tensor, edge: KeyValues, call: LayerCall) -> Partial:
    r"""Attend to the keys at the far edge of a window, which leave it row by row.

    With E = S keys and T rows, the window of the last row begins one token after the last key,
    that of the row before it at the last key, and so on:

        row \ key   0 1 2        (T = 4, S = 3: row t sees the keys s >= t - (T - 1 - S))
            0       x x x
            1       . x x
            2       . . x
            3       . . .        nothing: lse = -inf

    Args:
        query: (1, H, T, D), T >= 2.
        edge: (1, KH, S, D), 1 <= S < T.
        call: As in `attend_all`.
    """
    T, S = query.shape[2], edge.keys.shape[2]
    offset = T - 1 - S
    hidden = torch.ones(T, S, dtype=torch.bool, device=query.device).tril(-1 - offset)
    if not _has_kernel(query, call):
        return _plain_grouped(query, edge, call, hidden)
    mask = torch.zeros(T, S, dtype=query.dtype, device=query.device)
    mask.masked_fill_(hidden, -torch.inf)
    out, lse = _flash_for_cpu(
        query, edge.keys, edge.values, 0.0, False, attn_mask=mask, scale=call.scaling
    )
    lse[:, :, -1] = -torch.inf  # NOTE: the kernel gives 0 for a row that sees nothing
    return Partial(out, lse)


def merge(parts: Sequence[Partial], call: LayerCall) -> Tensor:
    """Combine attention over disjoint keys into attention over all: (1, H, T, D)."""
    if call.sinks is not None:
        lse = call.sinks.view(1, -1, 1).expand_as(parts[0].lse)
        parts = [*parts, Partial(parts[0].out.new_zeros(1), lse)]
    if len(parts) == 1:
        return parts[0].out
    lse = torch.stack([part.lse for part in parts])
    weights = lse.softmax(dim=0).unsqueeze(-1)
    out = parts[0].out * weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        out = torch.addcmul(out, part.out, weight)
    return out.to(parts[0].out.dtype)


def _has_kernel(query: Tensor, call: LayerCall) -> bool:
    return call.softcap is None and query.device.type == "cpu"


def _plain_grouped(query: Tensor, past: KeyValues, call: LayerCall, hidden: Tensor) -> Partial:
    _, H, T, D = query.shape
    KH = past.keys.shape[1]
    group = H // KH
    rows = query.reshape(1, KH, group * T, D)
    out, lse = _plain(rows, past, call, hidden.repeat(group, 1))
    return Partial(out.reshape(1, H, T, D), lse.reshape(1, H, T))


def _plain(
    rows: Tensor, past: KeyValues, call: LayerCall, hidden: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What the kernel does, in plain operations: rows (1, KH, R, D) to (out, lse)."""
    scores = _products(rows, past.keys).mul_(call.scaling)
    if call.softcap is not None:
        scores = torch.tanh_(scores / call.softcap).mul_(call.softcap)
    if hidden is not None:
        scores.masked_fill_(hidden, -torch.inf)
    lse = scores.logsumexp(dim=-1)
    # A row that sees nothing has lse = -inf: the clamp makes exp(-inf - finite) = 0 of it, not NaN.
    weights = (scores - lse.clamp(min=-1e30).unsqueeze(-1)).exp_()
    return weights.to(rows.dtype) @ past.values, lse


def _products(rows: Tensor, keys: Tensor) -> Tensor:
    """Rows (1, KH, R, D) times keys (1, KH, S, D) in float32, (1, KH, R, S).

    Of 16 bits too: before scaling they may be some hundreds, which bfloat16 has in steps of 2; and what is
    beyond 65,504 would be infinite in float16.
    """
    if rows.dtype == torch.float32:
        return rows @ keys.transpose(2, 3)
    if _can_widen(rows.device):
        return torch.bmm(rows[0], keys[0].transpose(1, 2), out_dtype=torch.float32).unsqueeze(0)
    return rows.float() @ keys.float().transpose(2, 3)


def _can_widen(device: torch.device) -> bool:
    """Whether torch multiplies 16 bits into 32 there."""
    return device.type == "cuda" and torch.version.hip is None
