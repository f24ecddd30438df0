"""Guesses are judged by what came, also those that were never verified. Pure Python; engine thread."""

from dataclasses import dataclass

from inference.speculation.base import Proposal


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a guess compares with what came.

    Attributes:
        source: The proposal's.
        num_drafted: Tokens that were compared, at least 1: those behind a wrong one never are.
        num_accepted: Of these, how many were right; one less if the last was wrong.
    """

    source: str
    num_drafted: int
    num_accepted: int


class Shadow:
    """Compares one proposal with the tokens that come, whether it was used or not."""

    def __init__(self, proposal: Proposal) -> None:
        """Begin with what may come next."""
        self._proposal = proposal
        self._num_right = 0
        self.is_over = False

    def feed(self, token_id: int) -> Outcome | None:
        """Compare the next token.

        Returns:
            The outcome, once: with the first token that differs, or the last one that was guessed.
        """
        if self.is_over:
            return None
        is_right = self._proposal.token_ids[self._num_right] == token_id
        self._num_right += is_right
        if is_right and self._num_right < len(self._proposal.token_ids):
            return None
        return self._end(self._num_right + (not is_right))

    def end(self) -> Outcome | None:
        """Say what was found so far, once, as no more tokens come; None if that is nothing."""
        if self.is_over or not self._num_right:
            self.is_over = True
            return None
        return self._end(self._num_right)

    def _end(self, num_tested: int) -> Outcome:
        self.is_over = True
        return Outcome(self._proposal.source, num_tested, self._num_right)
