"""Ways to verify guesses wrongly, each a fault that real programs had; and one that is right.

They are planted where the verifying loop asks for its choice: `Reply.sample` takes what they give as drawn by
the request's sampler, row by row, and all else is the program's own.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from inference.config import SamplingParams
from inference.sampling import Sampler
from tests.inference.guess_law import Law, filtered


class Verifier:
    """Chooses as the sampler does; those below do not."""

    def __init__(self, sampler: Sampler, params: SamplingParams) -> None:
        self.seed = sampler.seed
        self._sampler = sampler
        self._params = params
        self._chance = np.random.default_rng(sampler.seed)
        self._draft: tuple[int, ...] = ()
        self._rows: list[Tensor] = []

    def begin(self, draft: Sequence[int]) -> None:
        """A step begins that verifies these guesses."""
        self._draft, self._rows = tuple(draft), []

    def sample(self, row: Tensor) -> int:
        """What the loop takes as the choice of the model after one more token."""
        place = len(self._rows)
        self._rows.append(row)
        return self.choose(row, self._draft[place] if place < len(self._draft) else None)

    def choose(self, row: Tensor, guess: int | None) -> int:
        return self._sampler.sample(row)

    @property
    def _row_before(self) -> Tensor:
        return self._rows[max(0, len(self._rows) - 2)]

    def _draw(self, law: Law) -> int:
        return int(self._chance.choice(len(law), p=law / law.sum()))

    def _law_of(self, row: Tensor) -> Law:
        weights = np.exp(row.double().numpy() / self._params.temperature)
        return filtered(weights, self._params)


class RemainderVerifier(Verifier):
    """Right: after a wrong guess it draws once more, of what is left without the guess.

    That is the textbook's rule for a draft without chance: p(guess) for it, (1 - p(guess)) * p(x) /
    (1 - p(guess)) for each other.
    """

    def choose(self, row: Tensor, guess: int | None) -> int:
        token_id = self._sampler.sample(row)
        if guess is None or token_id == guess:
            return token_id
        law = self._law_of(row)
        law[guess] = 0.0
        return self._draw(law)


class AcceptsAll(Verifier):
    """Takes each guess without looking."""

    def choose(self, row: Tensor, guess: int | None) -> int:
        return self._sampler.sample(row) if guess is None else guess


class AcceptsTopK(Verifier):
    """Takes a guess that is among the three likeliest."""

    def choose(self, row: Tensor, guess: int | None) -> int:
        is_likely = guess is not None and guess in row.topk(3).indices
        return guess if guess is not None and is_likely else self._sampler.sample(row)


class DrawsTwice(Verifier):
    """After a wrong guess draws of all once more, the guess included: it has two chances."""

    def choose(self, row: Tensor, guess: int | None) -> int:
        token_id = self._sampler.sample(row)
        return token_id if guess is None or token_id == guess else self._draw(self._law_of(row))


class UnfilteredRemainder(RemainderVerifier):
    """What is left without the guess is taken of the model's logits as they are."""

    def _law_of(self, row: Tensor) -> Law:
        weights: Law = np.exp(row.double().numpy())
        return weights


class StaleAcceptance(Verifier):
    """Whether a guess is right is decided by what the row before said of it: a stale q."""

    def choose(self, row: Tensor, guess: int | None) -> int:
        if guess is None:
            return self._sampler.sample(row)
        law = self._law_of(row)
        if self._chance.random() < self._law_of(self._row_before)[guess]:
            return guess
        law[guess] = 0.0
        return self._draw(law) if law.any() else guess


class StaleRow(Verifier):
    """Looks at the row of the token before, from the second on."""

    def choose(self, row: Tensor, guess: int | None) -> int:
        return self._sampler.sample(self._row_before)


class StaleBonus(Verifier):
    """Draws the token after the last guess from that guess's own row."""

    def choose(self, row: Tensor, guess: int | None) -> int:
        return self._sampler.sample(self._row_before if guess is None else row)


class StaleHistory(Verifier):
    """Penalties learn of a step's tokens only when it is over."""

    def __init__(self, sampler: Sampler, params: SamplingParams) -> None:
        super().__init__(sampler, params)
        assert sampler._penalties is not None, "of a case with penalties"
        self._count = sampler._penalties.count
        self._late: list[int] = []
        sampler._penalties.count = self._late.append  # type: ignore[assignment, method-assign]  # the fault

    def begin(self, draft: Sequence[int]) -> None:
        super().begin(draft)
        for token_id in self._late:
            self._count(token_id)
        self._late.clear()
