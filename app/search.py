"""How typed words become a search, and hits a line for people. Pure Python; any thread."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from app.conversation import ConversationSummary, MessageId
from app.stored_values import Row, summary_from_row, text_from

MAX_HITS = 50  # that are shown; one more is looked for, to say that there are more
MAX_WORDS = 50  # that are looked for; SQLite refuses a thousand
MIN_INDEXED_CHARS = 3
SNIPPET_CHARS = 120
SNIPPET_LEAD_CHARS = 12

# Scripts that are written without spaces: the index would take a whole sentence for one word.
_UNSPACED_NAMES = (
    "CJK",
    "HIRAGANA",
    "KATAKANA",
    "HANGUL",
    "THAI",
    "LAO",
    "KHMER",
    "MYANMAR",
    "TIBETAN",
)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One chat that was found.

    Attributes:
        message_id: The newest message that matches; None when only the title does.
        snippet: Some of its text around the first match, on one line; "" without a message.
    """

    conversation: ConversationSummary
    message_id: MessageId | None
    snippet: str


def search_query(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """SQL that finds the chats with all words, the last used first, and its arguments.

    Its rows are for `hit_from_row`.
    """
    if needs_plain_search(" ".join(words)):
        match = " AND ".join("holds(CAST({0} AS BLOB), ?)" for _ in words)
        messages, titles = match.format("content"), match.format("c.title")
        arguments = tuple(words)
    else:
        messages = "id IN (SELECT rowid FROM message_index WHERE message_index MATCH ?)"
        titles = "c.key IN (SELECT rowid FROM title_index WHERE title_index MATCH ?)"
        arguments = (index_query(words),)
    # The newest message first: contents are read of those alone that are shown.
    sql = (
        "WITH newest AS MATERIALIZED (SELECT conversation_id, max(id) AS id FROM messages"
        f" WHERE {messages} GROUP BY conversation_id)"
        " SELECT c.id, c.title, c.updated_at, m.id AS message_id, m.content FROM conversations c"
        " LEFT JOIN newest ON newest.conversation_id = c.id"
        " LEFT JOIN messages m ON m.id = newest.id"
        f" WHERE c.deleted_at IS NULL AND (newest.id IS NOT NULL OR {titles})"
        f" ORDER BY c.updated_at DESC, c.key DESC LIMIT {MAX_HITS + 1}"
    )
    return sql, arguments + arguments


def hit_from_row(row: Row, words: Sequence[str]) -> SearchHit:
    """One chat that was found by these words."""
    text = snippet(text_from(row["content"]), words)
    return SearchHit(summary_from_row(row), row["message_id"], text)


def needs_plain_search(text: str) -> bool:
    """Whether the word index cannot answer: short words, signs, scripts without spaces."""
    return any(
        len(word) < MIN_INDEXED_CHARS or not word.isalnum() or any(map(_is_unspaced, word))
        for word in text.split()
    )


def index_query(words: Sequence[str]) -> str:
    """All words, each from its beginning, in FTS5's language. Words hold letters and digits only."""
    return " ".join(f'"{word}"*' for word in words)


def fold(text: str) -> str:
    """Text in the form that plain search compares: no case, one spelling of accents."""
    return unicodedata.normalize("NFC", text).casefold()


def holds(text: str | bytes, word: str) -> bool:
    """Whether `word` is anywhere in `text`; as bytes it may be damaged."""
    return fold(word) in fold(text_from(text))


def snippet(content: str, words: Sequence[str]) -> str:
    """A part of `content` around the first of `words` that is in it, on one line."""
    line = " ".join(content.split())
    lowered = line.casefold()
    places = [place for word in words if (place := lowered.find(word.casefold())) >= 0]
    start = max(0, min(places, default=0) - SNIPPET_LEAD_CHARS)
    end = start + SNIPPET_CHARS
    return ("…" if start else "") + line[start:end].strip() + ("…" if end < len(line) else "")


def _is_unspaced(char: str) -> bool:
    return ord(char) > 0x0DFF and unicodedata.name(char, "").startswith(_UNSPACED_NAMES)
