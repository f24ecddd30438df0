"""What is said about a chat that is full. Pure but for the locale."""

from app.conversation import OnFull
from ui.controls.numbers import count
from ui.dialogs.on_full_choices import LEAVE_OUT, NEW_CHAT

__all__ = ["LEAVE_OUT", "NEW_CHAT", "NOT_NOW", "STOP", "full_words", "hint_words", "summary_words"]

NOT_NOW = "Not now"
STOP = "Stop"

_HINTS = {
    "leave_out": "This chat is full: the oldest messages will be left out.",
    "new_chat": "This chat is full: your message will begin a new one, with a summary.",
}


def full_words(prompt_tokens: int, context_tokens: int, *, is_off: bool) -> tuple[str, str]:
    """Title and sentence of the card; `is_off` if nothing is to be sent."""
    step = "Sending is off." if is_off else "Leave out the oldest messages, or start a new chat."
    if prompt_tokens > context_tokens:
        numbers = f"It takes {count(prompt_tokens)} tokens, and {count(context_tokens)} fit."
    else:
        numbers = (
            f"It takes {count(prompt_tokens)} of {count(context_tokens)} tokens, and a reply needs"
            " room too."
        )
    return "This chat is full", f"{step} {numbers}"


def summary_words(num_chars: int, *, has_message: bool) -> tuple[str, str]:
    """Title and sentence while a chat is summed up; `has_message` if one waits to be sent."""
    so_far = f"{count(num_chars)} characters so far." if num_chars else ""
    kept = "Your message is kept and goes into the new chat." if has_message else ""
    return (
        "Summarising this chat…",
        f"{so_far} {kept}".strip() or "A new chat opens when it is done.",
    )


def hint_words(choice: OnFull) -> str:
    """What is said above the composer of a full chat that knows what to do; "" for nothing."""
    return _HINTS.get(choice, "")
