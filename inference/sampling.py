"""From logits to the next token of one request. Owned by the engine, on its thread.

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

import torch
from torch import Tensor

from inference.config import MAX_SEED, SamplingParams
from inference.errors import ComputeError, InvalidRequestError

MIN_TEMPERATURE = 1e-6
"""Below it, dividing would underflow; the draw is the argmax up to ties long before."""

FIRST_CANDIDATES = 1024
"""How many of the likeliest are looked at before a whole vocabulary is sorted for top-p."""


class Sampler:
    """Chooses the tokens of one request and remembers them for its penalties.

    One uniform number per token decides, drawn from a generator of this request alone, on the CPU.
    So a fixed seed repeats, whatever else is in the batch and whichever filters are on. Python's
    generator is used because its sequence is promised to stay the same between versions and takes
    all 63 bits of the seed; torch promises neither.

    Attributes:
        seed: The one in use: as given, or drawn from the system's entropy; None when greedy.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        vocab_size: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Prepare to sample after a prompt.

        Args:
            params: How to choose.
            prompt_token_ids: Seen by the repetition penalty only.
            vocab_size: V, length of the logits.
            device: Where the logits are.

        Raises:
            InvalidRequestError: A prompt token is not in the vocabulary.
        """
        self.seed: int | None = None
        self._params = params
        self._vocab_size = vocab_size
        self._random = random.Random()
        if not params.is_greedy:
            self.seed = secrets.randbelow(MAX_SEED + 1) if params.seed is None else params.seed
            self._random.seed(self.seed)
        self._penalties = _Penalties.of(params, prompt_token_ids, vocab_size, device)

    def sample(self, logits: Tensor) -> int:
        """Choose the next token and count it as part of the reply.

        Args:
            logits: (V,), float32, on the device given at the start; not changed.

        Raises:
            ComputeError: A logit is NaN or infinite.
        """
        assert logits.shape == (self._vocab_size,), f"{tuple(logits.shape)=}"
        _check_finite(logits)
        if self._penalties is not None:
            logits = self._penalties.apply(logits)
        token_id = int(logits.argmax()) if self._params.is_greedy else self._draw(logits)
        if self._penalties is not None:
            self._penalties.count(token_id)
        return token_id

    def _draw(self, logits: Tensor) -> int:
        token_ids, probs = candidates(logits, self._params)
        cumulative = probs.cumsum(0)
        # random() is at most 1 - 2**-53, so the point stays below the total even when rounded. The
        # first sum above it is thus there, and it grew at its token, which so has probability.
        point = cumulative[-1] * self._random.random()
        return int(token_ids[torch.searchsorted(cumulative, point, right=True)])


def candidates(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """What may be drawn, after temperature and all filters; never empty.

    Each filter keeps a beginning of the order by probability. So only tokens that can be in it are
    sorted, and min-p may be looked at before top-p as long as top-p counts what min-p drops.

    Args:
        logits: (V,), float32, any device, finite; not changed.
        params: With a temperature above 0.

    Returns:
        Token ids, (C,), int64, and their probabilities up to a common factor, (C,), float64, both on
        the CPU. Likeliest first, lower id first among equals; in order of ids if no filter is on.
    """
    temperature = max(params.temperature, MIN_TEMPERATURE)
    if 0 < params.top_k < len(logits):
        token_ids, weights = _ranked(logits, _likeliest(logits, params.top_k), temperature)
        token_ids, weights = token_ids[: params.top_k], weights[: params.top_k]
        return _cut(token_ids, weights, float(weights.sum()), params)
    logits = logits.cpu()
    rough = ((logits - logits.max()) / temperature).exp()
    if params.min_p == 0.0 and params.top_p == 1.0:
        return torch.arange(len(logits)), rough.double()
    total = float(rough.sum(dtype=torch.float64))
    # Twice the share asked for would be wrong, half of it is not: _cut is exact on what remains.
    chosen = rough >= params.min_p / 2 if params.min_p > 0 else _likeliest(logits, FIRST_CANDIDATES)
    token_ids, weights = _ranked(logits, chosen, temperature)
    if params.min_p == 0.0 and float(weights.sum()) < params.top_p * total:
        token_ids, weights = _ranked(logits, torch.ones_like(chosen), temperature)
    return _cut(token_ids, weights, total, params)


def _likeliest(logits: Tensor, count: int) -> Tensor:
    """Mask of some tokens that include the `count` highest and all equals of the lowest of those.

    The vocabulary is cut into more than `count` rows. The count-th highest of the rows' maxima is a
    bound that at least `count` tokens reach, each in its own row, and that few others do. This is
    several times faster than topk over the whole vocabulary.
    """
    if count >= len(logits):
        return torch.ones_like(logits, dtype=torch.bool)
    width = max(1, min(128, len(logits) // (4 * count)))
    rows = logits[: len(logits) // width * width].view(-1, width).amax(dim=1)
    return logits >= rows.topk(count, sorted=False).values.min()


def _ranked(logits: Tensor, chosen: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    # Ids and weights of the chosen tokens, likeliest first; the first has weight 1.
    token_ids = chosen.nonzero().flatten()
    values, order = logits[token_ids].cpu().double().sort(descending=True, stable=True)
    return token_ids.cpu()[order], ((values - values[0]) / temperature).exp()


def _cut(
    token_ids: Tensor, weights: Tensor, total: float, params: SamplingParams
) -> tuple[Tensor, Tensor]:
    # Top-p and min-p on ranked tokens; `total` is the weight of all tokens that top-p counts.
    keep = len(weights)
    if params.min_p > 0.0:
        keep = int((weights >= params.min_p).sum())
    if params.top_p < 1.0:
        # The first index where the sum reaches top_p is the last one that is needed for it.
        enough = torch.searchsorted(weights.cumsum(0), params.top_p * total)
        keep = min(keep, int(enough) + 1)
    return token_ids[:keep], weights[:keep]


def _check_finite(logits: Tensor) -> None:
    low, high = logits.aminmax()  # both are NaN if any logit is
    if not bool(low.isfinite() & high.isfinite()):
        raise ComputeError(
            "The model computed values that are not numbers.",
            hint="Its file may be damaged: download it again, or choose another model.",
        )


class _Penalties:
    """The tokens seen so far, and how much each lowers its logit. Costs nothing for all others."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        vocab_size: int,
        device: torch.device | str,
    ) -> None:
        seen = dict.fromkeys(prompt_token_ids)
        if not all(0 <= token_id < vocab_size for token_id in seen):
            raise InvalidRequestError(
                "prompt_token_ids", f"each id must be from 0 to {vocab_size - 1:,}."
            )
        self._params = params
        self._place_of = {token_id: place for place, token_id in enumerate(seen)}
        self._token_ids = torch.tensor(list(seen), dtype=torch.int64, device=device)
        self._counts = torch.zeros(len(seen), dtype=torch.float32, device=device)  # in the reply

    @classmethod
    def of(
        cls,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        vocab_size: int,
        device: torch.device | str,
    ) -> "_Penalties | None":
        """Penalties as asked for; None if they would change nothing."""
        off = (1.0, 0.0, 0.0)
        asked = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        return None if asked == off else cls(params, prompt_token_ids, vocab_size, device)

    def apply(self, logits: Tensor) -> Tensor:
        """Logits (V,), float32, after all penalties, finite; the argument is not changed."""
        params, seen = self._params, logits[self._token_ids]
        factor = params.repetition_penalty
        seen = torch.where(seen > 0, seen / factor, seen * factor)
        seen = seen - params.frequency_penalty * self._counts
        seen = seen - params.presence_penalty * (self._counts > 0)
        limit = torch.finfo(torch.float32).max
        return logits.index_copy(0, self._token_ids, seen.clamp(-limit, limit))

    def count(self, token_id: int) -> None:
        """Note a token of the reply."""
        place = self._place_of.setdefault(token_id, len(self._place_of))
        if place == len(self._token_ids):
            self._token_ids = torch.cat([self._token_ids, self._token_ids.new_tensor([token_id])])
            self._counts = torch.cat([self._counts, self._counts.new_zeros(1)])
        self._counts[place] += 1
