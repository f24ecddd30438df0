"""From logits to the next token of one request. Owned by the engine, on its thread.

All of it is done on the CPU, by our kernels in one call, or else by numpy: the operators are many and small, and
torch takes several times as long to begin one. Of a GPU's logits one row per token comes over.

Order: penalties, then argmax if greedy, else temperature, top-k, top-p, min-p, draw. This is the
order of transformers' `generate()`, where users' expectations come from: each filter sees the
distribution that temperature has shaped, renormalised over what the filters before it left.

Sources: repetition penalty: Keskar et al. 2019, "CTRL", section 4.1 (as everywhere, a negative
logit is multiplied). Presence and frequency penalties: as in OpenAI's API, over the reply alone.
Top-p: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration". Min-p: Nguyen et al.
2024, "Turning Up the Heat".
"""

import random
import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from inference.config import MAX_SEED, SamplingParams
from inference.errors import InvalidRequestError
from inference.kernels.structures import Filters
from inference.likeliest import Floats, Ids, check_finite, draw_by_kernels, likeliest

MIN_TEMPERATURE = 1e-6
"""Below it, dividing would underflow; the draw is the argmax up to ties long before."""

Doubles = npt.NDArray[np.float64]

FIRST_CANDIDATES = 1024
"""How many of the likeliest are looked at before a whole vocabulary is sorted for top-p."""


class Sampler:
    """Chooses the tokens of one request and remembers them for its penalties.

    One uniform number per token decides, drawn from a generator of this request alone, on the CPU.
    So a fixed seed repeats, whatever else is in the batch and whichever filters are on. Python's
    generator is used because its sequence is promised to stay the same between versions and takes
    all 63 bits of the seed; torch and numpy promise less.

    Attributes:
        seed: The one in use: as given, or drawn from the system's entropy; None when greedy.
    """

    def __init__(
        self, params: SamplingParams, prompt_token_ids: Sequence[int], vocab_size: int
    ) -> None:
        """Prepare to sample after a prompt.

        Args:
            params: How to choose.
            prompt_token_ids: Seen by the repetition penalty only.
            vocab_size: V, length of the logits.

        Raises:
            InvalidRequestError: A prompt token is not in the vocabulary.
        """
        self.seed: int | None = None
        self._params = params
        self._vocab_size = vocab_size
        self._random = random.Random()
        self._number: float | None = 0.0 if params.is_greedy else None  # of the token to come
        if not params.is_greedy:
            self.seed = secrets.randbelow(MAX_SEED + 1) if params.seed is None else params.seed
            self._random.seed(self.seed)
        self._penalties = _Penalties.of(params, prompt_token_ids, vocab_size)
        self._filters = _filters_of(params)

    def sample(self, logits: Tensor) -> int:
        """Choose the next token and count it as part of the reply.

        Args:
            logits: (V,), float32, on any device; not changed.

        Raises:
            ComputeError: A logit is NaN or infinite.
        """
        assert logits.shape == (self._vocab_size,), f"{tuple(logits.shape)=}"
        values: Floats = logits.cpu().numpy()
        if self._penalties is None:
            return self._choose(values)
        check_finite(values)
        token_id = self._choose(self._penalties.apply(values))
        self._penalties.count(token_id)
        return token_id

    def _choose(self, logits: Floats) -> int:
        if self._number is None:
            self._number = self._random.random()
        token_id = draw_by_kernels(logits, self._filters, self._number)
        if token_id is None:
            check_finite(logits)
            is_greedy = self._params.is_greedy
            token_id = (
                int(logits.argmax()) if is_greedy else draw(logits, self._params, self._number)
            )
        if not self._params.is_greedy:
            self._number = None
        return token_id


def _filters_of(params: SamplingParams) -> Filters:
    if params.is_greedy:
        return Filters(temperature=1.0, top_p=1.0, min_p=0.0, top_k=1)
    temperature = max(params.temperature, MIN_TEMPERATURE)
    return Filters(temperature, params.top_p, params.min_p, params.top_k)


def draw(logits: Floats, params: SamplingParams, number: float) -> int:
    """One of the `candidates`.

    Args:
        logits: (V,), finite; not changed.
        params: With a temperature above 0.
        number: Uniform in [0, 1).
    """
    token_ids, probs = candidates(logits, params)
    cumulative = probs.cumsum()
    # The number is at most 1 - 2**-53, so the point stays below the total even when rounded. The
    # first sum above it is thus there, and it grew at its token, which so has probability.
    point = cumulative[-1] * number
    return int(token_ids[cumulative.searchsorted(point, side="right")])


