"""Makes a `ModelSpec` from a configuration: a folder's config.json, or what a GGUF's metadata became.

Pure Python. Whatever is not surely the same as in transformers is refused, for the bridge to run.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from inference.model.size_limits import MAX_HEAD_SIZE, MAX_INT, MAX_LAYERS
from inference.model.spec import (
    Activation,
    ExpertSpec,
    ModelSpec,
    QueryGrowth,
    UnsupportedSpecError,
)
from inference.model.spec_families import ACTIVATIONS, FAMILIES, FAMILY_OF_MODEL_TYPE
from inference.model.spec_family import Family
from inference.model.spec_layers import Heads, heads_by_kind, layer_specs
from inference.model.spec_ropes import spec_ropes, stable_context
from inference.model.spec_values import SpecValues

ROPE_FREQS = "rope_freqs.weight"
ROPE_FACTORS_SHORT = "rope_factors_short.weight"
HEAD_TENSOR = "lm_head.weight"
_EXPERT_SIZE = "moe_intermediate_size"
_OUR_KEYS = ("has_layer_scales", "has_expert_scales")  # of what was read from GGUF
_FULL, _SLIDING = "full_attention", "sliding_attention"


def spec_from_folder(config: Mapping[str, object], tensor_names: Collection[str] = ()) -> ModelSpec:
    """Describe the model of a folder.

    Args:
        config: The content of its config.json.
        tensor_names: Its tensors. A head of its own counts, even if the configuration ties it.

    Raises:
        UnsupportedSpecError: The family, or an option of it, is not known here.
    """
    values = SpecValues(config)
    name = FAMILY_OF_MODEL_TYPE.get(values.word("model_type"))
    if name is None:
        raise UnsupportedSpecError(f"the architecture {values.word('model_type')[:40]!r}")
    classes = values.words("architectures") if values.has("architectures") else []
    if classes and classes != [FAMILIES[name].model_class]:
        raise UnsupportedSpecError(f"the class {classes[0][:40]!r}")
    if values.has("quantization_config"):
        raise UnsupportedSpecError("weights that are quantised already")
    spec = _build(name, _as_transformers_reads(FAMILIES[name], config), None)
    return replace(spec, is_head_tied=False) if HEAD_TENSOR in tensor_names else spec


def _as_transformers_reads(family: Family, config: Mapping[str, object]) -> dict[str, object]:
    """A folder's values, without words that are ours alone; Gemma 4's last layer sees everything, whatever it says."""
    values = {key: value for key, value in config.items() if key not in _OUR_KEYS}
    if family.layer_sizes == "by_kind":
        known = SpecValues(values, family.defaults)
        kinds = _layer_types(family, known, _num_layers(known), has_window=True)
        values["layer_types"] = [*kinds[:-1], _FULL]
    return values


def spec_from_gguf(
    name: str,
    config: Mapping[str, object],
    rope_factors: Mapping[str, Sequence[float]] | None = None,
) -> ModelSpec:
    """Describe the model of a GGUF file.

    Args:
        name: Its family in `spec_families`.
        config: What `gguf_configs` made of its metadata.
        rope_factors: Those of its tensors that hold factors for the rotary embedding, by name:
            ROPE_FREQS, ROPE_FACTORS_SHORT.

    Raises:
        UnsupportedSpecError: The family, or an option of it, is not known here.
    """
    factors = rope_factors or {}
    values = dict(config)
    rope = SpecValues(values).table("rope_parameters")
    if ROPE_FACTORS_SHORT in factors and rope.get("rope_type") == "longrope":
        values["rope_parameters"] = {**rope, "short_factor": list(factors[ROPE_FACTORS_SHORT])}
    divisors = factors.get(ROPE_FREQS)
    return _build(name, values, None if divisors is None else tuple(divisors))


def _build(
    name: str, config: Mapping[str, object], divisors: tuple[float, ...] | None
) -> ModelSpec:
    family = FAMILIES[name]
    values = SpecValues(config, family.defaults)
    hidden_size, num_heads = values.integer("hidden_size"), values.integer("num_attention_heads")
    num_kv_heads = values.integer("num_key_value_heads", num_heads)
    context_tokens = values.integer("max_position_embeddings")
    head_dim = _head_dim(values, hidden_size, num_heads)
    windows = _windows(family, values)
    heads = heads_by_kind(family, values, windows, Heads(num_kv_heads, head_dim))
    for kind in heads:
        if num_heads % kind.num_kv_heads:
            raise UnsupportedSpecError(
                f"{num_heads} heads over {kind.num_kv_heads} key/value heads"
            )
    dims = (heads.full.head_dim, heads.sliding.head_dim)
    ropes, rope_indexes = spec_ropes(
        name, values, windows, head_dims=dims, context=context_tokens, divisors=divisors
    )
    layers = layer_specs(family, values, windows, rope_indexes, heads)
    for flag in family.refused_flags:
        if values.flag(flag, False):
            raise UnsupportedSpecError(f"the option {flag!r}")
    mlp_size, ple_size = _mlp_size(family, values), _ple_size(family, values, len(layers))
    spec = ModelSpec(
        family=name,
        vocab_size=values.integer("vocab_size"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=max(kind.num_kv_heads for kind in heads),
        head_dim=max(dims),
        mlp_size=max(layer.mlp_size or mlp_size for layer in layers),
        layers=layers,
        layer_roles=family.layer_roles(
            attention_bias=values.flag("attention_bias", False),
            mlp_bias=values.flag("mlp_bias", False),
            has_ple=ple_size > 0,
            has_layer_scales=values.flag("has_layer_scales", True),
            has_expert_scales=values.flag("has_expert_scales", True),
        ),
        ropes=ropes,
        activation=_activation(name, values.word(family.activation_key)),
        query_key_norm=family.query_key_norm,
        norm_epsilon=values.number("rms_norm_eps"),
        attention_scale=_attention_scale(family, values, head_dim),
        is_head_tied=values.flag("tie_word_embeddings", False),
        context_tokens=context_tokens,
        stable_context_tokens=stable_context(name, values, context_tokens),
        experts=_experts(family, values) if family.has_experts else None,
        query_growth=_query_growth(values) if family.may_grow_queries else None,
        has_value_norm=family.has_value_norm,
        ple_size=ple_size,
    )
    return _with_scales(spec, family, values)


def _with_scales(spec: ModelSpec, family: Family, values: SpecValues) -> ModelSpec:
    """Add the numbers that are one, or none, in most families."""
    embedding_scale = _multiplier(family, values, "embedding_multiplier")
    return replace(
        spec,
        attention_softcap=_cap(family.has_attention_softcap, values, "attn_logit_softcapping"),
        logit_softcap=_cap(family.has_logit_softcap, values, "final_logit_softcapping"),
        embedding_scale=(
            math.sqrt(spec.hidden_size) if family.scales_embedding else embedding_scale
        ),
        residual_scale=_multiplier(family, values, "residual_multiplier"),
        logit_scale=1.0 / _multiplier(family, values, "logits_scaling"),
    )


def _mlp_size(family: Family, values: SpecValues) -> int:
    has_own = family.has_experts and values.has(_EXPERT_SIZE)
    return values.integer(_EXPERT_SIZE if has_own else "intermediate_size")


def _ple_size(family: Family, values: SpecValues, num_layers: int) -> int:
    size = values.count("hidden_size_per_layer_input") if family.may_have_ple else 0
    if size * num_layers > MAX_INT:
        raise UnsupportedSpecError(f"per-layer embeddings of {size} numbers")
    vocab_size = values.integer("vocab_size")
    if size and values.integer("vocab_size_per_layer_input") != vocab_size:
        raise UnsupportedSpecError("per-layer embeddings of another vocabulary")
    return size


def _experts(family: Family, values: SpecValues) -> ExpertSpec:
    count = values.integer("num_experts" if values.has("num_experts") else "num_local_experts")
    num_used = values.integer("num_experts_per_tok")
    if num_used > count:
        raise UnsupportedSpecError(f"{num_used} of {count} experts")
    if count * max(values.integer("hidden_size"), 2 * _mlp_size(family, values)) > MAX_INT:
        raise UnsupportedSpecError(f"{count} experts of that size")
    shared = 0
    if family.shares_an_expert:
        shared = values.integer("shared_expert_intermediate_size")
    elif family.has_mlp_beside_experts:
        shared = values.integer("intermediate_size")
    return ExpertSpec(count, num_used, values.flag("norm_topk_prob", True), shared)


def _query_growth(values: SpecValues) -> QueryGrowth | None:
    table = values.table("rope_scaling") or values.table("rope_parameters")
    if not table.get("llama_4_scaling_beta"):
        return None
    rope = SpecValues(table)
    return QueryGrowth(
        rope.number("llama_4_scaling_beta"), rope.integer("original_max_position_embeddings")
    )


def _activation(name: str, word: str) -> Activation:
    if word == "gelu" and name == "gemma":
        return "gelu_tanh"  # as the first configurations of Gemma called it
    activation = ACTIVATIONS.get(word)
    if activation is None:
        raise UnsupportedSpecError(f"the activation {word[:40]!r}")
    return activation


def _head_dim(values: SpecValues, hidden_size: int, num_heads: int) -> int:
    if not values.has("head_dim") and hidden_size % num_heads:
        raise UnsupportedSpecError(f"{num_heads} heads in a width of {hidden_size}")
    head_dim = values.integer("head_dim", hidden_size // num_heads)
    if head_dim % 2 or head_dim > MAX_HEAD_SIZE:
        raise UnsupportedSpecError(f"heads of {head_dim} numbers")
    return head_dim


def _attention_scale(family: Family, values: SpecValues, head_dim: int) -> float:
    if family.has_multipliers:
        return values.number("attention_multiplier", 1.0)
    if family.scales_by_scalar:
        return 1.0 / math.sqrt(values.number("query_pre_attn_scalar"))
    return 1.0 / math.sqrt(head_dim)


def _multiplier(family: Family, values: SpecValues, key: str) -> float:
    return values.number(key, 1.0) if family.has_multipliers else 1.0


def _cap(has_cap: bool, values: SpecValues, key: str) -> float | None:
    return values.optional_number(key) if has_cap else None


def _num_layers(values: SpecValues) -> int:
    num_layers = values.integer("num_hidden_layers")
    if num_layers > MAX_LAYERS:
        raise UnsupportedSpecError(f"{num_layers} layers")
    return num_layers


def _windows(family: Family, values: SpecValues) -> list[int | None]:
    """Each layer's window."""
    num_layers = _num_layers(values)
    if values.flag("use_bidirectional_attention", False):
        raise UnsupportedSpecError("attention to later tokens")
    window = values.integer("sliding_window") if values.has("sliding_window") else None
    if family.windows == "none" and window is not None:
        raise UnsupportedSpecError("a sliding window where the family has none")
    if family.windows in ("none", "every_layer"):
        return [window] * num_layers
    if family.windows == "some_layers_if_asked" and not values.flag("use_sliding_window", False):
        window = None
    kinds = _layer_types(family, values, num_layers, has_window=window is not None)
    if _SLIDING in kinds and window is None:
        raise UnsupportedSpecError("sliding layers without a window")
    return [window if kind == _SLIDING else None for kind in kinds]


def _layer_types(
    family: Family, values: SpecValues, num_layers: int, *, has_window: bool
) -> list[str]:
    if values.has("layer_types"):
        kinds = values.words("layer_types")
        if len(kinds) != num_layers or not set(kinds) <= {_FULL, _SLIDING}:
            raise UnsupportedSpecError("layers of other kinds")
        return kinds
    period = family.window_period
    if family.window_period_key is not None:
        period = values.integer(family.window_period_key, period)
    if period is not None:
        return [_FULL if (index + 1) % period == 0 else _SLIDING for index in range(num_layers)]
    first = values.integer("max_window_layers") if has_window else num_layers
    return [_SLIDING if index >= first else _FULL for index in range(num_layers)]
