"""How many tokens to guess in the next step. Pure Python; engine thread.

A guess pays if the tokens it is expected to bring are worth the longer step. Both sides are known: what steps cost by
their rows (`costs`) and how likely guesses are right (`acceptance`). Guessed tokens of all sequences compete
for the rows of one step: those that most likely survive come first, and of all numbers of them the one
is taken that brings most tokens per millisecond. All are looked at, as rows get dearer in steps.

A guess that costs nothing to make is judged by what came even when it is not used, so its chances are always known. One
by a draft model costs time. Where it does not pay, it is tried again now and then, ever more seldom.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from inference.speculation.acceptance import Acceptance, acceptance_of
from inference.speculation.costs import StepCosts

MIN_GAIN = 1.03  # below, what is expected is lost in what is not known exactly
TRY_TOKENS = 2
FIRST_WAIT = 32  # steps
LAST_WAIT = 512


@dataclass(frozen=True, slots=True)
class Offer:
    """What a proposer could guess for one sequence.

    Attributes:
        source: As in `base.Proposal`.
        num_tokens: Most tokens, at least 1.
        ms_per_token: What each takes to make; 0 if they are there already.
        begin_ms: What must be done before the first, such as reading what was said since.
    """

    source: str
    num_tokens: int
    ms_per_token: float = 0.0
    begin_ms: float = 0.0

    @property
    def is_free(self) -> bool:
        """Whether making the guess takes no time, so that it can be judged without being used."""
        return self.ms_per_token <= 0.0 and self.begin_ms <= 0.0


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The next token of one sequence's guess."""

    survival: float
    sequence: int
    making_ms: float


class Controller:
    """Chooses how much is guessed, for all sequences of a model.

    Attributes:
        is_paying: Whether guessing was worth it when something was last offered.
    """

    def __init__(self, costs: StepCosts, fixed: int | None = None) -> None:
        """Choose by `costs`, which others keep up to date, or always `fixed` tokens if there are so many."""
        self._costs = costs
        self._fixed = fixed
        self._acceptances: dict[str, Acceptance] = {}
        self._retries: dict[str, _Retry] = {}
        self.is_paying = False

    def choose(self, offers: Sequence[Offer | None]) -> list[int]:
        """Say how many tokens of each offer to use in the coming step.

        Args:
            offers: One for each sequence that decodes in it; None where nothing is offered.

        Returns:
            As many numbers, each 0 to the offer's.
        """
        if not any(offers):
            return [0] * len(offers)
        if self._fixed is not None:
            lengths = [min(self._fixed, offer.num_tokens) if offer else 0 for offer in offers]
            self.is_paying = any(lengths)
            return lengths
        lengths = self._best(offers)
        self.is_paying = any(lengths)
        self._try_again(offers, lengths)
        return lengths

    def observe(self, source: str, num_drafted: int, num_accepted: int) -> None:
        """Tell how a guess compares with what came, whether it was used or not.

        Args:
            source: Whose it was.
            num_drafted: Tokens that were compared; those behind a wrong one do not matter.
            num_accepted: How many were right before the first wrong one.
        """
        self._acceptance(source).observe(num_drafted, num_accepted)
        if source in self._retries:
            self._retries[source].judge(is_right=num_accepted >= num_drafted)

    def forget(self, sources: Collection[str]) -> None:
        """Begin anew with these: somebody else stands behind them now."""
        for source in sources:
            self._acceptances.pop(source, None)
            self._retries.pop(source, None)

    def rate(self, offer: Offer) -> float:
        """The most tokens per millisecond that one sequence alone may expect of a guess, of at least one token.

        Compare it with one token in `plain_ms`, or with other offers for the same sequence.
        """
        tokens, best = 1.0, 0.0
        making_ms = offer.begin_ms
        for num_tokens, survival in enumerate(self._survival(offer), start=1):
            tokens += survival
            making_ms += offer.ms_per_token
            best = max(best, tokens / (self._costs.ms(1 + num_tokens) + making_ms))
        return best

    def _survival(self, offer: Offer) -> list[float]:
        return self._acceptance(offer.source).survival(offer.num_tokens)

    def _acceptance(self, source: str) -> Acceptance:
        if source not in self._acceptances:
            self._acceptances[source] = acceptance_of(source)
        return self._acceptances[source]

    def _best(self, offers: Sequence[Offer | None]) -> list[int]:
        num_sequences = len(offers)
        tokens, making_ms = float(num_sequences), 0.0
        best_rate = MIN_GAIN * tokens / self._costs.ms(num_sequences)
        lengths, best = [0] * num_sequences, [0] * num_sequences
        for count, candidate in enumerate(self._candidates(offers), start=1):
            tokens += candidate.survival
            making_ms += candidate.making_ms
            lengths[candidate.sequence] += 1
            rate = tokens / (self._costs.ms(num_sequences + count) + making_ms)
            if rate > best_rate:
                best_rate, best = rate, list(lengths)
        return best

    def _candidates(self, offers: Sequence[Offer | None]) -> list[_Candidate]:
        """All tokens that could be guessed, the likeliest first; those of one sequence stay in order."""
        candidates = []
        for sequence, offer in enumerate(offers):
            if offer is None:
                continue
            making_ms = offer.begin_ms + offer.ms_per_token
            for survival in self._survival(offer):
                candidates.append(_Candidate(survival, sequence, making_ms))
                making_ms = offer.ms_per_token
        return sorted(candidates, key=lambda candidate: -candidate.survival)

    def _try_again(self, offers: Sequence[Offer | None], lengths: list[int]) -> None:
        """Add a short guess by a source that has not been heard for long."""
        costly = [(i, offer) for i, offer in enumerate(offers) if offer and not offer.is_free]
        for source in {offer.source for _, offer in costly}:
            retry = self._retries.setdefault(source, _Retry())
            places = [(i, offer) for i, offer in costly if offer.source == source]
            if any(lengths[i] for i, _ in places):
                retry.pay()
            elif retry.is_due():
                index, offer = places[0]
                lengths[index] = min(TRY_TOKENS, offer.num_tokens)
                self._acceptance(source).fade()


class _Retry:
    """When a source that does not pay is tried again: after ever longer waits, until it pays."""

    def __init__(self) -> None:
        self._wait = FIRST_WAIT
        self._num_idle = 0
        self._is_trying = False

    def pay(self) -> None:
        self._wait, self._num_idle, self._is_trying = FIRST_WAIT, 0, False

    def is_due(self) -> bool:
        """Count a step without the source, unless it is time for a try."""
        self._num_idle += 1
        if self._num_idle <= self._wait:
            return False
        self._wait, self._num_idle = min(2 * self._wait, LAST_WAIT), 0
        self._is_trying = True
        return True

    def judge(self, *, is_right: bool) -> None:
        """After a try that was right throughout, the next follows at once: its source may pay by now."""
        if self._is_trying and is_right:
            self._wait, self._num_idle = FIRST_WAIT, FIRST_WAIT
        self._is_trying = False