def candidates(logits: Floats, params: SamplingParams) -> tuple[Ids, Doubles]:
    """What may be drawn, after temperature and all filters; never empty.

    Each filter keeps a beginning of the order by probability. So only tokens that can be in it are
    sorted, and min-p may be looked at before top-p as long as top-p counts what min-p drops.

    Args:
        logits: (V,), finite; not changed.
        params: With a temperature above 0.

    Returns:
        Token ids, (C,), and their probabilities up to a common factor, (C,). Likeliest first, lower id
        first among equals; in order of ids if no filter is on.
    """
    temperature = max(params.temperature, MIN_TEMPERATURE)
    if 0 < params.top_k < len(logits):
        token_ids, weights = _ranked(logits, likeliest(logits, params.top_k), temperature)
        token_ids, weights = token_ids[: params.top_k], weights[: params.top_k]
        return _cut(token_ids, weights, float(weights.sum()), params)
    with np.errstate(over="ignore"):  # what becomes -inf has no probability
        rough = np.exp((logits - logits.max()) / np.float32(temperature))
    if params.min_p == 0.0 and params.top_p == 1.0:
        return np.arange(len(logits)), rough.astype(np.float64)
    # Twice the share asked for would be wrong, half of it is not: _cut is exact on what remains.
    if params.min_p > 0:
        chosen = np.flatnonzero(rough >= params.min_p / 2)
    else:
        chosen = likeliest(logits, FIRST_CANDIDATES)
    token_ids, weights = _ranked(logits, chosen, temperature)
    # Of those that are left out, the rough weights are good enough.
    rough[chosen] = 0.0
    total = float(weights.sum() + rough.sum(dtype=np.float64))
    if params.min_p == 0.0 and float(weights.sum()) < params.top_p * total:
        token_ids, weights = _ranked(logits, np.arange(len(logits)), temperature)
    return _cut(token_ids, weights, total, params)


def _ranked(logits: Floats, chosen: Ids, temperature: float) -> tuple[Ids, Doubles]:
    # Ids and weights of the chosen tokens, likeliest first; the first has weight 1.
    values = logits[chosen].astype(np.float64)
    order = np.argsort(-values, kind="stable")
    values = values[order]
    return chosen[order], np.exp((values - values[0]) / temperature)


def _cut(
    token_ids: Ids, weights: Doubles, total: float, params: SamplingParams
) -> tuple[Ids, Doubles]:
    # Top-p and min-p on ranked tokens; `total` is the weight of all tokens that top-p counts.
    keep = len(weights)
    if params.min_p > 0.0:
        keep = int(np.count_nonzero(weights >= params.min_p))
    if params.top_p < 1.0:
        # The first index where the sum reaches top_p is the last one that is needed for it.
        enough = weights.cumsum().searchsorted(params.top_p * total)
        keep = min(keep, int(enough) + 1)
    return token_ids[:keep], weights[:keep]


class _Penalties:
    """The tokens seen so far, and how much each lowers its logit. Costs nothing for all others."""

    def __init__(
        self, params: SamplingParams, prompt_token_ids: Sequence[int], vocab_size: int
    ) -> None:
        seen = dict.fromkeys(prompt_token_ids)
        if not all(0 <= token_id < vocab_size for token_id in seen):
            raise InvalidRequestError(
                "prompt_token_ids", f"each id must be from 0 to {vocab_size - 1:,}."
            )
        self._params = params
        self._place_of = {token_id: place for place, token_id in enumerate(seen)}
        self._token_ids = np.array(list(seen), dtype=np.int64)
        self._counts = np.zeros(len(seen), dtype=np.float32)  # in the reply

    @classmethod
    def of(
        cls, params: SamplingParams, prompt_token_ids: Sequence[int], vocab_size: int
    ) -> "_Penalties | None":
        """Penalties as asked for; None if they would change nothing."""
        off = (1.0, 0.0, 0.0)
        asked = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        return None if asked == off else cls(params, prompt_token_ids, vocab_size)

    def apply(self, logits: Floats) -> Floats:
        """Logits (V,) after all penalties, finite; the argument is not changed."""
        params, seen = self._params, logits[self._token_ids]
        factor = np.float32(params.repetition_penalty)
        limit = np.finfo(np.float32).max
        with np.errstate(over="ignore"):  # what becomes infinite is clipped
            lowered = np.where(seen > 0, seen / factor, seen * factor)
            lowered -= np.float32(params.frequency_penalty) * self._counts
            lowered -= np.float32(params.presence_penalty) * (self._counts > 0)
        changed = logits.copy()
        changed[self._token_ids] = lowered.clip(-limit, limit)
        return changed

    def count(self, token_id: int) -> None:
        """Note a token of the reply."""
        place = self._place_of.setdefault(token_id, len(self._place_of))
        if place == len(self._token_ids):
            self._token_ids = np.append(self._token_ids, token_id)
            self._counts = np.append(self._counts, np.float32(0))
        self._counts[place] += 1
