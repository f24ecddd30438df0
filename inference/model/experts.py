"""A layer's mixture of experts in torch. Engine thread only."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from inference.model.spec import ExpertSpec, Role

Activate = Callable[[Tensor, Tensor], Tensor]  # what gate and up are together

_SWISH_FACTOR, _SWISH_LIMIT = 1.702, 7.0


class Experts:
    """Computes each token by the experts that the router chooses for it."""

    def __init__(
        self, spec: ExpertSpec, weights: Mapping[Role, Tensor], activate: Activate
    ) -> None:
        """Take a layer's weights.

        Args:
            spec: How experts are chosen.
            weights: Those of `spec.EXPERT_ROLES` that the layer has, as `ModelSpec.shape` says.
            activate: Of gate and up.
        """
        self._spec = spec
        self._activate = activate
        self._weights = weights
        self._by_expert: dict[Role, Tensor] = {
            role: weight.view(spec.count, -1, *weight.shape[1:])
            for role, weight in weights.items()
            if role in ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")
        }

    def __call__(self, x: Tensor) -> Tensor:
        """What they make of x: (T, hidden) to the same."""
        logits = functional.linear(x, self._weights["router"], self._weights.get("router_bias"))
        weights, chosen = choose_experts(logits, self._spec)
        out = torch.zeros_like(x)
        for expert in sorted({*chosen.flatten().tolist()}):
            rows, places = torch.where(chosen == expert)
            result = self._mlp(x[rows], expert)
            out.index_add_(0, rows, result * weights[rows, places, None].to(x.dtype))
        if self._spec.shared_size:
            out += self._shared(x)
        return out

    def _mlp(self, x: Tensor, expert: int) -> Tensor:
        own = {role: weight[expert] for role, weight in self._by_expert.items()}
        gate = functional.linear(x, own["gate"], own.get("gate_bias"))
        up = functional.linear(x, own["up"], own.get("up_bias"))
        return functional.linear(self._activate(gate, up), own["down"], own.get("down_bias"))

    def _shared(self, x: Tensor) -> Tensor:
        """What the expert that all tokens share makes of x, times its weight."""
        own = self._weights
        weight = functional.linear(x, own["shared_router"].unsqueeze(0)).sigmoid()
        gate, up = (functional.linear(x, own[role]) for role in ("shared_gate", "shared_up"))
        return functional.linear(self._activate(gate, up), own["shared_down"]) * weight


def clamped_swish(gate: Tensor, up: Tensor) -> Tensor:
    """What gpt-oss makes of gate and up: see `ModelSpec.activation`."""
    gate = gate.clamp(max=_SWISH_LIMIT)
    swish = gate * torch.sigmoid(gate * _SWISH_FACTOR)
    return swish.mul_(up.clamp(-_SWISH_LIMIT, _SWISH_LIMIT).add_(1.0))


def choose_experts(logits: Tensor, spec: ExpertSpec) -> tuple[Tensor, Tensor]:
    """Choose from the router's results, (T, E).

    Returns:
        Weights in float32 and numbers of the experts, (T, num_used) each.
    """
    weights, chosen = logits.float().softmax(dim=1).topk(spec.num_used, dim=1)
    if spec.weights_sum_to_one:
        weights = weights / weights.sum(dim=1, keepdim=True)
    return weights, chosen
