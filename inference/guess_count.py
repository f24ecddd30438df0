"""Counts what guessing ahead did for one reply. Pure Python; engine thread."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlainStep:
    """What a step would have taken without guesses.

    Attributes:
        token_ms: If it only decodes.
        beside_ms: For what else was computed in it, prompts of other chats.
    """

    token_ms: float = 0.0
    beside_ms: float = 0.0


@dataclass(slots=True)
class GuessCount:
    """What guessing did for one reply.

    Attributes:
        num_drafted: Tokens guessed and verified.
        num_accepted: Of these, part of the reply.
        num_steps: Steps that verified some.
        num_tokens: Of the reply, after its first.
        plain_ms: What these would have taken without.
    """

    num_drafted: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    num_tokens: int = 0
    plain_ms: float = 0.0

    def note_step(
        self, num_drafted: int, num_tokens: int, plain: PlainStep, paused_ms: float = 0.0
    ) -> None:
        """Count a step that brought tokens, not the first.

        Args:
            num_drafted: Guesses that it verified, perhaps none.
            num_tokens: What it brought.
            plain: What it would have taken without guesses.
            paused_ms: For how long nothing was computed for the reply before it.
        """
        self.num_drafted += num_drafted
        self.num_steps += num_drafted > 0
        self.num_tokens += num_tokens
        self.plain_ms += plain.token_ms * num_tokens + plain.beside_ms + paused_ms

    def plain_token_ms(self) -> float | None:
        """What each of the reply's tokens would have taken; None if nothing was guessed."""
        is_known = self.num_drafted > 0 and self.num_tokens > 0 and self.plain_ms > 0
        return self.plain_ms / self.num_tokens if is_known else None
