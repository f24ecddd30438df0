"""A layer's mixture of experts in torch. Engine thread only."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from inference.model.spec import ExpertSpec


class Experts:
    """Computes each token by the experts that the router chooses for it."""

    def __init__(
        self,
        spec: ExpertSpec,
        router: Tensor,
        matrices: tuple[Tensor, Tensor, Tensor],
        activation: Callable[[Tensor], Tensor],
    ) -> None:
        """Take a layer's weights.

        Args:
            spec: How experts are chosen.
            router: (E, hidden).
            matrices: Gate and up, (E * mlp, hidden) each, and down, (E * hidden, mlp).
            activation: On the gate.
        """
        self._spec = spec
        self._router = router
        self._gates, self._ups, self._downs = (
            matrix.view(spec.count, -1, matrix.shape[1]) for matrix in matrices
        )
        self._activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        """What they make of x: (T, hidden) to the same."""
        weights, chosen = choose_experts(functional.linear(x, self._router), self._spec)
        out = torch.zeros_like(x)
        for expert in sorted({*chosen.flatten().tolist()}):
            rows, places = torch.where(chosen == expert)
            part = x[rows]
            inner = self._activation(functional.linear(part, self._gates[expert]))
            inner = inner.mul_(functional.linear(part, self._ups[expert]))
            result = functional.linear(inner, self._downs[expert])
            out.index_add_(0, rows, result * weights[rows, places, None].to(x.dtype))
        return out


def choose_experts(logits: Tensor, spec: ExpertSpec) -> tuple[Tensor, Tensor]:
    """Choose from the router's results, (T, E).

    Returns:
        Weights in float32 and numbers of the experts, (T, num_used) each.
    """
    weights, chosen = logits.float().softmax(dim=1).topk(spec.num_used, dim=1)
    if spec.weights_sum_to_one:
        weights = weights / weights.sum(dim=1, keepdim=True)
    return weights, chosen
