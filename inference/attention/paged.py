"""Attention by a kernel that reads KV blocks through a block table. Engine thread only.

Such a kernel takes all rows of a step and all sequences at once:

    rows of the step   | sequence 0 | sequence 1 |      first_rows  0, 3, 4
    table              | 7 2 9 .    | 4 . . .    |      block ids in order; what follows is not read
    num_keys           | 530        | 12         |      tokens of each sequence, this step's included

Rows are the last tokens of their sequence, causal among themselves. Keys and values are handed over
where they lie, as strided views (N, P, KH, D); what the kernels want of strides is that D is contiguous.

The table is as wide as the longest sequence needs, rounded up to a power of two and to four at least, in
eager steps and in captured ones alike: how a kernel splits its work depends on that width, and so do the
last bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from inference.attention.base import LayerCall, Span
from inference.kv_cache.layer_memory import KeyValues, LayerMemory

# Each width is captured once, in the midst of a reply: most chats end before they need another.
_MIN_WIDTH = 4


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a captured step cannot change.

    Attributes:
        num_sequences: B.
        num_blocks: Width of the block table, a power of two, at least 4.
    """

    num_sequences: int
    num_blocks: int

    @classmethod
    def of(cls, spans: Sequence[Span], block_size: int) -> "TableShape":
        """The smallest that holds these spans."""
        longest = max(span.start + span.num_rows for span in spans)
        return cls(len(spans), max(_MIN_WIDTH, power_of_two(-(-longest // block_size))))

    @property
    def num_numbers(self) -> int:
        """How many numbers `PagedStep.numbers` are."""
        return 2 * (self.num_sequences + 1) + self.num_sequences * (1 + self.num_blocks)


@dataclass(frozen=True, slots=True)
class PagedStep:
    """The sequences of a step, as a kernel wants them; B sequences, int32, on the device.

    Attributes:
        first_rows: Each sequence's first row, and T, (B + 1,).
        first_keys: The same if all keys lay side by side, (B + 1,).
        num_keys: Tokens of each sequence, this step's included, (B,).
        table: Block ids, (B, W).
        max_rows: The most rows of a sequence.
        max_keys: The most keys that the table could hold, W * P.
    """

    first_rows: Tensor
    first_keys: Tensor
    num_keys: Tensor
    table: Tensor
    max_rows: int
    max_keys: int

    @classmethod
    def over(
        cls, numbers: Tensor, shape: TableShape, *, max_rows: int, block_size: int
    ) -> "PagedStep":
        """Views of one tensor, which can be filled again; see `numbers`."""
        B, W = shape.num_sequences, shape.num_blocks
        sizes = [B + 1, B + 1, B, B * W]
        first_rows, first_keys, num_keys, table = torch.split(numbers, sizes)
        return cls(first_rows, first_keys, num_keys, table.view(B, W), max_rows, W * block_size)

    @staticmethod
    def numbers(spans: Sequence[Span], shape: TableShape, block_size: int) -> list[int]:
        """All numbers of a step in one row, so that they reach the device in one copy.

        Args:
            spans: As many as the shape has sequences; their rows follow each other.
            shape: At least as wide as they need.
            block_size: P.
        """
        first_rows, first_keys, num_keys = [0], [0], []
        table: list[int] = []
        for span in spans:
            num_keys.append(span.start + span.num_rows)
            first_rows.append(span.row + span.num_rows)
            first_keys.append(first_keys[-1] + num_keys[-1])
            blocks = _blocks_of(span, block_size)
            table += blocks + [0] * (shape.num_blocks - len(blocks))
        return first_rows + first_keys + num_keys + table


class PagedKernel(Protocol):
    """One kernel, and what it can compute."""

    @property
    def name(self) -> str:
        """Its word in the configuration."""

    @property
    def has_softcap(self) -> bool:
        """Whether it can cap scores."""

    def why_not_on(self, device: torch.device) -> str:
        """Why it cannot run there, a clause for people; "" if it can."""

    def attend(self, query: Tensor, pages: KeyValues, step: PagedStep, call: LayerCall) -> Tensor:
        """Attend in one layer.

        Args:
            query: (T, H, D), fp16 or bf16, D contiguous.
            pages: (N, P, KH, D) each, of the query's type, D contiguous. H is a multiple of KH.
            step: Which of them belong to which rows.
            call: How this layer attends.

        Returns:
            (T, H, D), of the query's type.
        """


class PagedAttention:
    """Attention by such a kernel.

    Attributes:
        name: The kernel's.
        block_size: P, a multiple of what the kernel wants.
    """

    def __init__(self, kernel: PagedKernel, *, block_size: int, device: torch.device) -> None:
        """Take a kernel.

        Args:
            kernel: Computes.
            block_size: P.
            device: Where the blocks are.
        """
        self.name = kernel.name
        self.block_size = block_size
        self._kernel = kernel
        self._device = device
        self._step: PagedStep | None = None

    def begin_step(self, spans: Sequence[Span]) -> None:
        """See `AttentionBackend`."""
        shape = TableShape.of(spans, self.block_size)
        numbers = torch.tensor(
            PagedStep.numbers(spans, shape, self.block_size),
            dtype=torch.int32,
            device=self._device,
        )
        most = max(span.num_rows for span in spans)
        self.use(PagedStep.over(numbers, shape, max_rows=most, block_size=self.block_size))

    def use(self, step: PagedStep) -> None:
        """Take the sequences of the step whose layers come next from tensors that are there."""
        self._step = step

    def attend(self, query: Tensor, new: KeyValues, past: LayerMemory, call: LayerCall) -> Tensor:
        """See `AttentionBackend`; `new` is not read, because the blocks hold the same."""
        del new
        assert self._step is not None, "a step has begun"
        assert past.can_view(query.dtype), "this was looked at when the backend was chosen"
        pages = past.pages(self.block_size)
        return self._kernel.attend(query[0].transpose(0, 1), pages, self._step, call).unsqueeze(0)


def power_of_two(count: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << (count - 1).bit_length()


def _blocks_of(span: Span, block_size: int) -> list[int]:
    """The ids of a sequence's blocks; runs of slots begin where a block does."""
    ids: list[int] = []
    for first_slot, num_slots in span.extents:
        first = first_slot // block_size
        ids += range(first, first - (-num_slots // block_size))
    return ids
