"""Whether a paged kernel computes what it should, on the very device: tried when a model is opened.

Kernels of other projects come with drivers and devices that nobody tried together. A few sequences
over scattered blocks take some milliseconds, and a wrong kernel would spoil every reply.
"""

import itertools
import logging
from typing import NamedTuple

import torch
from torch import Tensor

from inference.attention.base import LayerCall, Span, extents_of
from inference.attention.paged import PagedAttention, PagedKernel
from inference.attention.reference import ReferenceAttention
from inference.kv_cache.layer_memory import KeyValues, LayerMemory
from inference.kv_cache.schemes import KvScheme, LayerGeometry
from inference.kv_cache.tensors import KvTensors

logger = logging.getLogger(__name__)

_NUM_BLOCKS = 8
_GROUP_SIZES = (1, 3)  # query heads per key head
_MAX_ERROR = 0.03  # of a row's length: rounding to bf16 gives less than 0.01, a key too few 0.08


class _Case(NamedTuple):
    """Sequences of a step.

    Attributes:
        lengths: For each, tokens before the step and in it, both in blocks: 2.7 is 2 blocks and 70 %.
        window: In blocks; None without.
    """

    lengths: tuple[tuple[float, int], ...]
    window: float | None = None


# One decodes, several do, a prompt goes on beside them; near and far from the edges of blocks.
_CASES = (
    _Case(((2.7, 1),)),
    _Case(((2.7, 1), (0, 1), (1, 1))),
    _Case(((2.7, 1), (0, 1)), window=1.2),
    _Case(((1.3, 20), (2.7, 1), (0, 9))),
    _Case(((1.3, 20), (0, 9)), window=1.2),
    _Case(((1.99, 20),)),
)


def why_wrong(
    kernel: PagedKernel,
    geometry: LayerGeometry,
    scheme: KvScheme,
    *,
    block_size: int,
    softcap: float | None,
    device: torch.device,
) -> str:
    """Try a kernel.

    Args:
        kernel: Computes.
        geometry: Of a layer.
        scheme: How the layer's keys and values are stored: in a type that can be read in place.
        block_size: P.
        softcap: The cap of scores to try it with; None tries it without.
        device: Where.

    Returns:
        Why it must not be used, a clause for people; "" if all is right.
    """
    generator = torch.Generator().manual_seed(0)
    kv = KvTensors(
        [geometry], num_blocks=_NUM_BLOCKS, block_size=block_size, scheme=scheme, device=device
    )
    past = kv.layers[0]
    attention = PagedAttention(kernel, block_size=block_size, device=device)
    for case, group in itertools.product(_CASES, _GROUP_SIZES):
        spans = _spans(case, block_size)
        _fill(past, spans, generator)
        window = None if case.window is None else int(case.window * block_size)
        call = LayerCall(geometry.head_dim**-0.5, window, softcap)
        shape = (1, group * geometry.num_kv_heads, sum(span.num_rows for span in spans))
        query = 2 * torch.randn(*shape, geometry.head_dim, generator=generator)
        try:
            error = _error(attention, spans, query.to(past.planes[0]), past, call)
        except Exception as failure:
            # Whatever code of others raises when it is called for the first time: there is another way.
            logger.warning("the kernel %s refuses to run", kernel.name, exc_info=True)
            return f"the kernel refuses to run: {str(failure).partition(chr(10))[0]}"
        if not error < _MAX_ERROR:  # true for NaN too
            return "the kernel computes something else on this device"
    return ""


def _spans(case: _Case, block_size: int) -> list[Span]:
    free = iter((5, 0, 3, 7, 1, 6, 2, 4))
    spans, row = [], 0
    for start_blocks, num_rows in case.lengths:
        start = int(start_blocks * block_size)
        table = list(itertools.islice(free, -(-(start + num_rows) // block_size)))
        extents = extents_of(table, block_size, start + num_rows)
        spans.append(Span(row, num_rows, start, extents))
        row += num_rows
    return spans


def _fill(past: LayerMemory, spans: list[Span], generator: torch.Generator) -> None:
    """Numbers where the sequences are, and everywhere else what memory may hold that nobody wrote."""
    plane = past.planes[0]
    plane.fill_(torch.nan)
    for extent in itertools.chain.from_iterable(span.extents for span in spans):
        rows = plane.narrow(1, *extent)
        rows.copy_(torch.randn(rows.shape, generator=generator))


def _error(
    attention: PagedAttention,
    spans: list[Span],
    query: Tensor,
    past: LayerMemory,
    call: LayerCall,
) -> float:
    """The largest error of a row and head, as a share of its length."""
    found = []
    unread = KeyValues(query, query)
    with torch.inference_mode():
        for backend in (attention, ReferenceAttention()):
            backend.begin_step(spans)
            found.append(backend.attend(query, unread, past, call).float())
    actual, expected = found
    return float(((actual - expected).norm(dim=-1) / expected.norm(dim=-1)).max())
