"""Text shown exactly as it was typed, in pieces that one widget each can show. No Qt."""

from ui.markdown.blocks import Paragraph, Run

_PIECE_CHARS = 2_000
_PIECE_LINES = 60


def typed_blocks(text: str, piece_chars: int = _PIECE_CHARS) -> list[Paragraph]:
    """What a person typed, exactly; long texts in pieces that end with a line or a word.

    The cuts depend only on what comes before them, so the pieces of a text that grows stay.
    """
    blocks: list[Paragraph] = []
    rest = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    start = 0
    while (end := _piece_end(rest, start, piece_chars)) is not None:
        blocks.append(Paragraph((Run(rest[start:end]),)))
        start = end + 1 if rest[end] == "\n" else end
    blocks.append(Paragraph((Run(rest[start:]),)))
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
    return text.rfind(" ", start + 1, stop) + 1 or stop
