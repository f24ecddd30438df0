"""Text shown exactly as it was typed, in pieces that one widget each can show. No Qt."""

import unicodedata
from typing import Literal

from ui.markdown.blocks import Paragraph, Run

_PIECE_CHARS = 2_000
_PIECE_LINES = 60
_CLAUSE_CHARS = 200  # looked through for each piece: most clauses are far shorter


def typed_blocks(text: str, piece_chars: int = _PIECE_CHARS) -> list[Paragraph]:
    """What a person typed, exactly; long texts in pieces that end with a line or a word.

    A piece that ends with a word or, in writing without gaps, with a clause ends in a line that the next one
    goes on with.

    The cuts depend only on what comes before them, so the pieces of a text that grows stay.
    """
    blocks: list[Paragraph] = []
    rest = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    start = 0
    joint: Literal["", "\n"] | None = None
    while (end := _piece_end(rest, start, piece_chars)) is not None:
        blocks.append(Paragraph((Run(rest[start:end]),), joint=joint))
        joint = "\n" if rest[end] == "\n" else ""
        start = end + len(joint)
    blocks.append(Paragraph((Run(rest[start:]),), joint=joint))
    return blocks


def _piece_end(text: str, start: int, piece_chars: int) -> int | None:
    """Where to cut; None if all the rest is one piece."""
    stop = start + piece_chars
    last_line = start
    for _ in range(_PIECE_LINES):
        line_end = text.find("\n", last_line + 1, stop)
        if line_end < 0:
            break
        last_line = line_end
    else:
        return last_line
    if len(text) <= stop:
        return None
    if last_line > start:
        return last_line
    return _last_word_begin(text, start, stop) or _last_clause_begin(text, start, stop) or stop


def _last_word_begin(text: str, start: int, stop: int) -> int:
    """Where the last word before `stop` begins that follows a gap; 0 if there is none.

    All of a gap stays in the piece before: at the end of a line it does not show, at the beginning it would.
    """
    begin = text.rfind(" ", start + 1, stop) + 1
    if begin and text[begin] == " ":  # the gap is longer
        word_end = start + len(text[start:begin].rstrip(" "))
        begin = text.rfind(" ", start + 1, word_end) + 1
    return begin


def _last_clause_begin(text: str, start: int, stop: int) -> int:
    """Where the last letter before `stop` follows a wide mark as of Chinese; 0 if none near it does.

    There a line may end. Before such a mark none may, so that a cut there would take the letter before it along.
    """
    for begin in range(stop - 1, max(start, stop - _CLAUSE_CHARS), -1):
        mark, letter = text[begin - 1], text[begin]
        if (
            unicodedata.east_asian_width(mark) in "FW"
            and unicodedata.category(mark) in ("Po", "Pe", "Pf")
            and unicodedata.category(letter) == "Lo"
        ):
            return begin
    return 0
