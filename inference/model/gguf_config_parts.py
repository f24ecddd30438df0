"""What GGUF metadata says in the same way for every family: sizes, heads, rotary embedding. Pure Python.

As arguments of transformers' config classes.
"""

import math
from collections.abc import Callable

from inference.model.gguf_metadata import GgufMetadata
from inference.model.size_limits import MAX_EXPERTS, MAX_HEAD_SIZE, MAX_HEADS, MAX_LAYERS

ConfigValues = dict[str, object]
ConfigBuilder = Callable[[GgufMetadata], ConfigValues]

_SOFTMAX = 1  # among llama.cpp's ways to weigh experts
LONGROPE_TENSOR = "rope_factors_long.weight"
_WITH_TWO_BASES = ("gemma3", "gemma4")
_WITH_GROWTH = "mistral3"


def plain_config(meta: GgufMetadata, *, turns_partly: bool = False) -> ConfigValues:
    """Make what every family has that is built like Llama.

    Args:
        meta: The file's.
        turns_partly: Whether the rotary embedding may turn a part of each head.

    Raises:
        ModelFileError: A required key is missing or contradicts the tensors.
        UnsupportedModelError: Mixture of experts, or layers that differ in size.
    """
    _refuse_experts(meta)
    return {**_base_config(meta, turns_partly=turns_partly), **_rms_norms(meta)}


def layer_norm_config(
    meta: GgufMetadata, key: str | None = "layer_norm_eps", *, turns_partly: bool = False
) -> ConfigValues:
    """The same for families whose norms take away the mean too.

    Args:
        meta: The file's.
        key: What transformers calls the number beside the variance; None if it is no option there.
        turns_partly: As in `plain_config`.

    Raises:
        ModelFileError, UnsupportedModelError: As `plain_config`.
    """
    _refuse_experts(meta)
    epsilon = {} if key is None else {key: meta.number("attention.layer_norm_epsilon")}
    return {**_base_config(meta, turns_partly=turns_partly), **epsilon}


def expert_config(meta: GgufMetadata, count_key: str = "num_experts") -> ConfigValues:
    """The same as `plain_config` for mixtures of experts.

    Args:
        meta: The file's.
        count_key: What transformers calls the number of experts.

    Raises:
        ModelFileError, UnsupportedModelError: As `plain_config`.
    """
    count = meta.integer("expert_count", within=(1, MAX_EXPERTS))
    _refuse_other_choices(meta)
    return {
        **_base_config(meta, turns_partly=False),
        **_rms_norms(meta),
        count_key: count,
        "num_experts_per_tok": meta.integer("expert_used_count", within=(1, count)),
    }


def _refuse_other_choices(meta: GgufMetadata) -> None:
    """Experts that are chosen or weighed otherwise than by softmax over all of them."""
    for key, usual in (
        ("expert_group_count", (0, 1)),
        ("expert_gating_func", (0, _SOFTMAX)),
        ("expert_weights_scale", (0, 1)),
    ):
        if (meta.optional_number(key) or 0) not in usual:
            raise meta.unsupported(
                f"Experts with the option '{meta.architecture}.{key}', which Quire cannot run."
            )


def _refuse_experts(meta: GgufMetadata) -> None:
    if meta.integer("expert_count", 0, within=(0, MAX_EXPERTS)):
        raise meta.unsupported(
            f"A mixture of experts of the architecture '{meta.architecture}', which Quire cannot run."
        )


def _rms_norms(meta: GgufMetadata) -> ConfigValues:
    return {"rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon")}


def _refuse_variants(meta: GgufMetadata) -> None:
    """What would be computed otherwise than the file says."""
    if meta.is_no("attention.causal"):
        raise meta.unsupported("A model that makes embeddings of texts, not one for chats.")
    if meta.architecture != _WITH_GROWTH and meta.optional_number("attention.temperature_scale"):
        raise meta.unsupported(
            f"Queries that grow with their place, which Quire cannot run for '{meta.architecture}'."
        )
    base = meta.number("rope.freq_base", 10_000.0)
    sliding = meta.optional_number("rope.freq_base_swa")
    if meta.architecture not in _WITH_TWO_BASES and sliding is not None and sliding != base:
        raise meta.unsupported(
            f"Two bases of the rotary embedding, which Quire cannot run for '{meta.architecture}'."
        )


def _base_config(meta: GgufMetadata, *, turns_partly: bool) -> ConfigValues:
    _refuse_variants(meta)
    hidden_size = meta.integer("embedding_length")
    num_heads = meta.integer("attention.head_count", within=(1, MAX_HEADS))
    num_kv_heads = meta.integer("attention.head_count_kv", num_heads, within=(1, MAX_HEADS))
    if num_heads % num_kv_heads:
        raise meta.fail(f"{num_heads} attention heads cannot share {num_kv_heads} key/value heads.")
    head_size = _head_size(meta, hidden_size, num_heads)
    part = _turned_part(meta, head_size, turns_partly=turns_partly)
    return {
        "vocab_size": _vocab_size(meta, hidden_size),
        "hidden_size": hidden_size,
        "intermediate_size": meta.integer("feed_forward_length"),
        "num_hidden_layers": _num_layers(meta),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_size,
        "max_position_embeddings": meta.integer("context_length"),
        "rope_parameters": {**rope_parameters(meta), **part},
        "tie_word_embeddings": "output.weight" not in meta.tensors,
        "bos_token_id": meta.token_id("bos_token_id"),
        "eos_token_id": meta.token_id("eos_token_id"),
        "pad_token_id": None,
    }


