"""Rotary embedding: each pair of each head against complex numbers, and to the last bit in any company."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from inference.model.rotary import Rotary
from inference.model.spec import RopeSpec

CPU = torch.device("cpu")
T, H, KH = 7, 3, 2
POSITIONS = torch.tensor([0, 1, 2, 3, 900, 901, 4095])


def make_rope(half: int, factor: float = 1.0) -> RopeSpec:
    return RopeSpec(tuple(float(1e4 ** (-n / half)) for n in range(half)), factor)


def make_rows(num_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(num_heads)
    return torch.randn(T, num_heads * head_dim, generator=generator).to(dtype)


def by_complex_numbers(rows: Tensor, rope: RopeSpec, head_dim: int) -> Tensor:
    """(T, heads * D) to (1, heads, T, D), float64."""
    half = len(rope.inverse_frequencies)
    heads = rows.view(T, -1, head_dim).transpose(0, 1).double()
    # Angles in float32, as everywhere: at place 4,095 the type makes more of a difference than the sum.
    angles = POSITIONS[:, None].float() * torch.tensor(rope.inverse_frequencies)
    turn = torch.polar(torch.full_like(angles.double(), rope.factor), angles.double())
    pairs = torch.complex(heads[..., :half], heads[..., half : 2 * half]) * turn
    return torch.cat((pairs.real, pairs.imag, heads[..., 2 * half :]), dim=-1).unsqueeze(0)


@pytest.mark.parametrize(("head_dim", "half"), [(16, 8), (20, 5), (96, 12), (6, 3)])
@pytest.mark.parametrize("factor", [1.0, 1.19])
def test_pairs_are_turned_and_the_rest_stays(head_dim: int, half: int, factor: float) -> None:
    rope = make_rope(half, factor)
    query, key = make_rows(H, head_dim), make_rows(KH, head_dim)
    turned = Rotary.on(CPU, rope, head_dim).turns(POSITIONS).apply(query, key)
    for actual, rows in zip(turned, (query, key), strict=True):
        expected = by_complex_numbers(rows, rope, head_dim)
        torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=0)
        assert torch.equal(actual[..., 2 * half :].double(), expected[..., 2 * half :])
        assert actual.is_contiguous()


def test_a_tokens_numbers_do_not_depend_on_those_beside_it() -> None:
    rotary = Rotary.on(CPU, make_rope(8), 16)
    query, key = make_rows(H, 16), make_rows(KH, 16)
    together = rotary.turns(POSITIONS).apply(query, key)
    for row in range(T):
        one = slice(row, row + 1)
        alone = rotary.turns(POSITIONS[one]).apply(query[one], key[one])
        for actual, all_rows in zip(alone, together, strict=True):
            assert torch.equal(actual, all_rows[:, :, one])


def test_halves_are_turned_in_float32_and_rounded_once() -> None:
    rotary = Rotary.on(CPU, make_rope(8), 16)
    query, key = make_rows(H, 16, torch.bfloat16), make_rows(KH, 16, torch.bfloat16)
    turns = rotary.turns(POSITIONS)
    for actual, exact in zip(
        turns.apply(query, key), turns.apply(query.float(), key.float()), strict=True
    ):
        assert torch.equal(actual, exact.to(torch.bfloat16))


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Notes each operator that computes: on a GPU a launch each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if not func.is_view:
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_query_and_key_are_turned_by_six_operators() -> None:
    turns = Rotary.on(CPU, make_rope(8), 16).turns(POSITIONS)
    query, key = make_rows(H, 16, torch.bfloat16), make_rows(KH, 16, torch.bfloat16)
    with _Kernels() as kernels:
        turns.apply(query, key)
    assert kernels.names == [
        "aten::cat",
        "aten::cat",
        "aten::mul.Tensor",
        "aten::mul.Tensor",
        "aten::add_.Tensor",
        "aten::_to_copy",
    ]
