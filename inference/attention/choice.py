"""Chooses once, when a model is opened, what attends; and says why. Engine thread only."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference.attention.base import AttentionBackend
from inference.attention.blocks import BlocksAttention
from inference.attention.flash import FlashKernel
from inference.attention.paged import PagedAttention, PagedKernel
from inference.attention.paged_check import why_wrong
from inference.attention.reference import ReferenceAttention
from inference.attention.varlen import VarlenKernel
from inference.config import AttentionName
from inference.errors import InvalidRequestError
from inference.kv_cache.schemes import KvScheme, LayerGeometry

# What both kernels can: FlashAttention-2.
_TYPES = (torch.bfloat16, torch.float16)
_MAX_HEAD_DIM = 256
_HEAD_DIM_STEP = 8
_PAGE_STEP = 256

_TRIED_SOFTCAP = 3.0  # low enough to bend scores of random keys


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What the backend must be able to do.

    Attributes:
        device: Where the model is.
        dtype: Type of keys and queries, as the model computes them.
        scheme: How keys and values are stored.
        geometry: Shape of each layer.
        has_softcap: Whether scores are capped.
        block_size: P, if somebody asked for one.
    """

    device: torch.device
    dtype: torch.dtype
    scheme: KvScheme
    geometry: tuple[LayerGeometry, ...]
    has_softcap: bool
    block_size: int | None = None


def choose_attention(
    wish: AttentionName, needs: AttentionNeeds, kernels: Sequence[PagedKernel] | None = None
) -> tuple[AttentionBackend, str]:
    """Choose the backend.

    Args:
        wish: What is asked for.
        needs: What it must be able to do.
        kernels: To choose from, best first; None takes all that there are.

    Returns:
        The backend, and its name with the reason, for people.

    Raises:
        InvalidRequestError: One is asked for by name and cannot do it.
    """
    kind = needs.device.type
    where = "CPU" if kind == "cpu" else kind
    if wish == "reference":
        return ReferenceAttention(), f"reference ({where}, chosen in the configuration)"
    if wish == "blocks":
        return BlocksAttention(), f"blocks ({where}, chosen in the configuration)"
    reasons = {}
    for kernel in (VarlenKernel(), FlashKernel()) if kernels is None else kernels:
        if wish not in ("auto", kernel.name):
            continue
        reason = _why_not(kernel, needs)
        if not reason:
            block_size = needs.block_size or _PAGE_STEP
            paged = PagedAttention(kernel, block_size=block_size, device=needs.device)
            ordered = "" if wish == "auto" else ", chosen in the configuration"
            return paged, f"{kernel.name} ({where}{ordered})"
        reasons[kernel.name] = reason
    if wish != "auto":
        raise InvalidRequestError(
            "attention_backend", f"cannot be {wish!r} here: {reasons[wish]}.", hint="Choose auto."
        )
    return BlocksAttention(), f"blocks ({where}{_because(kind, reasons)})"


def _because(kind: str, reasons: dict[str, str]) -> str:
    if kind == "cpu":
        return ""
    if kind != "cuda":
        return ", without a kernel of its own"
    return "".join(f"; not {name}: {reason}" for name, reason in reasons.items())


def _why_not(kernel: PagedKernel, needs: AttentionNeeds) -> str:
    """Why a kernel cannot do it, a clause for people; "" if it can."""
    reason = kernel.why_not_on(needs.device) or _why_not_of(needs)
    if not reason and needs.has_softcap and not kernel.has_softcap:
        reason = "it cannot cap scores as this model does"
    return reason or _why_wrong(kernel, needs)


def _why_not_of(needs: AttentionNeeds) -> str:
    """What FlashAttention-2 cannot do, on whatever device."""
    if needs.dtype not in _TYPES:
        return f"it does not compute in {str(needs.dtype).removeprefix('torch.')}"
    if needs.scheme.view_dtype != needs.dtype:
        return f"it cannot read keys and values stored as {needs.scheme.name}"
    for layer in needs.geometry:
        if layer.head_dim > _MAX_HEAD_DIM or layer.head_dim % _HEAD_DIM_STEP:
            return f"it has no form for heads of {layer.head_dim} numbers"
    if needs.block_size is not None and needs.block_size % _PAGE_STEP:
        return f"it reads blocks of {_PAGE_STEP} slots, not of {needs.block_size}"
    return ""


def _why_wrong(kernel: PagedKernel, needs: AttentionNeeds) -> str:
    reasons = (
        why_wrong(
            kernel,
            layer,
            needs.scheme,
            block_size=needs.block_size or _PAGE_STEP,
            softcap=_TRIED_SOFTCAP if needs.has_softcap else None,
            device=needs.device,
        )
        for layer in dict.fromkeys(needs.geometry)
    )
    return next(filter(None, reasons), "")
