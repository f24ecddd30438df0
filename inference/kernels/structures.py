"""Mirrors of the structures in src/quire_kernels.h, which says what they mean. Pure Python.

Whoever fills one in keeps what its pointers point to alive for as long as the kernels may read it.
"""

import ctypes
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum


class MatrixType(IntEnum):
    """Types of weights that the kernels read, by GGUF's numbers; the names are GGUF's too."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30
    MXFP4 = 39


class Activation(IntEnum):
    """The gate's function in the MLP."""

    SILU = 0
    GELU_TANH = 1
    CLAMPED_SWISH = 2


class QueryKeyNorm(IntEnum):
    """Whether queries and keys are normalised: not, each head, or all heads as one row."""

    NONE = 0
    HEAD = 1
    WHOLE = 2


class KvScheme(IntEnum):
    """How keys and values are stored: inference/kv_cache/schemes.py."""

    F32 = 0
    F16 = 1
    BF16 = 2
    INT8 = 3
    INT4 = 4


class Matrix(ctypes.Structure):
    """A packed weight."""

    _fields_ = (
        ("type", c_int32),
        ("num_rows", c_int32),
        ("num_columns", c_int32),
        ("reserved", c_int32),
        ("data", c_void_p),
    )


class Layer(ctypes.Structure):
    """The weights of one layer; null pointers and matrices of no rows where a model has none."""

    _fields_ = (
        ("attention_norm", c_void_p),
        ("post_attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("post_mlp_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("value_norm", c_void_p),
        ("query", Matrix),
        ("key", Matrix),
        ("value", Matrix),
        ("output", Matrix),
        ("gate", Matrix),
        ("up", Matrix),
        ("down", Matrix),
        ("router", Matrix),
        ("router_bias", c_void_p),
        ("router_norm", c_void_p),
        ("expert_norm", c_void_p),
        ("post_shared_norm", c_void_p),
        ("post_expert_norm", c_void_p),
        ("expert_scale", c_void_p),
        ("shared_router", c_void_p),
        ("shared_gate", Matrix),
        ("shared_up", Matrix),
        ("shared_down", Matrix),
        ("query_bias", c_void_p),
        ("key_bias", c_void_p),
        ("value_bias", c_void_p),
        ("output_bias", c_void_p),
        ("gate_bias", c_void_p),
        ("up_bias", c_void_p),
        ("down_bias", c_void_p),
        ("sinks", c_void_p),
        ("key_centre", c_void_p),
        ("ple_gate", Matrix),
        ("ple_output", Matrix),
        ("post_ple_norm", c_void_p),
        ("layer_scale", c_void_p),
        ("window", c_int32),
        ("rope_index", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("mlp_size", c_int32),
        ("kv_layer", c_int32),
    )


class Rope(ctypes.Structure):
    """A rotary table."""

    _fields_ = (
        ("inverse_frequencies", c_void_p),
        ("factor", c_float),
        ("num_pairs", c_int32),
    )


class Model(ctypes.Structure):
    """A whole model."""

    _fields_ = (
        ("num_layers", c_int32),
        ("hidden_size", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("mlp_size", c_int32),
        ("vocab_size", c_int32),
        ("ple_size", c_int32),
        ("activation", c_int32),
        ("query_key_norm", c_int32),
        ("norm_epsilon", c_float),
        ("embedding_scale", c_float),
        ("residual_scale", c_float),
        ("attention_scale", c_float),
        ("query_growth", c_float),
        ("growth_tokens", c_int32),
        ("logit_scale", c_float),
        ("attention_softcap", c_float),
        ("logit_softcap", c_float),
        ("num_experts", c_int32),
        ("num_experts_used", c_int32),
        ("expert_weights_sum_to_one", c_int32),
        ("shared_size", c_int32),
        ("num_ropes", c_int32),
        ("ropes", c_void_p),
        ("layers", c_void_p),
        ("embedding", Matrix),
        ("head", Matrix),
        ("ple_embedding", Matrix),
        ("ple_projection", Matrix),
        ("ple_norm", c_void_p),
        ("final_norm", c_void_p),
    )


class KvLayer(ctypes.Structure):
    """One layer's slots."""

    _fields_ = (
        ("planes", c_void_p * 5),
        ("value_groups", c_int32),
        ("reserved", c_int32),
        ("stored_factor", c_float),
        ("query_factor", c_float),
    )


class Kv(ctypes.Structure):
    """All layers' slots."""

    _fields_ = (
        ("scheme", c_int32),
        ("num_layers", c_int32),
        ("num_slots", c_int64),
        ("layers", c_void_p),
    )


class Span(ctypes.Structure):
    """One sequence's part of a step."""

    _fields_ = (
        ("row", c_int32),
        ("num_rows", c_int32),
        ("start", c_int32),
        ("num_extents", c_int32),
        ("extents", c_void_p),
    )


class Step(ctypes.Structure):
    """What one call computes."""

    _fields_ = (
        ("num_rows", c_int32),
        ("num_spans", c_int32),
        ("num_keep", c_int32),
        ("num_logits", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("spans", c_void_p),
        ("keep", c_void_p),
        ("logits", c_void_p),
        ("cancel", c_void_p),
    )


class RowPlane(ctypes.Structure):
    """Rows of all slots and layers."""

    _fields_ = (
        ("data", c_void_p),
        ("num_runs", c_int64),
        ("num_slots", c_int64),
        ("row_bytes", c_int64),
    )


class RowFile(ctypes.Structure):
    """A file with the rows of a run of slots."""

    _fields_ = (
        ("temporary", c_char_p),
        ("path", c_char_p),
        ("header", c_char_p),
        ("header_bytes", c_int64),
        ("first_slot", c_int64),
        ("num_rows", c_int64),
        ("used_ns", c_int64),
        ("is_written", c_int32),
        ("reserved", c_int32),
    )


class Filters(ctypes.Structure):
    """How a token is drawn."""

    _fields_ = (
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("top_k", c_int32),
        ("reserved", c_int32),
    )


# In the order of qk_struct_bytes.
ALL_STRUCTURES: tuple[type[ctypes.Structure], ...] = (
    Matrix,
    Layer,
    Rope,
    Model,
    KvLayer,
    Kv,
    Span,
    Step,
    RowPlane,
    RowFile,
    Filters,
)
