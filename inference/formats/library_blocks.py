"""Weight blocks that the `gguf` package unpacks: those of small tables and grids, which few files have.

The package is imported when the first such tensor is met. Any thread.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

LIBRARY_TYPES = frozenset({
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0", "MXFP4", "NVFP4",
})  # fmt: skip


def unpack_by_library(type_name: str, blocks: Tensor, out: Tensor) -> None:
    """Unpack whole blocks.

    Args:
        type_name: One of `LIBRARY_TYPES`.
        blocks: (n, block_bytes), uint8.
        out: (n, block_elements), float32; is filled.
    """
    from gguf import GGMLQuantizationType, quants

    # One long row: the package goes through a few rows at a time, and blocks are no rows.
    row = blocks.contiguous().view(1, -1).numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # scales of a damaged file may be anything
        numbers = quants.dequantize(row, GGMLQuantizationType[type_name])
    out.copy_(torch.from_numpy(numbers).view(out.shape))


LIBRARY_UNPACKERS = {name: partial(unpack_by_library, name) for name in LIBRARY_TYPES}
