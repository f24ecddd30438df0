"""Takes a decoder's weights out of the tensors of a file or folder. Thread of the load."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from inference.model.spec import WeightKey
from inference.model.spec_weights import WeightSource

ReadTensor = Callable[[str, torch.dtype], Tensor]


def take_weights(
    sources: Mapping[WeightKey, WeightSource], read_tensor: ReadTensor, dtype: torch.dtype
) -> dict[WeightKey, Tensor]:
    """Make what `TorchDecoder` wants.

    Args:
        sources: Where each weight comes from.
        read_tensor: Gives a whole tensor by name, in the type that is asked for. Called once for each
            tensor; what is cut out of it shares its memory where it can.
        dtype: Of all weights but norms.
    """
    users: dict[str, list[WeightKey]] = {}
    for key, source in sources.items():
        users.setdefault(source.tensor_name, []).append(key)
    weights: dict[WeightKey, Tensor] = {}
    for name, keys in users.items():
        is_norm = keys[0].role.endswith("norm")
        tensor = read_tensor(name, torch.float32 if is_norm else dtype)
        for key in keys:
            weights[key] = _take(tensor, sources[key])
    return weights


def _take(tensor: Tensor, source: WeightSource) -> Tensor:
    rows = tensor.narrow(0, source.first_row, source.num_rows)
    if source.paired_heads:
        pairs = rows.reshape(source.paired_heads, -1, 2, *rows.shape[1:])
        rows = pairs.transpose(1, 2).reshape(rows.shape)
    return rows + 1 if source.lacks_one else rows
