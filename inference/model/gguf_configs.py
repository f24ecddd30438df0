"""From GGUF metadata to the configuration of the families that our decoder computes. Pure Python."""

from inference.model.gguf_config_parts import (
    LONGROPE_TENSOR,
    ConfigValues,
    expert_config,
    layer_types,
    plain_config,
    plain_head_size,
    rope_parameters,
    table,
    whole_number,
)
from inference.model.gguf_metadata import GgufMetadata
from inference.model.size_limits import MAX_HEAD_SIZE, MAX_HEADS, MAX_INT, MAX_LAYERS

GEMMA_LOCAL_ROPE_BASE = 10_000.0
_GEMMA3_27B_LAYERS = 62
_GEMMA2_27B_LAYERS = 46
_EXAONE4_32B_LAYERS = 64
_SMOLLM3_PERIOD = 4
_GPT_OSS_WINDOW = 128
_KINDS = ("sliding_attention", "full_attention")


def llama_config(meta: GgufMetadata) -> ConfigValues:
    """Llama 1 to 3, Mistral, SmolLM and their kin."""
    values = plain_config(meta)
    values["attention_bias"] = "blk.0.attn_q.bias" in meta.tensors
    values["mlp_bias"] = "blk.0.ffn_gate.bias" in meta.tensors
    return values


def mistral3_config(meta: GgufMetadata) -> ConfigValues:
    """Ministral 3: a Llama whose queries grow in long contexts."""
    values = plain_config(meta)
    rope = table(values, "rope_parameters")
    context = whole_number(values, "max_position_embeddings")
    grown = {
        "original_max_position_embeddings": meta.integer(
            "rope.scaling.original_context_length", context
        ),
        **rope,
        "llama_4_scaling_beta": meta.optional_number("attention.temperature_scale") or 0.0,
    }
    return {**values, "rope_parameters": grown, "sliding_window": None}


def qwen2_config(meta: GgufMetadata) -> ConfigValues:
    """Qwen 2 and 2.5: biases on q, k and v are part of the architecture."""
    values = plain_head_size(meta, plain_config(meta))
    return {**values, "use_sliding_window": False}


def qwen3_config(meta: GgufMetadata) -> ConfigValues:
    """Qwen 3, dense."""
    return {**plain_config(meta), "use_sliding_window": False, "attention_bias": False}


def granite_config(meta: GgufMetadata) -> ConfigValues:
    """Granite 3: a Llama with four multipliers."""
    values = llama_config(meta)
    return {**values, **granite_multipliers(meta, values)}


def granite_multipliers(meta: GgufMetadata, values: ConfigValues) -> ConfigValues:
    """What multiplies embedding, scores, results and logits."""
    head_size = whole_number(values, "head_dim")
    return {
        "embedding_multiplier": meta.number("embedding_scale", 1.0),
        "residual_multiplier": meta.number("residual_scale", 1.0),
        "attention_multiplier": meta.number("attention.scale", head_size**-0.5),
        "logits_scaling": meta.number("logit_scale", 1.0),
    }


def smollm3_config(meta: GgufMetadata) -> ConfigValues:
    """SmolLM 3: a Llama in which every fourth layer has no rotary embedding; the file does not say so."""
    values = llama_config(meta)
    num_layers = whole_number(values, "num_hidden_layers")
    turned = [int((index + 1) % _SMOLLM3_PERIOD != 0) for index in range(num_layers)]
    return {**values, "no_rope_layers": turned, "use_sliding_window": False}


def olmo2_config(meta: GgufMetadata) -> ConfigValues:
    """OLMo 2."""
    values = plain_head_size(meta, plain_config(meta))
    return {**values, "attention_bias": False}


def olmo3_config(meta: GgufMetadata) -> ConfigValues:
    """OLMo 3: an OLMo 2 with sliding windows; only full layers are scaled to longer contexts."""
    values = olmo2_config(meta)
    full = rope_parameters(meta)
    sliding = {"rope_type": "default", "rope_theta": full["rope_theta"]}
    return {
        **values,
        "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
        "sliding_window": meta.integer("attention.sliding_window"),
        "layer_types": layer_types(meta, whole_number(values, "num_hidden_layers"), period=4),
    }


