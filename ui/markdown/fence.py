"""Code blocks of the top level, line by line: a long one is never parsed again. Pure Python."""

import re
from dataclasses import dataclass

_OPENING = re.compile(r"(?P<fence>`{3,})(?P<info>[^`\n]*)\n|(?P<tilde>~{3,})(?P<words>[^\n]*)\n")


@dataclass(slots=True)
class Fence:
    """A code block that is not closed yet.

    Attributes:
        closing: Matches the line that closes it.
        partial: Matches the start of such a line.
        text: The complete lines so far, each with its line feed.
    """

    language: str
    closing: re.Pattern[str]
    partial: re.Pattern[str]
    text: str = ""


def open_fence(text: str) -> tuple[Fence, int] | None:
    """The fence that `text` starts with, and the length of its first line; None if there is none.

    Fences with an indent, or inside a container, are left to the parser.
    """
    match = _OPENING.match(text)
    if match is None:
        return None
    marker = match["fence"] or match["tilde"]
    info = (match["info"] or match["words"] or "").split(maxsplit=1)
    char = re.escape(marker[0])
    fence = Fence(
        info[0] if info else "",
        re.compile(rf"^ {{0,3}}{char}{{{len(marker)},}}[ \t]*$"),
        re.compile(rf"^ {{0,3}}{char}*[ \t]*$"),
    )
    return fence, match.end()
