"""Guesses that a test decides: right ones, wrong ones, any, in place of those that proposers make."""

from collections.abc import Callable, Sequence

from inference.engine import Engine
from inference.engine_loading import EngineParts
from inference.sequence import Sequence as TokenSequence
from inference.speculation.speculator import Speculator

Guesser = Callable[[TokenSequence, int], Sequence[int]]
"""A sequence and the most tokens that may be guessed; gives the guess, of any length."""


class PlannedSpeculator:
    """Stands for an engine's speculator; what is beside guessing goes to that.

    Attributes:
        seen: Of each reply's steps, in order: what was guessed and computed, and what was chosen.
    """

    def __init__(self, inner: Speculator, guess: Guesser) -> None:
        self._inner = inner
        self._guess = guess
        self.seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def plan(self, decoding: Sequence[tuple[TokenSequence, int]]) -> None:
        for sequence, room in decoding:
            sequence.draft = tuple(self._guess(sequence, room))[: max(room, 0)]

    def verified(
        self,
        sequence: TokenSequence,
        draft: Sequence[int],
        emitted: Sequence[int],
        sureness: Callable[[], float],
    ) -> None:
        self.seen.append((tuple(draft), tuple(emitted)))


def plan_guesses(parts: EngineParts, guess: Guesser) -> tuple[Engine, PlannedSpeculator]:
    """An engine of these parts whose guesses come from `guess`."""
    planned = PlannedSpeculator(parts.speculator, guess)
    parts.speculator = planned  # type: ignore[assignment]  # the seam for fakes
    return Engine(parts), planned


def oracle(known: Sequence[int], num_tokens: int) -> Guesser:
    """Guesses the next tokens of a reply whose ids are known."""

    def guess(sequence: TokenSequence, room: int) -> Sequence[int]:
        done = sequence.num_replied
        return known[done : done + num_tokens]

    return guess


def wrong(known: Sequence[int], num_tokens: int, *, first_wrong: int = 0) -> Guesser:
    """The same, but wrong from one place on."""
    right = oracle(known, num_tokens)

    def guess(sequence: TokenSequence, room: int) -> Sequence[int]:
        # Another id of the same alphabet.
        guesses = list(right(sequence, room)) or [50] * num_tokens
        return [
            token_id if place < first_wrong else 4 + (token_id - 4 + 1 + place) % 200
            for place, token_id in enumerate(guesses)
        ]

    return guess
