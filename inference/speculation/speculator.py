"""Guesses ahead for all running replies of an engine: who guesses, how much, and what came of it.

    plan      before a step: each decoding sequence gets a draft, as long as it pays; mostly none
    verified  after it, per reply: what the model itself chose
    timed     after it: how long so many rows took, which decides the next drafts

Nothing here can change a reply: a draft only says which rows are computed beside the one that must be.
Engine thread only.
"""

import time
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

from inference.config import MAX_DRAFT_TOKENS, GuessName
from inference.metrics import GuessStats
from inference.request import RequestId
from inference.sequence import Sequence
from inference.speculation.allowance import Allowances, most_that_cost
from inference.speculation.base import Draft, Proposal
from inference.speculation.controller import MIN_GAIN, Controller, Offer
from inference.speculation.costs import StepCosts
from inference.speculation.draft_reading import DraftReading
from inference.speculation.draft_speed import DraftSpeed
from inference.speculation.history import History
from inference.speculation.sureness import SOURCES, Sureness

USUAL_SHARE = 0.35
"""Of a step of the target, what a token of a draft model takes; until it is known."""

MOST_WHILE_SURE = 8
"""Tokens that a draft model may guess in one step, for all sequences together, as long as it is sure of them."""

WORTH_FACTOR = 1.6
"""The next guess is not always right even if those before are, and a token is worth the less the faster replies
are already. Found by trying, with 0.5B guessing for 1.5B; from 1.4 to 1.8 it hardly matters."""

MOST_SURE = 0.9


