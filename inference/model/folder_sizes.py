"""Bounds the sizes in a folder's config.json, before anything of these sizes is built. Pure Python.

transformers believes whatever a configuration says: a hundred thousand layers would be built for hours,
and a head of two thousand million numbers would fill the memory with its rotary frequencies.
"""

import json
from collections.abc import Iterator, Mapping

from inference.errors import ModelFileError
from inference.formats.safetensors_folder import ModelFolder
from inference.model.size_limits import MAX_EXPERTS, MAX_HEAD_SIZE, MAX_HEADS, MAX_INT, MAX_LAYERS

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_blocks", "decoder_layers")
_HEADS = (
    "num_attention_heads", "num_key_value_heads", "n_head", "n_heads", "num_heads", "num_kv_heads",
    "attention_heads", "decoder_attention_heads",
)  # fmt: skip
_HEAD_SIZES = ("head_dim", "attention_head_dim", "attention_head_size", "d_head")
_HEAD_PARTS = (
    "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rotary_dim",
)  # fmt: skip
_CONTEXTS = (
    "max_position_embeddings", "original_max_position_embeddings", "n_positions", "max_seq_len",
    "seq_length", "n_ctx",
)  # fmt: skip
_WIDTHS = ("hidden_size", "vocab_size", "n_embd", "d_model")
_INNER_WIDTHS = (
    "intermediate_size", "moe_intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size",
)  # fmt: skip
_EXPERTS = (
    "num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts", "moe_num_experts",
)  # fmt: skip
_USED_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "top_k_experts")
_PERIODS = ("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step")
_SHARES = ("partial_rotary_factor", "rotary_pct")
_WINDOWS = ("sliding_window",)
_MAX_DEPTH = 3  # text_config, rope_parameters, full_attention


def check_sizes(folder: ModelFolder, config: Mapping[str, object]) -> None:
    """Refuse sizes that no model has, or that cannot belong to the tensors that are there.

    Numbers in tables of the configuration, such as "text_config", count too. What is no number at all is
    left to those who read it.

    Raises:
        ModelFileError: Names config.json and the field.
    """
    bounds = _bounds(folder, config)
    for name, key, value in _numbers(config, "", _MAX_DEPTH):
        low, high, why = bounds.get(key, (value, value, ""))
        if not low <= value <= high:
            raise ModelFileError(
                folder.path / "config.json",
                f"{name!r} must be from {low:,} to {high:,}{why}, not {json.dumps(value)[:40]}.",
                hint="Download the model again, all its files from one place.",
            )


def _bounds(folder: ModelFolder, config: Mapping[str, object]) -> dict[str, tuple[int, int, str]]:
    """The least and the most of each size, and why, as far as that is not plain."""
    counts = [
        tensor.num_elements for header in folder.headers for tensor in header.tensors.values()
    ]
    largest = max(counts, default=0)
    most_layers = min(MAX_LAYERS, len(counts))
    of_tensors = f", as the folder holds {len(counts):,} tensors"
    of_largest = ", as its largest tensor holds no more numbers"
    numbers = _numbers(config, "", _MAX_DEPTH)
    experts = [value for _, key, value in numbers if key in _EXPERTS and isinstance(value, int)]
    num_experts = max(0, *experts, 0)
    least = 1 if num_experts else 0  # without experts nobody reads what is said of them
    kinds = (
        (_LAYERS, (1, most_layers, of_tensors if most_layers < MAX_LAYERS else "")),
        (_HEADS, (1, MAX_HEADS, "")),
        (_HEAD_SIZES, (1, MAX_HEAD_SIZE, "")),
        (_HEAD_PARTS, (0, MAX_HEAD_SIZE, "")),
        (_CONTEXTS, (1, MAX_INT, "")),
        (_WIDTHS, (1, largest, of_largest)),
        (_INNER_WIDTHS, (0, largest, of_largest)),
        (_EXPERTS, (0, MAX_EXPERTS, "")),
        (
            _USED_EXPERTS,
            (least, num_experts or MAX_EXPERTS, ", the experts" if num_experts else ""),
        ),
        (_PERIODS, (least, MAX_INT, "")),
        (_SHARES, (0, 1, "")),
        (_WINDOWS, (-MAX_INT, MAX_INT, "")),
    )
    return {key: bound for keys, bound in kinds for key in keys}


def _numbers(
    table: Mapping[str, object], prefix: str, depth: int
) -> Iterator[tuple[str, str, int | float]]:
    """Whole name, key and value of each number."""
    for key, value in table.items():
        if isinstance(value, dict) and depth > 0:
            yield from _numbers(value, f"{prefix}{key}.", depth - 1)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}"[:80], key, value
