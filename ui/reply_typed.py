"""Text shown exactly as it was typed, in pieces that one widget each can show. No Qt."""

from ui.markdown.blocks import Paragraph, Run

_PIECE_CHARS = 4_000


def typed_blocks(text: str, piece_chars: int = _PIECE_CHARS) -> list[Paragraph]:
    """What a person typed, exactly; long texts in pieces that end with a line or a word."""
    blocks: list[Paragraph] = []
    rest = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    while len(rest) > piece_chars:
        end = rest.rfind("\n", 1, piece_chars)
        skip = 1
        if end < 0:
            end = rest.rfind(" ", 1, piece_chars) + 1 or piece_chars
            skip = 0
        blocks.append(Paragraph((Run(rest[:end]),)))
        rest = rest[end + skip :]
    blocks.append(Paragraph((Run(rest),)))
    return blocks