class Speculator:
    """All that guesses for one engine.

    Attributes:
        draft: The second model; None without one.
        is_calibrated: Whether steps were measured before the first reply.
    """

    def __init__(
        self,
        costs: StepCosts,
        *,
        guess: GuessName = "auto",
        draft_tokens: int | None = None,
        stop_ids: Collection[int] = (),
    ) -> None:
        """Begin without a draft model.

        Args:
            costs: What steps take.
            guess: Who may guess.
            draft_tokens: Guess so many each time; None chooses.
            stop_ids: End-of-turn ids: after one nothing is guessed.
        """
        self.draft: Draft | None = None
        self.is_calibrated = False
        self._costs = costs
        self._guess = guess
        self._is_fixed = draft_tokens is not None
        self._controller = Controller(costs, fixed=draft_tokens)
        self._stop_ids = frozenset(stop_ids)
        self._histories: dict[RequestId, History] = {}
        self._asked: dict[RequestId, tuple[Sequence, int]] = {}  # of the draft model, for this step
        self._by_model: dict[
            RequestId, str
        ] = {}  # whose guesses of this step it made: their source
        self._sureness: dict[RequestId, Sureness] = {}
        self._asked_ms = 0.0
        self._num_new: list[int] = []  # tokens that this step brought, by sequence
        self._draft_speeds = _unseen_speeds()
        self._allowances = Allowances()
        self._charges: dict[
            RequestId, float
        ] = {}  # steps that the guesses of this step cost, by whose they are
        self._reading = DraftReading(self._allowances)
        self._by_position = [[0, 0] for _ in range(MAX_DRAFT_TOKENS)]

    # ------------------------------------------------------------------ who guesses

    @property
    def is_on(self) -> bool:
        """Whether anybody may guess."""
        return self._guess != "off"

    def calibrate(self, measured: Mapping[int, float]) -> None:
        """Take milliseconds of steps by their rows."""
        self._costs.calibrate(measured)
        self.is_calibrated = True

    def set_guess(self, guess: GuessName) -> None:
        """Say who may guess from the next step on."""
        self._guess = guess

    def use(self, draft: Draft | None) -> Draft | None:
        """Take another draft model; the one before, which nobody uses any more."""
        before, self.draft = self.draft, draft
        self._draft_speeds = _unseen_speeds()
        self._controller.forget(SOURCES)
        self._reading.reset()
        return before

    def end(self, sequence: Sequence, *, keep: bool, on_disk: bool) -> None:
        """A reply has ended; the arguments are those of `Draft.end`."""
        self._allowances.end(sequence)
        self._histories.pop(sequence.request_id, None)
        self._sureness.pop(sequence.request_id, None)
        if self._reading.end(sequence) and self.draft is not None:
            self.draft.end(sequence, keep=keep, on_disk=on_disk)

    # ------------------------------------------------------------------ a step

    def plan(self, decoding: SequenceOf[tuple[Sequence, int]]) -> None:
        """Give sequences their drafts for the step to come.

        Args:
            decoding: Those with one token pending, and the most tokens that may be guessed for each.
        """
        self._asked.clear()
        self._charges.clear()
        self._by_model.clear()
        self._num_new.clear()
        for sequence, _ in decoding:
            sequence.draft = ()
        if not self.is_on or not decoding:
            return
        texts = [self._propose(sequence, room) for sequence, room in decoding]
        offers = [
            self._best_offer(sequence, text, min(room, MAX_DRAFT_TOKENS), len(decoding))
            for (sequence, room), text in zip(decoding, texts, strict=True)
        ]
        lengths = self._controller.choose(offers)
        for (sequence, _), text, offer, length in zip(
            decoding, texts, offers, lengths, strict=True
        ):
            if offer is not None and offer.source in SOURCES:
                most = max(length, MOST_WHILE_SURE // len(decoding)) if length else 0
                if self._is_fixed:
                    most = length
                self._asked[sequence.request_id] = (sequence, min(most, offer.num_tokens))
            elif text is not None:
                sequence.draft = text.token_ids[:length]
        self._ask_draft()
        if not self._is_ordered:
            self._charge([sequence for sequence, _ in decoding], offers)

    def verified(
        self,
        sequence: Sequence,
        draft: SequenceOf[int],
        emitted: SequenceOf[int],
        sureness: Callable[[], float],
    ) -> None:
        """Tell what a step brought one reply.

        Args:
            sequence: Its tokens, the new ones included.
            draft: What was guessed and computed, perhaps nothing.
            emitted: What the model chose.
            sureness: The probability of the likeliest token, on average where these were chosen; asked for
                if there is a draft model.
        """
        history = self._histories.get(sequence.request_id)
        if history is not None:
            history.compare(emitted, self._controller.observe)
        self._num_new.append(len(emitted))
        if self.draft is not None and self.is_on:
            self._sureness_of(sequence).note(sureness(), len(emitted))
        if not draft:
            return
        if sequence.request_id in self._charges:
            self._allowances.earn(sequence, len(emitted) - 1 - self._charges[sequence.request_id])
        right = [guess == chosen for guess, chosen in zip(draft, emitted, strict=False)]
        for count, is_right in zip(self._by_position, right, strict=False):
            count[0] += 1
            count[1] += is_right
        source = self._by_model.get(sequence.request_id)
        if source is not None:
            self._controller.observe(source, len(right), sum(right))

    def timed(self, num_rows: int, ms: float) -> None:
        """Tell how long a step took that only decoded, with so many rows, guesses included."""
        self._costs.record(num_rows, ms)
        if not (self._by_model and self._num_new):
            return
        num_tokens = sum(self._num_new) / len(self._num_new)  # all waited, so all count
        plain_ms = self.plain_ms(len(self._num_new))
        for source in set(self._by_model.values()):
            self._draft_speeds[source].record(num_tokens, ms + self._asked_ms, plain_ms)

    # ------------------------------------------------------------------ numbers

    def plain_ms(self, num_sequences: int) -> float:
        """What a step takes that decodes so many sequences and guesses nothing."""
        return self._costs.ms(max(1, num_sequences))

    def guesses_ms(self, num_sequences: int, num_guesses: int) -> float:
        """What so many guesses add to a step."""
        return self._costs.ms(max(1, num_sequences) + num_guesses) - self.plain_ms(num_sequences)

    def stats(self) -> GuessStats:
        """What came of it so far."""
        draft = self.draft
        return GuessStats(
            is_paying=self._controller.is_paying,
            by_position=tuple(
                (verified, right) for verified, right in self._by_position if verified
            ),
            draft_model="" if draft is None else draft.info.name,
            draft_bytes=0 if draft is None else draft.memory_bytes,
        )

    # ------------------------------------------------------------------ inside

    def _propose(self, sequence: Sequence, room: int) -> Proposal | None:
        if self._guess == "draft" or room < 1:
            return None
        history = self._histories.get(sequence.request_id)
        if history is None:
            history = History(sequence.token_ids, self._stop_ids)
            self._histories[sequence.request_id] = history
        return history.propose(sequence.token_ids, min(room, MAX_DRAFT_TOKENS))

    def _best_offer(
        self, sequence: Sequence, text: Proposal | None, room: int, num_sequences: int
    ) -> Offer | None:
        by_text = None if text is None else Offer(text.source, len(text.token_ids))
        by_text = self._within_allowance(sequence, by_text, num_sequences)
        by_model = self._offer_of_model(sequence, room, num_sequences)
        if by_text is None or by_model is None:
            return by_text or by_model
        text_times, model_times = self._times(by_text), self._times(by_model)
        if model_times < MIN_GAIN:
            return by_text if text_times >= MIN_GAIN else by_model
        speed = self._draft_speeds[by_model.source]
        if speed.times(model_times) >= text_times:
            return by_model
        speed.pass_by()
        return by_text

    def _offer_of_model(self, sequence: Sequence, room: int, num_sequences: int) -> Offer | None:
        if self.draft is None or self._guess == "ngram" or room < 1:
            return None
        usual = Offer(self._source_of(sequence), room, ms_per_token=self._draft_token_ms())
        offer = self._within_allowance(sequence, usual, num_sequences)
        if offer is None:
            return None  # and nothing is read: it would be out of date when it may guess
        read_ms = self._reading.left_ms(
            self.draft,
            sequence,
            plain_ms=self._costs.plain_ms,
            gain=lambda: self._gain(sequence, usual) if self._times(offer) >= MIN_GAIN else 0.0,
            num_sequences=num_sequences,
            is_ordered=self._is_ordered,
        )
        if self._reading.is_reading(sequence):
            self._asked[sequence.request_id] = (sequence, 1)
        if not read_ms:
            return None if read_ms is None else offer
        return self._within_allowance(sequence, replace(usual, begin_ms=read_ms), num_sequences)

    def _gain(self, sequence: Sequence, usual: Offer) -> float:
        """The share of its steps that the draft model should save a reply that goes on as it was so far."""
        gain = 0.0
        for source, share in self._sureness_of(sequence).shares.items():
            expected = self._times(replace(usual, source=source))
            gain += share * max(0.0, self._draft_speeds[source].times(expected) - 1.0)
        return gain

    def _within_allowance(
        self, sequence: Sequence, offer: Offer | None, num_sequences: int
    ) -> Offer | None:
        """As much of an offer as the reply can bear if all is wrong; what was ordered need not pay.

        A guess makes all replies of the step slower, so it counts as often as there are. A draft model that
        is known to pay guesses on what the reply will earn, as each of its guesses is dear.
        """
        if offer is None or self._is_ordered:
            return offer
        plain_ms = self.plain_ms(num_sequences)

        def cost_ms(count: int) -> float:
            made_ms = offer.begin_ms + count * offer.ms_per_token
            return made_ms + self._costs.ms(num_sequences + count) - plain_ms

        in_advance = not offer.is_free and self._draft_speeds[offer.source].is_proven
        num_steps = self._allowances.steps(sequence, in_advance=in_advance) / num_sequences
        limit_ms = num_steps * plain_ms
        num_tokens = most_that_cost(limit_ms, offer.num_tokens, cost_ms)
        return replace(offer, num_tokens=num_tokens) if num_tokens else None

    def _charge(self, sequences: SequenceOf[Sequence], offers: SequenceOf[Offer | None]) -> None:
        """Note what the guesses of this step cost; each reply pays for its own, once they are computed."""
        num_sequences = len(sequences)
        num_guesses = sum(len(sequence.draft) for sequence in sequences)
        if not num_guesses:
            return
        guess_ms = self.guesses_ms(num_sequences, num_guesses) / num_guesses
        for sequence, offer in zip(sequences, offers, strict=True):
            took_ms = len(sequence.draft) * guess_ms
            if sequence.request_id in self._by_model:
                took_ms += len(sequence.draft) * self._draft_token_ms()
                took_ms += 0.0 if offer is None else offer.begin_ms
            num_steps = num_sequences * took_ms / self.plain_ms(num_sequences)
            self._charges[sequence.request_id] = num_steps

    @property
    def _is_ordered(self) -> bool:
        """Whether somebody said who is to guess, or how much, so that it need not pay."""
        return self._is_fixed or self._guess != "auto"

    def _draft_token_ms(self) -> float:
        known = None if self.draft is None else self.draft.token_ms
        return known or self._costs.plain_ms * USUAL_SHARE

    def _source_of(self, sequence: Sequence) -> str:
        return self._sureness_of(sequence).source

    def _sureness_of(self, sequence: Sequence) -> Sureness:
        return self._sureness.setdefault(sequence.request_id, Sureness())

    def _times(self, offer: Offer) -> float:
        """How many times as fast as without guessing an offer should be."""
        return self._controller.rate(offer) * self._costs.plain_ms

    def _least_sure(self) -> float:
        """From which probability of all guesses before on a further one of a draft model pays.

        It takes time to make and to verify, and brings a token if it and all before it are right; a
        token is worth somewhat less than a plain step takes, or nothing would be guessed.
        """
        assert self.draft is not None, "somebody is asked"
        row_ms = (self._costs.ms(5) - self._costs.ms(1)) / 4
        took_ms = self._draft_token_ms() + row_ms
        return min(MOST_SURE, WORTH_FACTOR * took_ms / self._costs.plain_ms)

    def _ask_draft(self) -> None:
        wanted = [(sequence, length) for sequence, length in self._asked.values() if length]
        if not wanted or self.draft is None:
            return
        began = time.perf_counter()
        drafts = self.draft.propose(wanted, 0.0 if self._is_fixed else self._least_sure())
        self._asked_ms = (time.perf_counter() - began) * 1000
        for (sequence, _), draft in zip(wanted, drafts, strict=True):
            if draft and not sequence.draft:
                sequence.draft = draft
                self._by_model[sequence.request_id] = self._source_of(sequence)


def _unseen_speeds() -> dict[str, DraftSpeed]:
    """Those of a draft model of which nothing was seen, by source."""
    return {source: DraftSpeed() for source in SOURCES}
