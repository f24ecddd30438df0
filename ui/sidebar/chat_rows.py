"""What the list of chats shows, row by row: headings by day, chats, found chats. Pure Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from app.conversation import ConversationId, ConversationSummary, MessageId
from app.search import MAX_HITS, SearchHit


@dataclass(frozen=True, slots=True)
class HeadingRow:
    """A line over a group."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatRow:
    """One chat.

    Attributes:
        snippet: Found text on a second line; "" outside a search.
        message_id: Where that is; None outside a search, and where only the title matches.
    """

    id: ConversationId
    title: str
    snippet: str = ""
    message_id: MessageId | None = None


Row = HeadingRow | ChatRow

_OLDER = "Older"
_MORE = "More were found: add a word"


def rows_by_day(chats: Sequence[ConversationSummary], today: date) -> list[Row]:
    """Group chats, newest first as they come, under Today, Yesterday, Last 7 days and Older.

    Args:
        chats: As the store gives them.
        today: In the zone of the person's clock; `updated_at` is read in the same zone.
    """
    rows: list[Row] = []
    groups = _groups(today)
    heading = ""
    for chat in chats:
        wanted = next((name for begin, name in groups if chat.updated_at >= begin), _OLDER)
        if wanted != heading:
            heading = wanted
            rows.append(HeadingRow(heading))
        rows.append(ChatRow(chat.id, chat.title))
    return rows


def rows_of_hits(hits: Sequence[SearchHit]) -> list[Row]:
    """Found chats in the order of the search, each with the text that matched."""
    rows: list[Row] = [
        ChatRow(hit.conversation.id, hit.conversation.title, hit.snippet, hit.message_id)
        for hit in hits[:MAX_HITS]
    ]
    return [*rows, HeadingRow(_MORE)] if len(hits) > MAX_HITS else rows


def _groups(today: date) -> list[tuple[float, str]]:
    """When each group begins, in seconds since the epoch, the newest first; all before is older."""
    days = [(0, "Today"), (1, "Yesterday"), (7, "Last 7 days")]
    return [
        (datetime.combine(today - timedelta(days=ago), time.min).timestamp(), name)
        for ago, name in days
    ]