def exaone4_config(meta: GgufMetadata) -> ConfigValues:
    """EXAONE 4: the 32B has sliding windows, and no rotary embedding in its full layers."""
    values = plain_head_size(meta, plain_config(meta))
    num_layers = whole_number(values, "num_hidden_layers")
    if num_layers != _EXAONE4_32B_LAYERS and not meta.has("attention.sliding_window"):
        full = ["full_attention"] * num_layers
        return {**values, "sliding_window": None, "layer_types": full}
    return {
        **values,
        "sliding_window": meta.integer("attention.sliding_window", 4096),
        "layer_types": layer_types(meta, num_layers, period=4),
    }


def glm4_config(meta: GgufMetadata) -> ConfigValues:
    """GLM 4 of 2025: norms on both sides; half of each head is turned, in pairs."""
    if meta.has("rope.dimension_sections"):
        raise meta.unsupported("A GLM 4 that sees images, which Quire cannot run.")
    values = plain_config(meta, turns_partly=True)
    return {**values, "attention_bias": "blk.0.attn_q.bias" in meta.tensors}


def seed_oss_config(meta: GgufMetadata) -> ConfigValues:
    """Seed-OSS: a Llama with biases on query, key and value."""
    values = plain_config(meta)
    return {**values, "attention_bias": True, "attention_out_bias": False, "mlp_bias": False}


def ernie4_5_config(meta: GgufMetadata) -> ConfigValues:
    """ERNIE 4.5, dense: a Llama that turns pairs (2i, 2i + 1)."""
    return {**plain_config(meta), "use_bias": False}


def gemma2_config(meta: GgufMetadata) -> ConfigValues:
    """Gemma 2: every second layer looks back only over a window; soft caps."""
    values = plain_config(meta)
    num_layers = whole_number(values, "num_hidden_layers")
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
    num_layers = whole_number(values, "num_hidden_layers")
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


def gemma4_config(meta: GgufMetadata) -> ConfigValues:
    """Gemma 4, text: full layers with larger heads, shared keys and values, per-layer embeddings."""
    return {**plain_config(_alike(meta)), **_gemma4_layers(meta)}


def gemma4_moe_config(meta: GgufMetadata) -> ConfigValues:
    """Gemma 4 with experts, and an MLP of all tokens beside them."""
    return {
        **expert_config(_alike(meta)),
        **_gemma4_layers(meta),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "has_expert_scales": "blk.0.ffn_down_exps.scale" in meta.tensors,
        "has_fused_experts": "blk.0.ffn_gate_up_exps.weight" in meta.tensors,
    }


def _alike(meta: GgufMetadata) -> GgufMetadata:
    """With one number of what layers of Gemma 4 have of their own."""
    return meta.with_first_of("attention.head_count_kv", "feed_forward_length")


def _gemma4_layers(meta: GgufMetadata) -> ConfigValues:
    """What differs from layer to layer, and what no other family has."""
    if "rope_freqs.weight" not in meta.tensors:
        raise meta.fail("The tensor 'rope_freqs.weight' is missing.")
    num_layers = meta.integer("block_count", within=(1, MAX_LAYERS))
    kinds = layer_types(meta, num_layers, period=6)
    heads = meta.integers("attention.head_count_kv", num_layers, within=(1, MAX_HEADS))
    sliding_heads, full_heads = (_one_of_kind(meta, heads, kinds, kind) for kind in _KINDS)
    num_shared = meta.integer("attention.shared_kv_layers", 0, within=(0, num_layers - 1))
    widths = meta.integers("feed_forward_length", num_layers)
    is_wider = num_shared > 0 and widths[-1] != widths[0]
    factor = 2 if is_wider else 1
    if widths != [widths[0]] * (num_layers - num_shared) + [factor * widths[0]] * num_shared:
        raise meta.unsupported(
            "MLPs of other widths than those of Gemma 4, which Quire cannot run."
        )
    own_full = [
        index for index, kind in enumerate(kinds[: num_layers - num_shared]) if kind == _KINDS[1]
    ]
    value_is_key = any(f"blk.{index}.attn_v.weight" not in meta.tensors for index in own_full)
    whole = {
        **rope_parameters(meta),
        "rope_theta": meta.number("rope.freq_base", 1_000_000.0),
        "partial_rotary_factor": 1.0,  # what of it is turned is in the file's factors
    }
    local_base = meta.number("rope.freq_base_swa", GEMMA_LOCAL_ROPE_BASE)
    sliding_dim = meta.integer("attention.key_length_swa", within=(1, MAX_HEAD_SIZE))
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if meta.integer(key, sliding_dim, within=(0, MAX_INT)) != sliding_dim:
            raise meta.unsupported(
                f"Sliding layers whose '{meta.architecture}.{key}' is not the size of a head, which Quire "
                "cannot run."
            )
    return {
        "intermediate_size": widths[0],
        "num_key_value_heads": sliding_heads,
        "num_global_key_value_heads": full_heads,
        "attention_k_eq_v": value_is_key,
        "head_dim": sliding_dim,
        "global_head_dim": meta.integer("attention.key_length", within=(1, MAX_HEAD_SIZE)),
        "rope_parameters": {
            "full_attention": whole,
            "sliding_attention": {"rope_type": "default", "rope_theta": local_base},
        },
        "sliding_window": meta.integer("attention.sliding_window"),
        "layer_types": kinds,
        "final_logit_softcapping": meta.optional_number("final_logit_softcapping"),
        "num_kv_shared_layers": num_shared,
        "use_double_wide_mlp": is_wider,
        "hidden_size_per_layer_input": meta.integer(
            "embedding_length_per_layer_input", 0, within=(0, MAX_INT)
        ),
        "vocab_size_per_layer_input": meta.tensors["token_embd.weight"].shape[0],
        "has_layer_scales": "blk.0.layer_output_scale.weight" in meta.tensors,
    }


