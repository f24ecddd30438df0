"""Makes the arguments of transformers' config classes from GGUF metadata. Pure Python.

One function per family; each starts from what all decoder-only families share.
"""

import math
from collections.abc import Callable

from inference.model.gguf_metadata import GgufMetadata
from inference.model.size_limits import MAX_EXPERTS, MAX_HEAD_SIZE, MAX_HEADS, MAX_INT, MAX_LAYERS

ConfigValues = dict[str, object]
ConfigBuilder = Callable[[GgufMetadata], ConfigValues]

LONGROPE_TENSOR = "rope_factors_long.weight"
GEMMA_LOCAL_ROPE_BASE = 10_000.0
_GEMMA3_27B_LAYERS = 62
_GEMMA2_27B_LAYERS = 46


def plain_config(meta: GgufMetadata) -> ConfigValues:
    """Make what every family has: Llama, Mistral, SmolLM, Qwen.

    Raises:
        ModelFileError: A required key is missing or contradicts the tensors.
        UnsupportedModelError: Mixture of experts, or layers that differ in size.
    """
    if meta.integer("expert_count", 0, within=(0, MAX_EXPERTS)):
        raise meta.unsupported("A mixture-of-experts model, which Quire cannot run from GGUF yet.")
    hidden_size = meta.integer("embedding_length")
    num_heads = meta.integer("attention.head_count", within=(1, MAX_HEADS))
    num_kv_heads = meta.integer("attention.head_count_kv", num_heads, within=(1, MAX_HEADS))
    if num_heads % num_kv_heads:
        raise meta.fail(f"{num_heads} attention heads cannot share {num_kv_heads} key/value heads.")
    return {
        "vocab_size": _vocab_size(meta, hidden_size),
        "hidden_size": hidden_size,
        "intermediate_size": meta.integer("feed_forward_length"),
        "num_hidden_layers": _num_layers(meta),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": _head_size(meta, hidden_size, num_heads),
        "max_position_embeddings": meta.integer("context_length"),
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope_parameters(meta),
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
    kind = meta.word("rope.scaling.type") or "none"
    if kind == "none" or (kind == "longrope" and LONGROPE_TENSOR in meta.tensors):
        return values  # longrope: the family that has the tensors adds the factors
    factor = meta.number("rope.scaling.factor", 1.0)
    if kind == "linear":
        return values if factor == 1.0 else {**values, "rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise meta.unsupported(f"The rotary scaling {kind!r:.60}, which Quire does not know.")
    context = meta.integer("context_length")
    original = meta.integer("rope.scaling.original_context_length", max(1, round(context / factor)))
    magnitude = (1.0 + 0.1 * math.log(factor)) if factor > 1 else 1.0
    return {
        **values,
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "attention_factor": meta.number("rope.scaling.attn_factor", 1.0) * magnitude,
        "beta_fast": meta.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": meta.number("rope.scaling.yarn_beta_slow", 1.0),
    }


def _whole_head_rotary(meta: GgufMetadata, values: ConfigValues) -> ConfigValues:
    size = meta.integer("rope.dimension_count", _int(values, "head_dim"))
    if size != values["head_dim"]:
        raise meta.unsupported(
            f"Rotary embedding over {size} of {values['head_dim']} numbers per head, which Quire "
            f"cannot run for the architecture '{meta.architecture}'."
        )
    return values


def llama_config(meta: GgufMetadata) -> ConfigValues:
    """Llama 1 to 3, Mistral, SmolLM and their kin."""
    values = _whole_head_rotary(meta, plain_config(meta))
    values["attention_bias"] = "blk.0.attn_q.bias" in meta.tensors
    values["mlp_bias"] = "blk.0.ffn_gate.bias" in meta.tensors
    return values


def qwen2_config(meta: GgufMetadata) -> ConfigValues:
    """Qwen 2 and 2.5: biases on q, k and v are part of the architecture."""
    values = plain_config(meta)
    if values["head_dim"] != _int(values, "hidden_size") // _int(values, "num_attention_heads"):
        raise meta.unsupported("A Qwen 2 with a head size of its own, which Quire cannot run.")
    return {**values, "use_sliding_window": False}


def qwen3_config(meta: GgufMetadata) -> ConfigValues:
    """Qwen 3, dense."""
    return {**plain_config(meta), "use_sliding_window": False, "attention_bias": False}


def granite_config(meta: GgufMetadata) -> ConfigValues:
    """Granite 3: a Llama with four multipliers."""
    values = llama_config(meta)
    head_size = _int(values, "head_dim")
    return {
        **values,
        "embedding_multiplier": meta.number("embedding_scale", 1.0),
        "residual_multiplier": meta.number("residual_scale", 1.0),
        "attention_multiplier": meta.number("attention.scale", head_size**-0.5),
        "logits_scaling": meta.number("logit_scale", 1.0),
    }


def olmo2_config(meta: GgufMetadata) -> ConfigValues:
    """OLMo 2; OLMo 3 uses the same word, with a sliding window."""
    if meta.has("attention.sliding_window"):
        raise meta.unsupported("An OLMo 3 model, which Quire cannot run from GGUF yet.")
    return {**_whole_head_rotary(meta, plain_config(meta)), "attention_bias": False}


def gemma2_config(meta: GgufMetadata) -> ConfigValues:
    """Gemma 2: every second layer looks back only over a window; soft caps."""
    values = plain_config(meta)
    num_layers = _int(values, "num_hidden_layers")
    return {
        **values,
        "query_pre_attn_scalar": _gemma_query_scale(values, num_layers == _GEMMA2_27B_LAYERS),
        "sliding_window": meta.integer("attention.sliding_window", 4096),
        "layer_types": layer_types(meta, num_layers, period=2),
        "attn_logit_softcapping": meta.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": meta.number("final_logit_softcapping", 30.0),
    }


def gemma3_config(meta: GgufMetadata) -> ConfigValues:
    """Gemma 3, text: five windowed layers, then a full one; two rotary bases."""
    values = plain_config(meta)
    num_layers = _int(values, "num_hidden_layers")
    whole = rope_parameters(meta)
    whole["rope_theta"] = meta.number("rope.freq_base", 1_000_000.0)
    local_base = meta.number("rope.freq_base_swa", GEMMA_LOCAL_ROPE_BASE)
    capping = meta.has("final_logit_softcapping")
    return {
        **values,
        "rope_parameters": {
            "full_attention": whole,
            "sliding_attention": {"rope_type": "default", "rope_theta": local_base},
        },
        "query_pre_attn_scalar": _gemma_query_scale(values, num_layers == _GEMMA3_27B_LAYERS),
        "sliding_window": meta.integer("attention.sliding_window"),
        "layer_types": layer_types(meta, num_layers, period=6),
        "final_logit_softcapping": meta.number("final_logit_softcapping") if capping else None,
    }


def _gemma_query_scale(values: ConfigValues, is_27b: bool) -> int:
    """The number under the root that divides queries; not stored in the file, only the 27B differ."""
    if is_27b:
        return _int(values, "hidden_size") // _int(values, "num_attention_heads")
    return _int(values, "head_dim")


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


def phi3_config(meta: GgufMetadata) -> ConfigValues:
    """Phi 3, 3.5 and 4-mini; rotary factors per frequency are added by the loader."""
    values = plain_config(meta)
    head_size = _int(values, "head_dim")
    if head_size * _int(values, "num_attention_heads") != values["hidden_size"]:
        raise meta.unsupported("A Phi 3 with a head size of its own, which Quire cannot run.")
    del values["head_dim"]
    rope = rope_parameters(meta)
    rope["partial_rotary_factor"] = (
        meta.integer("rope.dimension_count", head_size, within=(1, head_size)) / head_size
    )
    context = _int(values, "max_position_embeddings")
    original = meta.integer("rope.scaling.original_context_length", context)
    if LONGROPE_TENSOR in meta.tensors:
        rope["rope_type"] = "longrope"
        rope["original_max_position_embeddings"] = original
        rope["attention_factor"] = meta.number("rope.scaling.attn_factor", 1.0)
    window = meta.integer("attention.sliding_window", 0, within=(0, MAX_INT))
    return {
        **values,
        "rope_parameters": rope,
        "original_max_position_embeddings": original,
        "sliding_window": window or None,
    }


def _int(values: ConfigValues, key: str) -> int:
    value = values[key]
    if not isinstance(value, int):
        raise TypeError(f"{key} is no whole number")
    return value
