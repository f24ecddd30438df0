"""How large the sizes of a model may be that nothing else bounds. Pure Python."""

MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_HEAD_SIZE = 4096
MAX_EXPERTS = 2**16
MAX_INT = 2**31 - 1
