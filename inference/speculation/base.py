"""What proposers give, and what is needed of them. Pure Python."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

from inference.metrics import ModelInfo
from inference.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that may come next in one sequence.

    Attributes:
        token_ids: Guessed, in order; 1 to `config.MAX_DRAFT_TOKENS`.
        source: Whose guess it is, and how sure that is: acceptance is counted by it, for all chats of a
            model together. It says nothing of the text.
    """

    token_ids: tuple[int, ...]
    source: str


class KeptMemory(Protocol):
    """Keys and values that outlive replies; see `ChatMemory`."""

    def tend(self) -> bool:
        """Look after transfers; whether some go on."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is on disk, or for so long; whether it is."""

    def break_off(self, conversation_id: str | None) -> None:
        """Write nothing more to the disk of this chat, or of any."""

    def forget(self, conversation_id: str) -> int:
        """Remove what only this chat used; bytes freed."""

    def clear(self) -> int:
        """Remove everything; bytes freed."""

    def set_budgets(self, ram_bytes: int | None, disk_bytes: int | None) -> None:
        """Change the budgets of RAM and disk."""

    def close(self) -> None:
        """Finish, and give all memory back."""


class Draft(KeptMemory, Protocol):
    """A second model that guesses; see `DraftModel`."""

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""

    @property
    def memory_bytes(self) -> int:
        """Of weights, keys and values."""

    @property
    def disk_written_bytes(self) -> int:
        """Written to the disk tier so far."""

    @property
    def token_ms(self) -> float | None:
        """What a guessed token takes; None until known."""

    @property
    def read_ms_per_token(self) -> float | None:
        """What a token takes that it has to read; None until known."""

    def begin(self, sequence: Sequence) -> None:
        """Guess for this sequence from now on."""

    def lag(self, sequence: Sequence) -> int:
        """Tokens that it would have to read before it can guess."""

    def propose(
        self, wanted: SequenceOf[tuple[Sequence, int]], least_sure: float
    ) -> list[tuple[int, ...]]:
        """Guess at most so many tokens for each, fewer where it is less sure; none while it reads."""

    def check_integrity(self) -> None:
        """Prove that nothing is lost; a RuntimeError says what is."""

    def end(self, sequence: Sequence, *, keep: bool, on_disk: bool) -> None:
        """The sequence has ended; keep what was computed of it."""
