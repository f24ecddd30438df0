"""Stand-ins for what only a GPU has: a kernel that reads pages, and a capture of what is computed."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from inference.attention.base import Extent, Span
from inference.attention.varlen import VarlenKernel
from inference.model.graphs import Replay

PAGE_SLOTS = 256


def emulated_flash_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, ...]:
    """What `aten._flash_attention_forward` computes with a block table, and what it checks.

    Nothing is read back to the processor meanwhile: so it can be captured like the kernel.
    """
    assert (dropout_p, return_debug_mask, alibi_slopes) == (0.0, False, None)
    assert cum_seq_q is not None
    assert window_size_left is not None
    assert window_size_right is not None
    T, H, D = query.shape
    assert block_table is not None
    assert seqused_k is not None
    assert cum_seq_k is not None
    B, W = block_table.shape
    N, P, KH, _ = key.shape
    numbers = (cum_seq_q, cum_seq_k, seqused_k, block_table)
    assert all(tensor.dtype == torch.int32 and tensor.is_contiguous() for tensor in numbers)
    assert cum_seq_q.shape == cum_seq_k.shape == (B + 1,)
    assert seqused_k.shape == (B,)
    assert value.shape == key.shape == (N, P, KH, D)
    assert query.dtype == key.dtype == value.dtype
    assert {tensor.stride(-1) for tensor in (query, key, value)} == {1}
    assert P % PAGE_SLOTS == 0
    assert H % KH == 0
    assert max_k == W * P
    assert max_q >= 1
    left, right = window_size_left, window_size_right
    assert is_causal == ((left, right) == (-1, 0))
    if B > 1 and (max_q > 1 or (left, right) != (-1, -1) or H == KH):
        assert num_splits == 1  # see `inference.attention.varlen._may_split`
    rows = torch.arange(T)
    owner = torch.searchsorted(cum_seq_q, rows, right=True, out_int32=True).long() - 1
    used = seqused_k[owner]
    place = used - cum_seq_q[owner + 1] + rows  # bottom right: the last row is the last token
    slots = torch.arange(W * P)
    pages = block_table[owner].long()
    # To T, KH, one group of query heads, W * P, D.
    keys, values = (
        pool[pages].reshape(T, W * P, KH, 1, D).permute(0, 2, 3, 1, 4).float()
        for pool in (key, value)
    )
    hidden = slots >= used[:, None]
    if right >= 0:
        hidden |= slots > place[:, None] + right
    if left >= 0:
        hidden |= slots < place[:, None] - left
    hidden = hidden[:, None, None, :]
    grouped = query.float().view(T, KH, H // KH, 1, D)
    scores = (grouped * keys).sum(-1) * (D**-0.5 if scale is None else scale)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    clean = torch.where(hidden.unsqueeze(-1), 0.0, values)  # what nobody wrote may be NaN
    lse = scores.masked_fill(hidden, -torch.inf).logsumexp(-1).view(T, H).t()
    return (weights.unsqueeze(-1) * clean).sum(-2).view(T, H, D).to(query.dtype), lse


def emulated_flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    block_table: Tensor | None = None,
) -> Tensor:
    """What `flash_attn.flash_attn_varlen_func` computes: lengths are those of the cumulated ones."""
    assert causal
    assert max_seqlen_q >= 1
    used = cu_seqlens_k.diff()
    assert block_table is not None
    assert max_seqlen_k == block_table.shape[1] * k.shape[1]
    parts = []
    for index, (first, end) in enumerate(itertools.pairwise(cu_seqlens_q.tolist())):
        rows = q[first:end]
        count = int(used[index])
        keys, values = (
            pool[block_table[index].long()].flatten(0, 1)[:count].float().transpose(0, 1)
            for pool in (k, v)
        )  # (KH, S, D)
        group = q.shape[1] // k.shape[2]
        keys, values = (each.repeat_interleave(group, dim=0) for each in (keys, values))
        scores = rows.float().transpose(0, 1) @ keys.transpose(1, 2) * softmax_scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        distance = torch.arange(count - len(rows), count)[:, None] - torch.arange(count)
        hidden = distance < 0
        if window_size[0] >= 0:
            hidden |= distance > window_size[0]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        parts.append((weights @ values).transpose(0, 1))
    return torch.cat(parts).to(q.dtype)


class EmulatedVarlen(VarlenKernel):
    """`VarlenKernel` without a GPU."""

    def __init__(self, function: Callable[..., Any] = emulated_flash_attention_forward) -> None:
        super().__init__(function)

    def why_not_on(self, device: torch.device) -> str:
        return ""


def varlen_on_gpu() -> VarlenKernel:
    """The real kernel; a test is skipped where the device or the build of torch lacks it."""
    kernel = VarlenKernel()
    reason = kernel.why_not_on(torch.device("cuda"))
    if reason:
        pytest.skip(f"without varlen: {reason}")
    return kernel


def span_over(row: int, num_rows: int, start: int, table: Sequence[int], block_size: int) -> Span:
    """A span whose every block is a run of its own."""
    end = start + num_rows
    extents = [
        Extent(block * block_size, min(block_size, end - index * block_size))
        for index, block in enumerate(table)
        if index * block_size < end
    ]
    return Span(row, num_rows, start, tuple(extents))


class Recording:
    """Captures as CUDA graphs do, by addresses: operators run again over the very same tensors.

    Python does not run again; so what a function took from anywhere but tensors stays as it was.
    """

    def __init__(self) -> None:
        self.num_captures = 0

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        self.num_captures += 1
        compute()  # a warm-up
        with _Recorder() as recorder:
            output = compute()

        def replay() -> Tensor:
            recorder.run_again()
            return output

        return replay


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._calls: list[tuple[Callable[..., object], Any, Any, object]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        output = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, output))
        return output

    def run_again(self) -> None:
        for func, args, kwargs, output in self._calls:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(output), _tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return (
        [each for each in value if isinstance(each, Tensor)]
        if isinstance(value, (list, tuple))
        else []
    )
