"""What is said about a chat that is full. Pure but for the locale."""

from app.conversation import OnFull
from ui.controls.numbers import count

NOT_NOW = "Not now"
STOP = "Stop"
TOO_LONG = "This message is too long"

_HINTS = {
    "leave_out": "This chat is full: the oldest messages will be left out.",
    "new_chat": "This chat is full: your message will begin a new one, with a summary.",
}


def full_words(prompt_tokens: int, context_tokens: int, *, is_off: bool) -> tuple[str, str]:
    """Title and sentence of the card; `is_off` if nothing is to be sent."""
    step = "Sending is off." if is_off else "Leave out the oldest messages, or start a new chat."
    return "This chat is full", f"{step} It takes {_numbers(prompt_tokens, context_tokens)}"


def too_long_words(
    prompt_tokens: int, context_tokens: int, *, has_instructions: bool
) -> tuple[str, str]:
    """Title and sentence of the card about a message that does not fit alone."""
    subject, step = "It takes", "Make it shorter."
    if has_instructions:
        subject, step = "With the instructions of this chat it takes", "Make one of them shorter."
    return TOO_LONG, f"{subject} {_numbers(prompt_tokens, context_tokens)} {step}"


def summary_words(num_chars: int, *, has_message: bool) -> tuple[str, str]:
    """Title and sentence while a chat is summed up; `has_message` if one waits to be sent."""
    so_far = f"{count(num_chars)} characters so far." if num_chars else ""
    kept = "Your message is kept and goes into the new chat." if has_message else ""
    return (
        "Summarising this chat…",
        f"{so_far} {kept}".strip() or "A new chat opens when it is done.",
    )


def _numbers(prompt_tokens: int, context_tokens: int) -> str:
    if prompt_tokens > context_tokens:
        return f"{count(prompt_tokens)} tokens, and {count(context_tokens)} fit."
    return f"{count(prompt_tokens)} of {count(context_tokens)} tokens, and a reply needs room too."


def hint_words(choice: OnFull) -> str:
    """What is said above the composer of a full chat that knows what to do; "" for nothing."""
    return _HINTS.get(choice, "")
