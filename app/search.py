"""How typed words become a search, and hits a line for people. Pure Python; any thread."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from app.conversation import ConversationSummary, MessageId

MIN_INDEXED_CHARS = 3
SNIPPET_CHARS = 120
SNIPPET_LEAD_CHARS = 40

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


def holds(text: str, word: str) -> bool:
    """Whether `word` is anywhere in `text`."""
    return fold(word) in fold(text)


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