def _vocab_size(meta: GgufMetadata, hidden_size: int) -> int:
    embedding = meta.tensors.get("token_embd.weight")
    if embedding is None:
        raise meta.fail("The tensor 'token_embd.weight' is missing.")
    if len(embedding.shape) != 2 or embedding.shape[1] != hidden_size:
        raise meta.fail(
            f"The tensor 'token_embd.weight' has the shape {embedding.shape}, but "
            f"'{meta.architecture}.embedding_length' is {hidden_size:,}."
        )
    return embedding.shape[0]


def _num_layers(meta: GgufMetadata) -> int:
    num_layers = meta.integer("block_count", within=(1, MAX_LAYERS))
    layer_ids = {name.split(".", 2)[1] for name in meta.tensors if name.startswith("blk.")}
    for layer_id in range(num_layers):
        if str(layer_id) not in layer_ids:
            raise meta.fail(
                f"The tensors 'blk.{layer_id}.*' are missing; the model should have "
                f"{num_layers} layers."
            )
    return num_layers


def _head_size(meta: GgufMetadata, hidden_size: int, num_heads: int) -> int:
    if not meta.has("attention.key_length") and hidden_size % num_heads:
        raise meta.fail(f"{num_heads} attention heads do not divide a width of {hidden_size:,}.")
    within = (1, MAX_HEAD_SIZE)
    size = meta.integer("attention.key_length", hidden_size // num_heads, within=within)
    value_size = meta.integer("attention.value_length", size, within=within)
    if size != value_size or size % 2:
        raise meta.unsupported(
            f"Attention heads of {size} (keys) and {value_size} (values) numbers, which Quire "
            "cannot run."
        )
    return size


def rope_parameters(meta: GgufMetadata) -> ConfigValues:
    """Make the rotary parameters: base, and the scaling to longer contexts.

    Factors per frequency (the tensor "rope_freqs.weight" of Llama 3) are not here: they change
    the finished module.
    """
    values: ConfigValues = {
        "rope_type": "default",
        "rope_theta": meta.number("rope.freq_base", 10_000.0),
    }
    word = meta.word("rope.scaling.type")
    if LONGROPE_TENSOR in meta.tensors and word in (None, "none", "longrope"):
        return values  # the family that has the tensors adds the factors
    kind = word or "linear"  # the first files had no word for it
    if kind != "yarn" and (meta.optional_number("rope.scaling.attn_factor") or 1.0) != 1.0:
        raise meta.unsupported(
            "A rotary embedding with a factor of its own, which Quire cannot run."
        )
    if kind == "none":
        return values
    given = meta.optional_number("rope.scaling.factor")
    factor = given or meta.optional_number("rope.scale_linear") or 1.0
    if kind == "linear":
        return values if factor == 1.0 else {**values, "rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise meta.unsupported(f"The rotary scaling {kind!r:.60}, which Quire does not know.")
    context = meta.integer("context_length")
    original = meta.integer("rope.scaling.original_context_length", max(1, round(context / factor)))
    magnitude = _yarn_magnitude(factor, 1.0)
    part = meta.optional_number("rope.scaling.yarn_log_multiplier")
    if part:
        magnitude /= _yarn_magnitude(factor, part)
    return {
        **values,
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "attention_factor": meta.number("rope.scaling.attn_factor", 1.0) * magnitude,
        "beta_fast": meta.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": meta.number("rope.scaling.yarn_beta_slow", 1.0),
    }


def _yarn_magnitude(factor: float, part: float) -> float:
    return 1.0 + 0.1 * part * math.log(factor) if factor > 1 else 1.0


def _turned_part(meta: GgufMetadata, head_size: int, *, turns_partly: bool) -> ConfigValues:
    """Which part of each head the rotary embedding turns, where it may be a part."""
    size = meta.integer("rope.dimension_count", head_size, within=(1, MAX_HEAD_SIZE))
    if turns_partly and size <= head_size:
        return {"partial_rotary_factor": size / head_size}
    if size != head_size:
        raise meta.unsupported(
            f"Rotary embedding over {size} of {head_size} numbers per head, which Quire "
            f"cannot run for the architecture '{meta.architecture}'."
        )
    return {}


def plain_head_size(meta: GgufMetadata, values: ConfigValues) -> ConfigValues:
    """Take the heads' size away where transformers works it out from the width.

    Raises:
        UnsupportedModelError: The file has another one.
    """
    width, num_heads = (whole_number(values, key) for key in ("hidden_size", "num_attention_heads"))
    if whole_number(values, "head_dim") * num_heads != width:
        raise meta.unsupported(
            f"Heads of a size of their own, which Quire cannot run for '{meta.architecture}'."
        )
    return {key: value for key, value in values.items() if key != "head_dim"}


def layer_types(meta: GgufMetadata, num_layers: int, *, period: int) -> list[str]:
    """Name each layer's attention; the last of each `period` layers sees everything."""
    windowed = meta.flags("attention.sliding_window_pattern")
    if windowed is None:
        if meta.has("attention.sliding_window_pattern"):
            period = meta.integer("attention.sliding_window_pattern", within=(1, MAX_LAYERS))
        windowed = [(layer_id + 1) % period != 0 for layer_id in range(num_layers)]
    if len(windowed) < num_layers:
        raise meta.fail(
            f"'{meta.architecture}.attention.sliding_window_pattern' has {len(windowed)} items "
            f"for {num_layers} layers."
        )
    return ["sliding_attention" if on else "full_attention" for on in windowed[:num_layers]]


def whole_number(values: ConfigValues, key: str) -> int:
    """One of the values that was read as a whole number."""
    value = values[key]
    if not isinstance(value, int):
        raise TypeError(f"{key} is no whole number")
    return value


def table(values: ConfigValues, key: str) -> ConfigValues:
    """A copy of one of the values that holds values itself."""
    value = values[key]
    if not isinstance(value, dict):
        raise TypeError(f"{key} is no table")
    return dict(value)
