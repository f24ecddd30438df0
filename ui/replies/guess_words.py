"""What guessing ahead brought a reply, in words for people. Pure but for the locale."""

from inference.metrics import RequestMetrics
from ui.controls.numbers import count, factor, percent

_FEW_TOKENS = 20  # fewer say nothing of how well it goes


def guess_text(metrics: RequestMetrics) -> str:
    """How much was guessed, how much of it was right, and what it brought; "" if nothing was guessed.

    "Guessed ahead: 142 tokens, 71% accepted, 1.6× as fast"; without the last part if that is not known.
    """
    if metrics.drafted_tokens <= 0:
        return ""
    unit = "token" if metrics.drafted_tokens == 1 else "tokens"
    few = f"{count(metrics.accepted_tokens) if metrics.accepted_tokens else 'none'} accepted"
    accepted = few if metrics.drafted_tokens < _FEW_TOKENS else _accepted(metrics)
    words = f"Guessed ahead: {count(metrics.drafted_tokens)} {unit}, {accepted}"
    speedup = None if metrics.drafted_tokens < _FEW_TOKENS else metrics.guess_speedup
    return words if speedup is None else f"{words}, {factor(speedup)} as fast"


def short_guess_text(metrics: RequestMetrics) -> str:
    """The same where there is little room: "Guessed ahead: 71% accepted"; "" if nothing was guessed."""
    if metrics.drafted_tokens <= 0:
        return ""
    few = f"{count(metrics.accepted_tokens)} of {count(metrics.drafted_tokens)} accepted"
    return f"Guessed ahead: {few if metrics.drafted_tokens < _FEW_TOKENS else _accepted(metrics)}"


def _accepted(metrics: RequestMetrics) -> str:
    return f"{percent(metrics.accepted_tokens / metrics.drafted_tokens)} accepted"
