"""The tensor types that a GGUF file may hold, and the record of one tensor. Pure Python.

Source: the GGUF specification and the type table of ggml (ggml-org/ggml, docs/gguf.md).
"""

from dataclasses import dataclass

GgufScalar = int | float | bool | str
GgufValue = GgufScalar | list["GgufValue"]


@dataclass(frozen=True, slots=True)
class TensorType:
    """How weights of one type lie in the file.

    Attributes:
        name: "F32", "Q4_K", ...
        block_elements: Weights per block; blocks never cross a row.
        block_bytes: Bytes per block, scales included.
    """

    name: str
    block_elements: int
    block_bytes: int


TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 40),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
}
TENSOR_TYPES_BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies in its file.

    Attributes:
        name: As in the file, for example "blk.0.attn_q.weight".
        shape: Rows first, as torch has it (the file stores the reverse order).
        type_name: Key of `TENSOR_TYPES_BY_NAME`.
        offset: First byte, from the start of the file.
        num_bytes: Length of the data in the file.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        """Count of weights."""
        count = 1
        for size in self.shape:
            count *= size
        return count
