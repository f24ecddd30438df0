"""Why a reply does not begin, or does not go on, while others are made. Pure Python; GUI thread."""

from collections.abc import Callable, Iterable

from app.live_reply import LiveReply
from app.session_changes import WaitReason
from inference.metrics import EngineStats

WAIT_AFTER_S = 2.0
"""For so long a reply may say nothing before it is said that it waits."""


def why_waiting(
    live: LiveReply,
    others: Iterable[LiveReply],
    stats: EngineStats,
    *,
    now: float,
    most_tokens: Callable[[], int],
) -> WaitReason | None:
    """Why the engine has not come to a reply; None if it has, or may still do so soon.

    Args:
        live: The reply.
        others: All others in the making, of all chats.
        stats: The newest of the engine.
        now: Seconds, as for `LiveReply.grow`.
        most_tokens: Gives a number that the reply's prompt stays below.
    """
    if not live.is_silent(now, WAIT_AFTER_S) or not stats.num_running:
        return None
    sent = [other for other in others if other.key is not None]
    # The engine counts those that wait; of those that had begun it says nothing more.
    num_new = sum(not other.has_begun for other in sent) if live.has_begun else 0
    if stats.num_waiting <= num_new:
        return None
    if any(other.is_reading for other in sent):
        return "reading"
    free_tokens = (stats.blocks.free + stats.blocks.cached) * stats.block_size
    return "memory" if free_tokens < most_tokens() else "turn"
