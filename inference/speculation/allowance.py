"""What guesses may cost a reply, so that none becomes much slower by them. Pure Python; engine thread.

Whether a guess pays is known on average, and a reply of a few words is no average: two guesses that are wrong
can cost it a tenth of its time. So each reply has an account, in steps without guesses: a share of the steps that it
took is its own, every guess is paid from it, and every token that a guess brought is paid into it. Where guesses are
right they pay for themselves from the first one on; where they are wrong the share is all that is
lost, in whatever order they come. Of several replies in one step each pays for its own guesses: what brings most
tokens in all is still done, though one that does not guess waits for one that does.
"""

from collections.abc import Callable

from inference.request import RequestId
from inference.sequence import Sequence
from inference.speculation.reply_lengths import ReplyLengths

LOSS_SHARE = 0.02
"""Of the time of a reply, what guesses may lose it in all: less than anybody notices."""

MOST_IN_ADVANCE = 100
"""Tokens to come that count: two steps, for the first guess of a reply; if it is right it pays for the next."""


class Allowances:
    """The accounts of all running replies, in steps without guesses."""

    def __init__(self) -> None:
        """No reply runs, and no reply has ended yet."""
        self._lengths = ReplyLengths()
        self._gained: dict[RequestId, float] = {}

    def tokens_left(self, sequence: Sequence) -> float:
        """How many tokens may be counted on until a reply ends."""
        return self._lengths.left(sequence.num_replied)

    def steps(self, sequence: Sequence, *, in_advance: bool = False) -> float:
        """How many steps a reply may spend now; below 0 if guesses brought less than they cost.

        Args:
            sequence: Of the reply.
            in_advance: Count the tokens that are still to come, as far as they may be counted on, but not more
                than `MOST_IN_ADVANCE`. A reply that ends early may then lose more than its share, so it is
                for guesses that are known to pay.
        """
        num_tokens: float = sequence.num_replied
        if in_advance:
            num_tokens += min(self.tokens_left(sequence), MOST_IN_ADVANCE)
        return self._gained.get(sequence.request_id, 0.0) + LOSS_SHARE * num_tokens

    def earn(self, sequence: Sequence, num_steps: float) -> None:
        """Guesses saved a reply so many steps; less than 0 if they cost more."""
        request_id = sequence.request_id
        self._gained[request_id] = self._gained.get(request_id, 0.0) + num_steps

    def end(self, sequence: Sequence) -> None:
        """A reply has ended."""
        self._lengths.note(sequence.num_replied)
        self._gained.pop(sequence.request_id, None)


def most_that_cost(limit: float, most: int, cost: Callable[[int], float]) -> int:
    """The most guesses, 0 to `most` (at least 1), whose `cost`, which never falls with their number, is within a limit."""
    if cost(most) <= limit:
        return most
    count = 0
    while cost(count + 1) <= limit:
        count += 1
    return count
