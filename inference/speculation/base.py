"""What a proposer gives, and how much of it there may be. Pure Python; any thread."""

from dataclasses import dataclass


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
