"""Rotary frequencies of each variant, from the parameters in a model's configuration. Pure Python.

The arithmetic is float32 in transformers' order (its `modeling_rope_utils`), because a token far back
turns by thousands of radians: frequencies that are off by a little are another model. Powers are taken in
double precision and rounded once; torch's own are that too but for a unit in the last place here and there.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from inference.model.spec import RopeSpec, UnsupportedSpecError
from inference.model.spec_values import SpecValues

_Floats = npt.NDArray[np.float32]


def make_rope(
    parameters: Mapping[str, object],
    *,
    head_dim: int,
    context_tokens: int,
    divisors: tuple[float, ...] | None = None,
) -> RopeSpec:
    """Work out one rotary embedding.

    Args:
        parameters: As transformers' `rope_parameters` of one kind of layer, "rope_type" in it.
        head_dim: D.
        context_tokens: What the model was made for.
        divisors: Divide the finished frequencies, (rotary_dim / 2): how GGUF stores Llama 3's scaling.

    Raises:
        UnsupportedSpecError: A variant, or values, that are not known here.
    """
    values = SpecValues(parameters)
    kind = values.word("rope_type", "default")
    variant = _VARIANTS.get(kind)
    if variant is None:
        raise UnsupportedSpecError(f"the rotary variant {kind!r:.60}")
    part = values.number("partial_rotary_factor", 1.0)
    size = head_dim if kind == "proportional" else int(head_dim * part)
    if not 0 < size <= head_dim or size % 2:
        raise UnsupportedSpecError(f"rotary embedding over {size} of {head_dim} numbers")
    if divisors is not None and len(divisors) != size // 2:
        raise UnsupportedSpecError("rotary factors of another length")
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    base = values.number("rope_theta")
    try:
        with np.errstate(all="ignore"):
            wavelengths = np.array([math.pow(base, e) for e in exponents.tolist()], np.float32)
            frequencies, factor = variant(values, wavelengths, context_tokens)
            if divisors is not None:
                frequencies /= np.array(divisors, dtype=np.float32)
    except (ZeroDivisionError, ValueError) as error:
        raise UnsupportedSpecError("rotary parameters that cannot be") from error
    if not (np.isfinite(frequencies).all() and math.isfinite(factor)):
        raise UnsupportedSpecError("rotary parameters that cannot be")
    return RopeSpec(tuple(frequencies.tolist()), factor)


def stable_context_tokens(parameters: Mapping[str, object], context_tokens: int) -> int | None:
    """How long a sequence may get before this variant would turn every token otherwise."""
    values = SpecValues(parameters)
    if values.word("rope_type", "default") != "longrope":
        return None
    return values.integer("original_max_position_embeddings", context_tokens)


def _default(values: SpecValues, wavelengths: _Floats, context: int) -> tuple[_Floats, float]:
    return np.float32(1.0) / wavelengths, 1.0


def _linear(values: SpecValues, wavelengths: _Floats, context: int) -> tuple[_Floats, float]:
    return np.float32(1.0) / wavelengths / np.float32(values.number("factor")), 1.0


def _llama3(values: SpecValues, wavelengths: _Floats, context: int) -> tuple[_Floats, float]:
    """Llama 3.1: slow frequencies are divided, fast ones stay, those between are mixed."""
    plain = np.float32(1.0) / wavelengths
    factor = np.float32(values.number("factor"))
    low, high = values.number("low_freq_factor"), values.number("high_freq_factor")
    if high <= low:
        raise UnsupportedSpecError("rotary parameters that cannot be")
    original = values.integer("original_max_position_embeddings", context)
    one = np.float32(1)  # torch divides a number by a tensor as number * (1 / tensor)
    turns = one / plain * np.float32(2 * math.pi)  # tokens of one whole turn
    slow, fast = original / low, original / high
    divided = np.where(turns > slow, plain / factor, plain)
    share = (one / turns * np.float32(original) - np.float32(low)) / np.float32(high - low)
    mixed = (one - share) * divided / factor + share * divided
    is_between = ~(turns < fast) & ~(turns > slow)
    return np.where(is_between, mixed, divided), 1.0


def _yarn(values: SpecValues, wavelengths: _Floats, context: int) -> tuple[_Floats, float]:
    """YaRN (arXiv:2309.00071): a ramp from the plain frequencies to the divided ones."""
    size = 2 * len(wavelengths)
    base, factor = values.number("rope_theta"), values.number("factor")
    original = values.integer("original_max_position_embeddings", context)
    fast, slow = values.number("beta_fast", 32.0), values.number("beta_slow", 1.0)

    def index_of(num_turns: float) -> float:
        """Which pair turns so often over the original context."""
        return size * math.log(original / (num_turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = index_of(fast), index_of(slow)
    if values.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001
    ramp = (np.arange(size // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = np.float32(1) - np.clip(ramp, 0, 1)
    plain = np.float32(1.0) / wavelengths
    divided = np.float32(1.0) / (np.float32(factor) * wavelengths)
    return divided * (np.float32(1) - keep) + plain * keep, _yarn_magnitude(values, factor)


def _yarn_magnitude(values: SpecValues, factor: float) -> float:
    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    given = values.optional_number("attention_factor")
    if given is not None:
        return given
    above, below = values.optional_number("mscale"), values.optional_number("mscale_all_dim")
    return magnitude(above) / magnitude(below) if above and below else magnitude(1.0)


def _longrope(values: SpecValues, wavelengths: _Floats, context: int) -> tuple[_Floats, float]:
    """LongRoPE of Phi: with the factors for short contexts; see `stable_context_tokens`."""
    factors = np.array(values.numbers("short_factor"), dtype=np.float32)
    if factors.shape != wavelengths.shape:
        raise UnsupportedSpecError("rotary factors of another length")
    original = values.integer("original_max_position_embeddings", context)
    attention_factor = values.optional_number("attention_factor")
    if attention_factor is None:
        stretch = values.optional_number("factor") or context / original
        attention_factor = (
            1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
        )
    return np.float32(1.0) / (factors * wavelengths), attention_factor


def _proportional(values: SpecValues, wavelengths: _Floats, context: int) -> tuple[_Floats, float]:
    """Gemma 4: the first pairs turn as they would if all did; the others stand still."""
    num_turned = int(values.number("partial_rotary_factor", 1.0) * 2 * len(wavelengths) // 2)
    frequencies = np.float32(1.0) / wavelengths / np.float32(values.number("factor", 1.0))
    frequencies[num_turned:] = 0.0
    return frequencies, 1.0


_VARIANTS: dict[str, Callable[[SpecValues, _Floats, int], tuple[_Floats, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}
