"""Which rotary embeddings a model has, and which layer uses which. Pure Python.

Models are stored in the words of many releases of transformers; the arithmetic is in `spec_rope`.
"""

from inference.model.spec import RopeSpec, UnsupportedSpecError
from inference.model.spec_families import FAMILIES, OLMO3_ROPE_BASE
from inference.model.spec_family import Family
from inference.model.spec_rope import make_rope, stable_context_tokens
from inference.model.spec_values import SpecValues

_FULL, _SLIDING = "full_attention", "sliding_attention"
_SCALED_BY_CONTEXT = ("llama3", "yarn", "longrope")
_ROPE_BASE = 10_000.0
_GEMMA_ROPE_BASE = 1_000_000.0
_UNTURNED_PERIOD = 4

RopeValues = dict[str, object]


def spec_ropes(
    name: str,
    values: SpecValues,
    windows: list[int | None],
    *,
    head_dims: tuple[int, int],
    context: int,
    divisors: tuple[float, ...] | None,
) -> tuple[tuple[RopeSpec, ...], list[int]]:
    """The rotary embeddings, and which of them each layer uses.

    Args:
        name: The family.
        values: The configuration.
        windows: Each layer's.
        head_dims: D of layers that see everything, and of those with a window.
        context: What the model was made for.
        divisors: See `make_rope`; where rotary embeddings differ by kind, for layers that see everything.
    """
    variants = _rope_variants(name, values)
    is_by_kind = FAMILIES[name].layer_sizes == "by_kind"
    if len(variants) > 1 and divisors is not None and not is_by_kind:
        raise UnsupportedSpecError("rotary factors for two embeddings")
    ropes = tuple(
        make_rope(
            variant,
            head_dim=head_dims[index],
            context_tokens=context,
            divisors=divisors if index == 0 else None,
        )
        for index, variant in enumerate(variants)
    )
    if len({len(rope.inverse_frequencies) for rope in ropes}) > 1 and not is_by_kind:
        raise UnsupportedSpecError("rotary embeddings of two sizes")
    last = len(ropes) - 1
    indexes = [0 if window is None else last for window in windows]
    unturned = _unturned_layers(FAMILIES[name], values, windows)
    if not any(unturned):
        return ropes, indexes
    still = RopeSpec((0.0,) * len(ropes[0].inverse_frequencies))  # turns nothing, anywhere
    pairs = zip(unturned, indexes, strict=True)
    return (*ropes, still), [last + 1 if is_unturned else index for is_unturned, index in pairs]


def _unturned_layers(family: Family, values: SpecValues, windows: list[int | None]) -> list[bool]:
    """Which layers have no rotary embedding."""
    if family.unturned == "none":
        return [False] * len(windows)
    if family.unturned == "full_layers_beside_sliding":
        return [window is None and values.has("sliding_window") for window in windows]
    if values.has("no_rope_layers"):
        turned = values.numbers("no_rope_layers")  # by its name the other way round
        if len(turned) < len(windows):
            raise UnsupportedSpecError("a list of too few layers with rotary embedding")
        return [not number for number in turned[: len(windows)]]
    period = values.integer("no_rope_layer_interval", _UNTURNED_PERIOD)
    return [(index + 1) % period == 0 for index in range(len(windows))]


def _rope_variants(name: str, values: SpecValues) -> list[RopeValues]:
    """The rotary parameters: of all layers; or of full layers, then of sliding ones."""
    if FAMILIES[name].has_ropes_by_kind:
        return _BY_KIND[name](values)
    may_turn_partly = FAMILIES[name].may_turn_partly
    rope = values.table("rope_scaling") or values.table("rope_parameters")
    if any(isinstance(value, dict) for value in rope.values()):
        raise UnsupportedSpecError("a rotary embedding for each kind of layer")
    base = values.number("rope_theta", _ROPE_BASE)
    partial = values.number("partial_rotary_factor", 1.0)
    rope = {"rope_theta": base, "partial_rotary_factor": partial, **rope}
    rope = _with_kind(rope, is_phi=name == "phi3")
    if not may_turn_partly and SpecValues(rope).number("partial_rotary_factor") != 1.0:
        raise UnsupportedSpecError("a rotary embedding of part of each head")
    if rope["rope_type"] not in _SCALED_BY_CONTEXT:
        return [rope]
    # Outside the rotary parameters it has the last word, as Phi 3 stores it.
    if values.has("original_max_position_embeddings"):
        original = values.integer("original_max_position_embeddings")
        rope["original_max_position_embeddings"] = original
    return [rope]


