"""Random blocks of every type that GGUF files have, and what the gguf package says they stand for."""

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from inference.formats.gguf_types import TENSOR_TYPES_BY_NAME

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# Where the fp16 scales lie in each block; the rest of a block may hold any byte.
SCALE_OFFSETS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ1_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
    "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64], "IQ1_M": [], "MXFP4": [], "NVFP4": [],
}  # fmt: skip
BLOCK_TYPES = sorted(SCALE_OFFSETS)


def make_blocks(type_name: str, num_blocks: int, scales: list[float]) -> Bytes:
    """Blocks (n, bytes) whose scales are drawn from some, all else at random."""
    rng = np.random.default_rng(0)
    size = TENSOR_TYPES_BY_NAME[type_name].block_bytes
    blocks = rng.integers(0, 256, (num_blocks, size), dtype=np.uint8)
    values = rng.choice(np.array(scales, dtype=np.float16), num_blocks)
    for start in SCALE_OFFSETS[type_name]:
        blocks[:, start : start + 2] = values[:, None].view(np.uint8)
        values = rng.choice(np.array(scales, dtype=np.float16), num_blocks)
    if type_name == "IQ1_M":  # 4 bits of the scale in the upper ones of each of 4 words
        words = blocks[:, 48:].view(np.uint16)
        nibbles = values[:, None].view(np.uint16) << np.array([12, 8, 4, 0], dtype=np.uint16)
        words[:] = (words & 0x0FFF) | (nibbles & 0xF000)
    if type_name == "MXFP4":  # a power of two
        powers = np.log2(np.maximum(np.abs(values.astype(np.float32)), 2.0**-30))
        blocks[:, 0] = 128 + powers.astype(np.int32)
    return blocks


def oracle(blocks: Bytes, type_name: str) -> Floats:
    """What blocks (n, bytes) stand for: (n, weights)."""
    numbers: Floats = gguf.quants.dequantize(blocks, GGMLQuantizationType[type_name])
    return numbers.reshape(len(blocks), -1)


def make_rows(type_name: str, num_rows: int, num_columns: int, *, spread: float) -> Bytes:
    """Rows of a matrix (N, bytes of a row) of any weights with about this standard deviation."""
    kind = TENSOR_TYPES_BY_NAME[type_name]
    num_blocks = num_rows * num_columns // kind.block_elements
    unit = float(oracle(make_blocks(type_name, num_blocks, [1.0]), type_name).std())
    scales = [spread / unit * factor for factor in (0.7, 1.0, 1.3)]
    blocks = make_blocks(type_name, num_blocks, scales)
    if type_name == "NVFP4":  # four scales of 8 bits
        blocks[:, :4] = blocks[:, :4] % 16 + 32
    return blocks.reshape(num_rows, -1)
