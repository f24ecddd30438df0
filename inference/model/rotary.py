"""Rotary position embedding. Engine thread only.

A head's first numbers are turned in pairs (i, i + rotary_dim / 2) by an angle that grows with the token's
place; what follows them stays as it is. With tables as wide as a head that is one sum:

    numbers    first            second           rest
    partners   second           first            rest
    cos        cos(angle)       cos(angle)       1
    sin        -sin(angle)      sin(angle)       0           turned = numbers * cos + partners * sin

Query and key heads go through it together: on a GPU a decode step costs as much as it has operators.

Source: Su et al. 2021, "RoFormer"; in halves, as in transformers.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from inference.model.spec import RopeSpec


class Turns(NamedTuple):
    """By how much the tokens of a step are turned.

    Attributes:
        cos: (T, D), float32.
        sin: (T, D), float32, with its sign.
        half: How many pairs a head has.
    """

    cos: Tensor
    sin: Tensor
    half: int

    @property
    def head_dim(self) -> int:
        """D."""
        return self.cos.shape[1]

    def apply(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Turn (T, H * D) and (T, KH * D), in float32, to (1, H, T, D) and (1, KH, T, D) of their type."""
        T, D = self.cos.shape
        heads = torch.cat((query, key), dim=1).view(T, -1, D).transpose(0, 1)
        first, second, rest = torch.split(heads, [self.half, self.half, D - 2 * self.half], dim=-1)
        partners = torch.cat((second, first, rest), dim=-1)
        # In place if possible: on a CPU a new tensor costs more than the product.
        is_float32 = partners.dtype == self.sin.dtype
        turned = partners.mul_(self.sin) if is_float32 else partners * self.sin
        turned = turned.add_(heads * self.cos).to(query.dtype).unsqueeze(0)
        H = query.shape[1] // D
        return turned[:, :H], turned[:, H:]


class Rotary(NamedTuple):
    """One rotary embedding, on the device.

    Attributes:
        frequencies: (D,), float32; 0 beyond the pairs.
        cos_factor: (D,), on the cosines.
        sin_factor: (D,), on the sines, with their signs; 0 beyond the pairs.
        half: How many pairs a head has.
    """

    frequencies: Tensor
    cos_factor: Tensor
    sin_factor: Tensor
    half: int

    @classmethod
    def on(cls, device: torch.device, rope: RopeSpec, head_dim: int) -> "Rotary":
        """Make it for heads of D numbers."""
        half, factor = len(rope.inverse_frequencies), rope.factor
        num_rest = head_dim - 2 * half
        rows = [
            [*rope.inverse_frequencies, *rope.inverse_frequencies, *[0.0] * num_rest],
            [*[factor] * 2 * half, *[1.0] * num_rest],
            [*[-factor] * half, *[factor] * half, *[0.0] * num_rest],
        ]
        frequencies, cos_factor, sin_factor = torch.tensor(
            rows, dtype=torch.float32, device=device
        ).unbind()
        return cls(frequencies, cos_factor, sin_factor, half)

    def turns(self, positions: Tensor) -> Turns:
        """For tokens at these places, (T,)."""
        angles = positions[:, None].float() * self.frequencies
        return Turns(angles.cos() * self.cos_factor, angles.sin() * self.sin_factor, self.half)
