"""A target's sequence as a draft model has it. Pure Python; owned by the draft model.

    target.token_ids   c c c c c c c c c c          c = tokens of the reply and its prompt
    own.token_ids      c c c c c c c c              follows when a guess is wanted
    guesses                            g g g        what the draft model says comes next
    rows               ------- known ------ ahead

The rows of guesses lie behind `own.num_computed`, in slots that are written again if the guess was wrong.
If the target chose the guessed tokens, their rows are those of its tokens: then the number moves over them,
and nothing is computed twice.
"""

import math
from dataclasses import dataclass, field

from inference.sequence import Sequence


@dataclass(slots=True, eq=False)
class Mirror:
    """What a draft model knows of one sequence.

    Attributes:
        target: The sequence of the model that it guesses for; never changed here.
        num_known: Rows of the target's tokens that are there or, while it does not run, may be found again.
        own: Of the draft model's scheduler; None before it was wanted, and after it was put down.
        guesses: Tokens after `own.token_ids`, each the likeliest after those before.
        probabilities: Of each guess, as the draft model sees it.
        num_ahead: Of the guesses, with rows.
        is_over: Whether the last guess, right or not by now, ends the turn.
        is_lost: Whether it cannot follow any more.
        is_forgotten: Whether nothing of it may be kept.
    """

    target: Sequence
    num_known: int = 0
    own: Sequence | None = None
    guesses: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    num_ahead: int = 0
    is_over: bool = False
    is_lost: bool = False
    is_forgotten: bool = False

    @property
    def lag(self) -> int:
        """Tokens of the target that have no rows yet, as far as known."""
        first = self.num_known
        ahead = self.guesses[: self.num_ahead]
        chosen = self.target.token_ids[first : first + len(ahead)]
        num_right = 0
        for guess, token_id in zip(ahead, chosen, strict=False):
            if guess != token_id:
                break
            num_right += 1
        return len(self.target.token_ids) - first - num_right

    @property
    def is_ready(self) -> bool:
        """Whether all tokens that it knows of have rows, so that it can guess."""
        return self.own is not None and self.own.num_pending == 0

    @property
    def sureness(self) -> float:
        """The probability of all guesses together, as the draft model sees it."""
        return math.prod(self.probabilities)

    def follow(self) -> None:
        """Take over what the target has chosen since; guesses that came true keep their rows."""
        own = self.own
        assert own is not None, "who follows has a sequence"
        for token_id in self.target.token_ids[len(own.token_ids) :]:
            own.append(token_id)
            if not self.guesses or self.guesses[0] != token_id:
                self.drop_guesses()
                continue
            del self.guesses[0], self.probabilities[0]
            if self.num_ahead > 0:
                self.num_ahead -= 1
                own.num_computed += 1
                self.num_known = own.num_computed

    def note_next(self, token_id: int, probability: float, *, is_end: bool) -> None:
        """Take a guess that comes after all those before, which have rows now.

        The end of a turn is a guess like others: who says so at each token has to be found wrong.
        """
        self.num_ahead = len(self.guesses)
        self.is_over = is_end
        self.guesses.append(token_id)
        self.probabilities.append(probability)

    def drop_guesses(self) -> None:
        """Forget what was guessed."""
        self.guesses.clear()
        self.probabilities.clear()
        self.num_ahead = 0
        self.is_over = False

    def rest(self) -> None:
        """Have nothing pending, so that nothing is computed for it until a guess is wanted."""
        if self.own is not None:
            del self.own.token_ids[self.own.num_computed :]
