"""Root mean square norms, computed in float32 whatever the type. Engine thread only.

On CUDA torch has one kernel for this, which computes in float32 too; but only where numbers and weight are
of one type. A weight in float32 beside numbers of 16 bits takes three. Most weights were trained in 16 bits,
so nothing is lost if they are kept so.

Source: Zhang & Sennrich 2019, "Root Mean Square Layer Normalization".
"""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Norm over the last dimension.

    Args:
        x: (..., K).
        weight: (K,), from `norm_weight`.
        epsilon: Added to the mean square.

    Returns:
        (..., K), of the type of x.
    """
    if x.dtype == weight.dtype:
        return functional.rms_norm(x, weight.shape, weight, epsilon)
    return functional.rms_norm(x.float(), weight.shape, weight, epsilon).to(x.dtype)


def norm_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight as `rms_norm` takes it fastest without any loss.

    Args:
        weight: (K,), float32.
        dtype: Of the numbers.
    """
    return narrowed(weight, dtype) if weight.device.type == "cuda" else weight


def narrowed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A float32 weight in another type, if each of its numbers is one of that type; else as it is."""
    narrow = weight.to(dtype)
    return narrow if torch.equal(narrow.float(), weight) else weight
