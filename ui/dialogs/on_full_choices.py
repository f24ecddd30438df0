"""What can be done when a chat is full, by name. Pure Python."""

from app.conversation import OnFull

LEAVE_OUT = "Leave out the oldest"
NEW_CHAT = "New chat with a summary"

ON_FULL_CHOICES: tuple[tuple[OnFull, str, str], ...] = (
    ("ask", "Ask", "Says so before sending."),
    ("stop", "Stop", "Nothing is sent any more."),
    ("new_chat", NEW_CHAT, "Sums this chat up and goes on in a new one."),
    ("leave_out", LEAVE_OUT, "The model does not see the oldest messages any more."),
)
"""Key, name, and a plain sentence."""
