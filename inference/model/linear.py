"""Matrix products of the model's layers, by what is fastest on x86 processors. Engine thread only.

torch's `linear` computes one float32 row on a single core, and for a few rows it is slower per byte
of weights than for one. Measured on 2 cores with AVX-512, weights read from memory, GB of weights
per second (`python -m tests.benchmarks.linear`):

    rows                            1     2     4     8      64 (GFLOP/s)
    torch.nn.functional.linear     12     7     9     9      97
    in parts                       38     -     -     -       -
    oneDNN                         25    18    17    14     129

So one row becomes a batch of matrix-vector products, one for each part of the weight, and more rows
go to oneDNN. The choice depends on the number of rows alone, never on a clock or on the number of
threads: the same tokens give the same numbers in every process.
"""

import platform
from collections.abc import Callable
from typing import TypeGuard

import torch
from torch import Tensor, nn

Linear = Callable[[Tensor], Tensor]  # (T, K) to (T, N), a bias included

_MIN_PARTS = 2
_MAX_PARTS = 64


class FastLinear(nn.Module):
    """Does what `nn.Linear` does, with the same parameters.

    Attributes:
        weight: (N, K), float32, on the CPU.
        bias: (N,), or None.
    """

    def __init__(self, linear: nn.Linear) -> None:
        """Take over the parameters of a layer.

        Args:
            linear: Stays as it is; both share their parameters.
        """
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.bias: Tensor | None = linear.bias
        self._parts = _parts(linear.out_features)

    def forward(self, input: Tensor) -> Tensor:
        """(..., K) to (..., N)."""
        rows = input.reshape(-1, self.in_features)
        if rows.shape[0] == 1 and self._parts:
            out = self._in_parts(rows)
        else:
            out = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")
        return out.view(*input.shape[:-1], self.out_features)

    def _in_parts(self, row: Tensor) -> Tensor:
        """One row, (1, K) to (1, N)."""
        parts, K = self._parts, self.in_features
        weights = self.weight.view(parts, self.out_features // parts, K)
        # NOTE: the column must have the strides (1, K) that t() gives it. With (1, 1), as view() would
        # give, the same product takes six times as long: torch then picks another kernel.
        out = torch.bmm(weights, row.t().expand(parts, K, 1)).view(1, self.out_features)
        return out if self.bias is None else out.add_(self.bias)


def use_fast_linear(module: nn.Module) -> list[FastLinear]:
    """Exchange the plain float32 `nn.Linear` layers of a model where that is faster.

    Args:
        module: Changed in place; its parameters stay the same objects.

    Returns:
        The new layers; none on other processors and devices.
    """
    if not _is_faster_here():
        return []
    exchanged: list[FastLinear] = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if _is_plain(child):
                layer = FastLinear(child)
                setattr(parent, name, layer)
                exchanged.append(layer)
    return exchanged


def fast_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """The product with a matrix (N, K) and a bias (N,) by what is fastest for it here."""
    out_features, in_features = weight.shape
    layer = nn.Linear(in_features, out_features, bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    exchanged = use_fast_linear(nn.Sequential(layer))
    return exchanged[0] if exchanged else layer


def _is_faster_here() -> bool:
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def _is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether it is an `nn.Linear` itself (a subclass may compute something else) that we can run."""
    if type(module) is not nn.Linear:
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous()


def _parts(rows: int) -> int:
    """Into how many equal parts to cut a weight's rows, so that any number of threads can share them.

    The most that fit, each of at least 16 rows; 0 if there is no way.
    """
    for parts in range(min(_MAX_PARTS, rows // 16), _MIN_PARTS - 1, -1):
        if rows % parts == 0:
            return parts
    return 0
