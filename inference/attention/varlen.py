"""torch's own attention kernel for sequences of different lengths, over a block table. CUDA only.

It is the FlashAttention-2 that comes with torch. `torch.nn.attention.varlen.varlen_attn` is its public
face; what is called here is the operator behind it, because that face is written in Python: importing it
brings torch's compiler along, seconds of a start, and each call costs tens of microseconds in each layer.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inference.attention.base import LayerCall
from inference.attention.paged import PagedStep
from inference.kv_cache.layer_memory import KeyValues

_OLDEST = (8, 0)  # compute capability: Ampere

_operator = torch.ops.aten._flash_attention_forward.default


class VarlenKernel:
    """`_flash_attention_forward`, as `varlen_attn` calls it in torch 2.13."""

    name = "varlen"
    has_softcap = False

    def __init__(self, function: Callable[..., Any] = _operator) -> None:
        """Take torch's operator, or another of the same signature and meaning."""
        self._function = function

    def why_not_on(self, device: torch.device) -> str:
        """See `PagedKernel`."""
        reason = why_no_flash_on(device)
        if not reason and not torch.backends.cuda.is_flash_attention_available():
            return "this build of torch lacks FlashAttention"  # as those for Windows do
        return reason

    def attend(self, query: Tensor, pages: KeyValues, step: PagedStep, call: LayerCall) -> Tensor:
        """See `PagedKernel`."""
        has_groups = query.shape[1] > pages.keys.shape[2]
        window = call.window if call.window is not None and call.window < step.max_keys else None
        left, right = _window_size(step, window)
        out: Tensor = self._function(
            query,
            pages.keys,
            pages.values,
            step.first_rows,
            step.first_keys,
            step.max_rows,
            step.max_keys,
            0.0,  # share of weights to drop
            (left, right) == (-1, 0),  # said once more: causal
            False,  # no mask for debugging
            scale=call.scaling,
            window_size_left=left,
            window_size_right=right,
            seqused_k=step.num_keys,
            block_table=step.table,
            num_splits=None if _may_split(step, window, has_groups=has_groups) else 1,
        )[0]
        return out


def why_no_flash_on(device: torch.device) -> str:
    """Why the kernels of FlashAttention-2 cannot run on a device, a clause for people."""
    if device.type != "cuda":
        return "it runs on CUDA devices only"
    if torch.version.hip is not None:
        return "it was never tried on ROCm"
    if torch.cuda.get_device_capability(device) < _OLDEST:
        return "the device is older than Ampere"
    return ""


def _window_size(step: PagedStep, window: int | None) -> tuple[int, int]:
    """How many keys a row sees to the left and to the right of itself; -1 is all."""
    if window is not None:
        return (window - 1, 0)
    # A sequence's only row sees all its keys. Said so, the kernel takes the query heads that share a key
    # head as rows of one tile, and reads each key once.
    return (-1, -1) if step.max_rows == 1 else (-1, 0)


def _may_split(step: PagedStep, window: int | None, *, has_groups: bool) -> bool:
    """Whether the kernel may share one sequence's keys out over more of the device.

    It needs that where there are few rows. But in torch 2.13 it puts the parts together as if all
    sequences lay where the first one does, and the rows of the others are never written
    (github.com/pytorch/pytorch/issues/194167). It is right if there is but one sequence, and if query
    heads became rows, as they then get a dimension of their own for sequences.
    """
    if step.table.shape[0] == 1:
        return True
    return step.max_rows == 1 and window is None and has_groups
