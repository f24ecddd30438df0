"""How much of a prompt was reused and why not more, in words for people. Pure but for the locale."""

from inference.metrics import RequestMetrics, ReuseStop
from ui.controls.numbers import count

_BECAUSE: dict[ReuseStop, str] = {
    "system_prompt": "because the system prompt changed",
    "edited": "because it was edited",
    "template": "because the chat template writes it differently now",
    "other_model": "because another model wrote it",
    "left_out": "because the oldest messages were left out",
    "evicted": "because it had given way to other chats",
    "damaged": "because a file on disk was damaged",
    "other_weights": "because the model's file has changed",
    "other_computing": "because it was computed in another way",
    "other_precision": "because it was read with another precision of the memory",
    "no_room": "because it could not be kept on disk",
    "not_kept": "because it is not kept",
}

# Where all is read again.
_BECAUSE_OF_ALL: dict[ReuseStop, str] = {"other_model": "because another model wrote the replies"}

# Where there is little room. "{}" is "Message 2", or what all of it is called.
_SHORT: dict[ReuseStop, str] = {
    "system_prompt": "System prompt changed",
    "edited": "{} was edited",
    "template": "Chat template changed",
    "other_model": "Another model wrote it",
    "left_out": "Oldest messages left out",
    "evicted": "Gave way to other chats",
    "damaged": "File on disk damaged",
    "other_weights": "Model's file changed",
    "other_computing": "Computed in another way",
    "other_precision": "Precision changed",
    "no_room": "Could not be kept on disk",
    "not_kept": "Not kept",
}


def reused_text(metrics: RequestMetrics) -> str:
    """How many tokens were reused and from where; "" if none were.

    "1,204 tokens reused (memory)", "(disk)", or "(memory 1,000, disk 204)". Device and RAM are both
    memory.
    """
    if not metrics.reused_tokens:
        return ""
    disk = metrics.reused_disk_tokens
    memory = metrics.reused_tokens - disk
    place = "disk" if disk else "memory"
    if disk and memory:
        place = f"memory {count(memory)}, disk {count(disk)}"
    unit = "token" if metrics.reused_tokens == 1 else "tokens"
    return f"{count(metrics.reused_tokens)} {unit} reused ({place})"


def stop_text(metrics: RequestMetrics, *, left_out: int = 0) -> str:
    """Where and why something was read again, as a sentence without its stop; "" if nothing was.

    Args:
        metrics: Of the reply.
        left_out: How many messages of the chat, oldest first, the model did not see: a person counts
            them too.
    """
    stop = metrics.reuse_stop
    if stop is None:
        return ""
    number = _chat_place(metrics, left_out)
    # "From the start" would contradict what stands before it, if a part of the system prompt was reused.
    start = "" if metrics.reused_tokens else " from the start"
    place = {None: "", 0: start}.get(number, f" from message {number}")
    because = (_BECAUSE_OF_ALL if number == 0 else _BECAUSE).get(stop, _BECAUSE[stop])
    return f"Read again{place}, {because}"


def short_stop_text(metrics: RequestMetrics, *, left_out: int = 0) -> str:
    """Why something was read again, in a few words; "" if nothing was."""
    if metrics.reuse_stop is None:
        return ""
    number = _chat_place(metrics, left_out)
    return _SHORT[metrics.reuse_stop].format(
        f"Message {number}" if number else "An earlier message"
    )


def _chat_place(metrics: RequestMetrics, left_out: int) -> int | None:
    """The place as a person counts messages, from 1; 0 for the system prompt; None if unknown."""
    place = metrics.reuse_stop_message
    return place + left_out if place else place
