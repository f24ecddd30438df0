"""What a draft model reads of a chat before it can guess. Pure Python; engine thread.

A draft model that was not asked for a while lacks part of the chat, or all of it. To read that takes time, which
is lost if it then guesses badly or the reply ends soon. It reads where the reply took longer than that already and
what is left of it will surely save more. Else it is a try, where the reply can bear the loss: if it should save
as much as it takes, and now and then if not.
"""

from collections.abc import Callable

from inference.request import RequestId
from inference.sequence import Sequence
from inference.speculation.allowance import Allowances
from inference.speculation.base import Draft

LEAST_LAG = 16
"""Up to so many tokens a draft model reads beside its first guess; their time counts as part of the guess."""

READ_SHARE = 0.1
"""Of a step of the target, what a token takes that a draft model only reads; until it is known."""

WORTH_READING = 2.0
"""How many times what it takes a draft model to read what it lacks must be saved by the tokens that may be
counted on: neither is known well, and a reply that is slower is worse than one that could be faster."""

WORTH_WAITING = 3.0
"""A reply must have taken so many times as long as reading takes before it is begun."""

TRY_AGAIN = 8
"""In one of so many replies that can bear it there is a try although it should not pay: by now it may."""


class DraftReading:
    """Which running replies the draft model knows, and which it reads."""

    def __init__(self, allowances: Allowances) -> None:
        """It knows none; `allowances` says how long replies will be and what they may lose."""
        self._allowances = allowances
        self._begun: set[RequestId] = set()
        self._reading: set[RequestId] = set()
        self._passed_by: set[RequestId] = set()  # no try, as guesses do not pay
        self._num_passed_by = 0

    def reset(self) -> None:
        """There is another draft model, or none."""
        for known in (self._begun, self._reading, self._passed_by):
            known.clear()
        self._num_passed_by = 0

    def end(self, sequence: Sequence) -> bool:
        """A reply has ended; whether the draft model was told of its beginning."""
        is_begun = sequence.request_id in self._begun
        self._begun.discard(sequence.request_id)
        self._reading.discard(sequence.request_id)
        self._passed_by.discard(sequence.request_id)
        return is_begun

    def is_reading(self, sequence: Sequence) -> bool:
        """Whether the draft model reads this reply's chat on, in this step."""
        return sequence.request_id in self._reading

    def left_ms(
        self,
        draft: Draft,
        sequence: Sequence,
        *,
        plain_ms: float,
        gain: Callable[[], float],
        num_sequences: int,
        is_ordered: bool,
    ) -> float | None:
        """What is to be read of a sequence beside the first guess, in milliseconds.

        Args:
            draft: The model.
            sequence: That of a running reply.
            plain_ms: What a step of it takes without guesses.
            gain: Gives the share of such a step that guesses should save per token; 0 where they do not pay.
            num_sequences: How many replies run beside each other: all wait while it reads.
            is_ordered: Whether it is to read whatever that brings.

        Returns:
            None if that is too much to guess at once. Then it may be read from now on, see `is_reading`.
        """
        request_id = sequence.request_id
        if request_id not in self._begun:
            draft.begin(sequence)
            self._begun.add(request_id)
        lag = draft.lag(sequence)
        left_ms = max(0, lag - 1) * (draft.read_ms_per_token or plain_ms * READ_SHARE)
        if lag <= LEAST_LAG:
            self._reading.discard(request_id)
            return left_ms
        if request_id not in self._reading:
            num_steps = num_sequences * left_ms / plain_ms
            if is_ordered or self._is_worth_it(sequence, num_steps, gain):
                self._reading.add(request_id)
            elif self._is_to_be_tried(sequence, num_steps, gain):
                self._allowances.earn(sequence, -num_steps)
                self._reading.add(request_id)
        return None

    def _is_to_be_tried(
        self, sequence: Sequence, num_steps: float, gain: Callable[[], float]
    ) -> bool:
        """Whether a reply can bear the loss, and should win or has the turn of one that will probably lose."""
        if self._allowances.steps(sequence) < num_steps:
            return False
        if gain() * self._allowances.tokens_left(sequence) >= num_steps:
            return True
        if sequence.request_id in self._passed_by:
            return False
        self._passed_by.add(sequence.request_id)
        self._num_passed_by += 1
        return self._num_passed_by % TRY_AGAIN == 0

    def _is_worth_it(self, sequence: Sequence, num_steps: float, gain: Callable[[], float]) -> bool:
        """Whether what is left of a reply will surely save more than it takes to read, in steps.

        How long it will be nobody knows: one that ends against all expectation has lost a quarter of its time at
        most if it took three times as long as reading takes before (as who buys skis once the rent has cost
        more than that).
        """
        if sequence.num_replied < WORTH_WAITING * num_steps:
            return False
        return gain() * self._allowances.tokens_left(sequence) >= WORTH_READING * num_steps
