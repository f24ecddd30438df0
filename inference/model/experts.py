"""A layer's mixture of experts in torch. Engine thread only."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from inference.model.norms import rms_norm
from inference.model.spec import ExpertSpec, Role

Activate = Callable[[Tensor, Tensor], Tensor]  # what gate and up are together

_SWISH_FACTOR, _SWISH_LIMIT = 1.702, 7.0


class Experts:
    """Computes each token by the experts that the router chooses for it."""

    def __init__(
        self,
        spec: ExpertSpec,
        weights: Mapping[Role, Tensor],
        activate: Activate,
        *,
        epsilon: float,
    ) -> None:
        """Take a layer's weights.

        Args:
            spec: How experts are chosen.
            weights: Those of `spec.EXPERT_ROLES` that the layer has, as `ModelSpec.shape` says.
            activate: Of gate and up.
            epsilon: Of norms.
        """
        self._epsilon = epsilon
        self._spec = spec
        self._activate = activate
        self._weights = weights
        self._by_expert: dict[Role, Tensor] = {
            role: weight.view(spec.count, -1, *weight.shape[1:])
            for role, weight in weights.items()
            if role in ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")
        }

    def __call__(self, m: Tensor, x: Tensor) -> Tensor:
        """What they make of x, (T, hidden), whose norm for the MLP is m: the same shape."""
        weights, chosen = choose_experts(self._router_logits(m, x), self._spec)
        if "expert_scale" in self._weights:
            weights = weights * self._weights["expert_scale"][chosen]
        inputs = self._normed("expert_norm", x) if "expert_norm" in self._weights else m
        out = torch.zeros_like(m)
        for expert in sorted({*chosen.flatten().tolist()}):
            rows, places = torch.where(chosen == expert)
            result = self._mlp(inputs[rows], expert)
            out.index_add_(0, rows, result * weights[rows, places, None].to(m.dtype))
        out = self._normed("post_expert_norm", out)
        if self._spec.shared_size:
            out += self._shared(m)
        return out

    def _router_logits(self, m: Tensor, x: Tensor) -> Tensor:
        router, bias = self._weights["router"], self._weights.get("router_bias")
        if "router_norm" not in self._weights:
            return functional.linear(m, router, bias)
        return functional.linear(self._normed("router_norm", x), router) / math.sqrt(x.shape[1])

    def _normed(self, role: Role, x: Tensor) -> Tensor:
        """Norm over the width, if the layer has it."""
        weight = self._weights.get(role)
        return x if weight is None else rms_norm(x, weight, self._epsilon)

    def _mlp(self, x: Tensor, expert: int) -> Tensor:
        own = {role: weight[expert] for role, weight in self._by_expert.items()}
        gate = functional.linear(x, own["gate"], own.get("gate_bias"))
        up = functional.linear(x, own["up"], own.get("up_bias"))
        return functional.linear(self._activate(gate, up), own["down"], own.get("down_bias"))

    def _shared(self, x: Tensor) -> Tensor:
        """What the expert that all tokens share makes of x, times its weight."""
        own = self._weights
        gate, up = (functional.linear(x, own[role]) for role in ("shared_gate", "shared_up"))
        out = functional.linear(self._activate(gate, up), own["shared_down"])
        out = self._normed("post_shared_norm", out)
        if "shared_router" not in own:
            return out
        return out * functional.linear(x, own["shared_router"].unsqueeze(0)).sigmoid()


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
