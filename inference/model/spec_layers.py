"""Layers that differ in more than their window: Gemma 4. Pure Python.

Full layers have heads of a size of their own, and may have another number of key/value heads, whose values
are the key's product then. The last layers attend to what the last layer of their kind before them stored,
and may have an MLP twice as wide.
"""

from typing import NamedTuple

from inference.model.size_limits import MAX_HEAD_SIZE
from inference.model.spec import LayerSpec, UnsupportedSpecError
from inference.model.spec_family import Family
from inference.model.spec_values import SpecValues


class Heads(NamedTuple):
    """Of a layer: KH and D."""

    num_kv_heads: int
    head_dim: int


class HeadsByKind(NamedTuple):
    """Those of layers that see everything, and of those that look back over a window."""

    full: Heads
    sliding: Heads

    def of(self, window: int | None) -> Heads:
        """Those of a layer."""
        return self.full if window is None else self.sliding


def heads_by_kind(
    family: Family, values: SpecValues, windows: list[int | None], usual: Heads
) -> HeadsByKind:
    """The heads of both kinds of layers.

    Args:
        family: Of the model.
        values: Its configuration.
        windows: Each layer's.
        usual: Heads of all layers that have none of their own.

    Raises:
        UnsupportedSpecError: What it says cannot be.
    """
    if family.layer_sizes == "alike":
        return HeadsByKind(usual, usual)
    if values.has("per_layer_config"):
        return _listed_heads(values, windows, usual)
    num_kv_heads = usual.num_kv_heads
    if values.flag("attention_k_eq_v", False):
        num_kv_heads = values.integer("num_global_key_value_heads", num_kv_heads)
    return HeadsByKind(_checked(Heads(num_kv_heads, values.integer("global_head_dim"))), usual)


def layer_specs(
    family: Family,
    values: SpecValues,
    windows: list[int | None],
    rope_indexes: list[int],
    heads: HeadsByKind,
) -> tuple[LayerSpec, ...]:
    """Each layer.

    Args:
        family: Of the model.
        values: Its configuration.
        windows: Each layer's.
        rope_indexes: The same.
        heads: From `heads_by_kind`.

    Raises:
        UnsupportedSpecError: What it says cannot be.
    """
    plain = zip(windows, rope_indexes, strict=True)
    if family.layer_sizes == "alike":
        return tuple(LayerSpec(*layer) for layer in plain)
    sources = _sources(windows, values.count("num_kv_shared_layers"))
    mlp_size = None if family.has_experts else values.integer("intermediate_size")
    is_wider = values.flag("use_double_wide_mlp", False)
    if is_wider and family.has_experts:
        raise UnsupportedSpecError("wider layers beside experts")
    value_is_key = values.flag("attention_k_eq_v", False)
    return tuple(
        LayerSpec(
            window,
            rope_index,
            *heads.of(window),
            mlp_size=mlp_size and mlp_size * (1 + (is_wider and source is not None)),
            kv_layer=source,
            value_is_key=value_is_key and window is None and source is None,
        )
        for (window, rope_index), source in zip(plain, sources, strict=True)
    )


def _listed_heads(values: SpecValues, windows: list[int | None], usual: Heads) -> HeadsByKind:
    """Releases of transformers since 2026 list what layers have of their own."""
    listed = values.table("per_layer_config")
    if not all(key.isdecimal() and len(key) < 9 for key in listed):
        raise UnsupportedSpecError("a list of layers by other names than numbers")
    if any(int(key) >= len(windows) for key in listed):
        raise UnsupportedSpecError("a list of layers that there are not")
    by_index = SpecValues({str(int(key)): own for key, own in listed.items()})
    found: dict[bool, set[Heads]] = {True: set(), False: set()}
    for index, window in enumerate(windows):
        own = SpecValues(by_index.table(str(index)))
        heads = Heads(
            own.integer("num_key_value_heads", usual.num_kv_heads),
            own.integer("head_dim", usual.head_dim),
        )
        found[window is None].add(_checked(heads))
    if any(len(kinds) > 1 for kinds in found.values()):
        raise UnsupportedSpecError("layers of one kind with other heads")
    full, sliding = (next(iter(found[is_full]), usual) for is_full in (True, False))
    return HeadsByKind(full, sliding)


def _checked(heads: Heads) -> Heads:
    if heads.head_dim % 2 or heads.head_dim > MAX_HEAD_SIZE:
        raise UnsupportedSpecError(f"heads of {heads.head_dim} numbers")
    return heads


def _sources(windows: list[int | None], num_shared: int) -> list[int | None]:
    """For each layer, the earlier one whose keys and values it attends to; None are its own."""
    num_own = len(windows) - num_shared
    if num_own < 1:
        raise UnsupportedSpecError(f"{num_shared} of {len(windows)} layers without keys")
    last_of_kind = {window: index for index, window in enumerate(windows[:num_own])}
    if set(windows) - set(last_of_kind):
        raise UnsupportedSpecError("layers that share keys of no layer")
    return [None] * num_own + [last_of_kind[window] for window in windows[num_own:]]
