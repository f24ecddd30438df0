"""The flash-attn package, over a block table: optional, CUDA only, and the kernel that can cap scores."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inference.attention.base import LayerCall
from inference.attention.paged import PagedStep
from inference.attention.varlen import why_no_flash_on
from inference.kv_cache.layer_memory import KeyValues

logger = logging.getLogger(__name__)


class FlashKernel:
    """`flash_attn.flash_attn_varlen_func`."""

    name = "flash"
    has_softcap = True

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        """Take the package's function, or another of the same signature and meaning."""
        self._function = function

    def why_not_on(self, device: torch.device) -> str:
        """See `PagedKernel`; imports the package where it can run."""
        reason = why_no_flash_on(device)
        if reason or self._function is not None:
            return reason
        try:
            from flash_attn import flash_attn_varlen_func
        except ModuleNotFoundError:
            return "the package flash-attn is not installed"
        except Exception:
            # Whatever an extension of another torch, driver or compiler raises: it cannot be used.
            logger.warning("flash-attn cannot be imported", exc_info=True)
            return "the package flash-attn does not fit this torch"
        self._function = flash_attn_varlen_func
        return ""

    def attend(self, query: Tensor, pages: KeyValues, step: PagedStep, call: LayerCall) -> Tensor:
        """See `PagedKernel`."""
        assert self._function is not None, "it was asked whether it can run"
        out: Tensor = self._function(
            query,
            pages.keys,
            pages.values,
            step.first_rows,
            step.first_keys,
            step.max_rows,
            step.max_keys,
            softmax_scale=call.scaling,
            causal=True,
            window_size=(-1, -1) if call.window is None else (call.window - 1, 0),
            softcap=call.softcap or 0.0,
            block_table=step.table,
        )
        return out