def _olmo3_variants(values: SpecValues) -> list[RopeValues]:
    """Sliding layers are never scaled to longer contexts; a scaling without a kind is of full ones."""
    both = _by_kind(values)
    if values.number("rope_theta") != OLMO3_ROPE_BASE:
        raise UnsupportedSpecError("another base of full layers alone, as transformers reads it")
    plain: RopeValues = {"rope_theta": OLMO3_ROPE_BASE}
    full = {**plain, **both.table(_FULL), **values.table("rope_scaling")}
    variants = [full, {**plain, **both.table(_SLIDING)}]
    return [_with_kind(rope, is_phi=False) for rope in variants]


def _by_kind(values: SpecValues) -> SpecValues:
    """The rotary parameters of full and of sliding layers, as far as they are there."""
    both = values.table("rope_parameters")
    if both.keys() - {_FULL, _SLIDING}:
        raise UnsupportedSpecError("one rotary embedding for both kinds of layers")
    return SpecValues(both)


def _gemma4_variants(values: SpecValues) -> list[RopeValues]:
    """Of full layers a part is turned, spread as if all were; that they are so is said if nothing is."""
    table = _by_kind(values)
    given: RopeValues = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    full = {"rope_theta": _GEMMA_ROPE_BASE, **(table.table(_FULL) or given)}
    sliding: RopeValues = {"rope_theta": _ROPE_BASE, **table.table(_SLIDING)}
    variants = [_with_kind(full, is_phi=False), _with_kind(sliding, is_phi=False)]
    for rope in variants:
        part = SpecValues(rope).number("partial_rotary_factor", 1.0)
        if part != 1.0 and rope["rope_type"] != "proportional":
            raise UnsupportedSpecError("a rotary embedding of part of each head")
    return variants


def _gemma3_variants(values: SpecValues) -> list[RopeValues]:
    table = _by_kind(values)
    full: RopeValues = {
        "rope_theta": values.number("rope_theta", _GEMMA_ROPE_BASE),
        **table.table(_FULL),
        **values.table("rope_scaling"),
    }
    sliding: RopeValues = {
        "rope_theta": values.number("rope_local_base_freq", _ROPE_BASE),
        **table.table(_SLIDING),
    }
    variants = [_with_kind(full, is_phi=False), _with_kind(sliding, is_phi=False)]
    if any(SpecValues(rope).number("partial_rotary_factor", 1.0) != 1.0 for rope in variants):
        raise UnsupportedSpecError("a rotary embedding of part of each head")
    return variants


_BY_KIND = {
    "gemma3": _gemma3_variants,
    "gemma4": _gemma4_variants,
    "gemma4_moe": _gemma4_variants,
    "olmo3": _olmo3_variants,
}


def _with_kind(rope: RopeValues, *, is_phi: bool) -> RopeValues:
    values = SpecValues(rope)
    kind = values.word("rope_type", values.word("type", "default"))
    if is_phi and kind in ("su", "yarn"):
        kind = "longrope"  # older configurations of Phi 3 call it so
    return {**rope, "rope_type": kind}


def stable_context(name: str, values: SpecValues, context: int) -> int | None:
    """How long a sequence may get before its angles would change; None if they never do."""
    limits = [stable_context_tokens(rope, context) for rope in _rope_variants(name, values)]
    return min((limit for limit in limits if limit is not None), default=None)
