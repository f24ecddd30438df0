"""A layer's mixture of experts in torch. Engine thread only."""

from collections.abc import Callable, Sequence

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
        shared: Sequence[Tensor] = (),
    ) -> None:
        """Take a layer's weights.

        Args:
            spec: How experts are chosen.
            router: (E, hidden).
            matrices: Gate and up, (E * mlp, hidden) each, and down, (E * hidden, mlp).
            activation: On the gate.
            shared: Of the expert that all tokens share: router (hidden,), gate and up (S, hidden) each,
                and down (hidden, S); empty if there is none.
        """
        self._spec = spec
        self._router = router
        self._gates, self._ups, self._downs = (
            matrix.view(spec.count, -1, matrix.shape[1]) for matrix in matrices
        )
        self._activation = activation
        self._shared = shared

    def __call__(self, x: Tensor) -> Tensor:
        """What they make of x: (T, hidden) to the same."""
        weights, chosen = choose_experts(functional.linear(x, self._router), self._spec)
        out = torch.zeros_like(x)
        for expert in sorted({*chosen.flatten().tolist()}):
            rows, places = torch.where(chosen == expert)
            result = self._mlp(x[rows], self._gates[expert], self._ups[expert], self._downs[expert])
            out.index_add_(0, rows, result * weights[rows, places, None].to(x.dtype))
        if self._shared:
            router, gate, up, down = self._shared
            weight = functional.linear(x, router.unsqueeze(0)).sigmoid()
            out += self._mlp(x, gate, up, down) * weight
        return out

    def _mlp(self, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        inner = self._activation(functional.linear(x, gate)).mul_(functional.linear(x, up))
        return functional.linear(inner, down)


def choose_experts(logits: Tensor, spec: ExpertSpec) -> tuple[Tensor, Tensor]:
    """Choose from the router's results, (T, E).

    Returns:
        Weights in float32 and numbers of the experts, (T, num_used) each.
    """
    weights, chosen = logits.float().softmax(dim=1).topk(spec.num_used, dim=1)
    if spec.weights_sum_to_one:
        weights = weights / weights.sum(dim=1, keepdim=True)
    return weights, chosen
