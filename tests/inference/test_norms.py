"""Norms: against the formula, with weights in both types, and when a weight may be narrowed."""

import pytest
import torch

from inference.model.norms import narrowed, norm_weight, rms_norm

EPSILON = 1e-5


def make_weight() -> torch.Tensor:
    return torch.randn(48, generator=torch.Generator().manual_seed(1)).bfloat16().float()


@pytest.mark.parametrize("size", [1e-3, 1.0, 3e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norm_is_computed_in_float32_and_rounded_once(dtype: torch.dtype, size: float) -> None:
    x = (size * torch.randn(5, 3, 48, generator=torch.Generator().manual_seed(2))).to(dtype)
    weight, exact = make_weight(), x.double()
    mean = exact.square().mean(-1, keepdim=True)
    expected = exact * torch.rsqrt(mean + EPSILON) * weight.double()
    ulp = torch.finfo(dtype).eps * expected.abs()
    actual = rms_norm(x, weight, EPSILON)
    assert actual.dtype == dtype
    assert ((actual.double() - expected).abs() <= 0.6 * ulp + 4e-7 * expected.abs()).all()
    if dtype == torch.bfloat16:  # one operator, as on CUDA
        narrow = rms_norm(x, narrowed(weight, dtype), EPSILON)
        assert ((narrow.double() - expected).abs() <= 1.1 * ulp).all()


def test_weights_are_narrowed_only_without_loss() -> None:
    weight = make_weight()
    narrow = narrowed(weight, torch.bfloat16)
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow.float(), weight)
    assert narrowed(weight + 1e-4, torch.bfloat16).dtype == torch.float32
    assert narrowed(weight * 1e6, torch.float16).dtype == torch.float32  # beyond its range


def test_weights_on_the_cpu_stay_as_they_are() -> None:
    weight = make_weight()
    assert norm_weight(weight, torch.bfloat16) is weight
