"""From GGUF metadata to the configuration of families that only transformers computes. Pure Python."""

from inference.model.gguf_config_parts import (
    ConfigValues,
    layer_norm_config,
    layer_types,
    plain_config,
    plain_head_size,
    whole_number,
)
from inference.model.gguf_metadata import GgufMetadata

_STARCODER2_WINDOW = 4096


def arcee_config(meta: GgufMetadata) -> ConfigValues:
    """Arcee's AFM: a Llama without a gate, its activation squared."""
    values = plain_config(meta)
    return {**values, "hidden_act": "relu2", "attention_bias": False, "mlp_bias": False}


def hunyuan_config(meta: GgufMetadata) -> ConfigValues:
    """Hunyuan, dense: a Qwen 3 whose norms on queries and keys come after their turn."""
    return {**plain_config(meta), "attention_bias": False}


def starcoder2_config(meta: GgufMetadata) -> ConfigValues:
    """StarCoder 2. Its models were trained with a window, which files do not tell."""
    values = plain_head_size(meta, layer_norm_config(meta, "norm_epsilon"))
    window = meta.integer("attention.sliding_window", _STARCODER2_WINDOW)
    return {**values, "use_bias": True, "sliding_window": window}


def stablelm_config(meta: GgufMetadata) -> ConfigValues:
    """StableLM, but for the 12B, which norms each head by other weights."""
    if "blk.0.attn_q_norm.weight" in meta.tensors:
        raise meta.unsupported("A StableLM with norms on queries and keys, which Quire cannot run.")
    values = plain_head_size(meta, layer_norm_config(meta, turns_partly=True))
    return {
        **values,
        "use_qkv_bias": "blk.0.attn_q.bias" in meta.tensors,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in meta.tensors,
    }


def nemotron_config(meta: GgufMetadata) -> ConfigValues:
    """Nemotron and Minitron: no gate, an activation squared, norms that lack one."""
    values = layer_norm_config(meta, "norm_eps", turns_partly=True)
    return {**values, "hidden_act": "relu2", "attention_bias": False, "mlp_bias": False}


def olmo_config(meta: GgufMetadata) -> ConfigValues:
    """OLMo 1: norms without weights."""
    values = plain_head_size(meta, layer_norm_config(meta, None))
    clamp = meta.number("attention.clamp_kqv") if meta.has("attention.clamp_kqv") else None
    return {**values, "clip_qkv": clamp, "attention_bias": False}


def cohere_config(meta: GgufMetadata) -> ConfigValues:
    """Command R and Aya: attention and MLP side by side."""
    values = plain_head_size(meta, layer_norm_config(meta))
    return {
        **values,
        "logit_scale": meta.number("logit_scale"),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in meta.tensors,
    }


def cohere2_config(meta: GgufMetadata) -> ConfigValues:
    """Command R7B and A: three sliding layers, then a full one without rotary embedding."""
    values = layer_norm_config(meta)
    return {
        **values,
        "logit_scale": meta.number("logit_scale"),
        "sliding_window": meta.integer("attention.sliding_window"),
        "layer_types": layer_types(meta, whole_number(values, "num_hidden_layers"), period=4),
    }