def _one_of_kind(meta: GgufMetadata, numbers: list[int], kinds: list[str], kind: str) -> int:
    """What all layers of a kind have."""
    found = {number for number, own in zip(numbers, kinds, strict=True) if own == kind}
    if len(found) > 1:
        raise meta.unsupported(
            f"'{meta.architecture}.attention.head_count_kv' differs between layers of one kind; "
            "Quire cannot run it."
        )
    return found.pop() if found else numbers[0]


def _gemma_query_scale(values: ConfigValues, is_27b: bool) -> int:
    """The number under the root that divides queries; not stored in the file, only the 27B differ."""
    if is_27b:
        return whole_number(values, "hidden_size") // whole_number(values, "num_attention_heads")
    return whole_number(values, "head_dim")


def phi3_config(meta: GgufMetadata) -> ConfigValues:
    """Phi 3, 3.5 and 4-mini; rotary factors per frequency are added by the loader."""
    values = plain_head_size(meta, plain_config(meta, turns_partly=True))
    rope = table(values, "rope_parameters")
    context = whole_number(values, "max_position_embeddings")
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


def mixtral_config(meta: GgufMetadata) -> ConfigValues:
    """Mixtral: its files call it "llama"."""
    if "blk.0.ffn_gate.0.weight" in meta.tensors:
        raise meta.unsupported("A file of Mixtral's first days, with every expert for itself.")
    values = expert_config(meta, "num_local_experts")
    return {**values, "sliding_window": None}


def qwen2_moe_config(meta: GgufMetadata) -> ConfigValues:
    """Qwen 1.5 and 2 with experts, one of them shared."""
    values = plain_head_size(meta, expert_config(meta))
    return {
        **values,
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": meta.integer("expert_shared_feed_forward_length"),
        "norm_topk_prob": False,
        "use_sliding_window": False,
    }


def qwen3_moe_config(meta: GgufMetadata) -> ConfigValues:
    """Qwen 3 with experts."""
    return {
        **expert_config(meta),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "use_sliding_window": False,
        "attention_bias": False,
    }


def olmoe_config(meta: GgufMetadata) -> ConfigValues:
    """OLMoE."""
    values = plain_head_size(meta, expert_config(meta))
    return {**values, "norm_topk_prob": False, "clip_qkv": None, "attention_bias": False}


def granite_moe_config(meta: GgufMetadata) -> ConfigValues:
    """Granite 3 with experts."""
    values = expert_config(meta, "num_local_experts")
    multipliers = granite_multipliers(meta, values)
    return {**plain_head_size(meta, values), **multipliers, "attention_bias": False}


def gpt_oss_config(meta: GgufMetadata) -> ConfigValues:
    """gpt-oss: experts and router with biases, attention sinks, every second layer looks back over a window."""
    values = expert_config(meta, "num_local_experts")
    rope = table(values, "rope_parameters")
    return {
        **values,
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "hidden_act": "clamped_swish",
        "attention_bias": True,
        # Unlike every other YaRN, and not in the file.
        "rope_parameters": {**rope, "truncate": False},
        "sliding_window": meta.integer("attention.sliding_window", _GPT_OSS_WINDOW),
        "layer_types": layer_types(meta, whole_number(values, "num_hidden_layers"), period=2),
    }
