"""The end of a text that grows, where one more character may change what it is. Pure Python."""

import re
from dataclasses import replace

from ui.markdown.blocks import Block, Heading, Paragraph, Run

_UNDECIDED_LINE = re.compile(r"[ \t>]*(?:[-=*+_`~#|:]{1,8}|\d{1,9}[.)]?)?[ \t]*")
_TABLE_START = re.compile(r"\|[^\n]*(?:\n[ \t|:-]*)?")

_OPEN_LINK = re.compile(r"!?\[([^\]\n]+)\]\([^)\s]*$")
_OPEN_CODE = re.compile(r"(?<!`)`(?!`)")
_OPEN_BOLD = re.compile(r"(?:^|(?<=[\s(\"'“‘—-]))\*\*(?!\s|\*)|\*\*$")


def without_undecided(text: str) -> str:
    """Leave out a last line that may still become anything, so that nothing flickers.

    A lone "-" below text would be a heading for one frame, before "- item" is a list.
    """
    start = text.rfind("\n") + 1
    if _UNDECIDED_LINE.fullmatch(text[start:]):
        text = text[:start]
    return "" if _TABLE_START.fullmatch(text.rstrip("\n")) else text


def with_marks_closed(block: Block) -> Block:
    """A last block as it will be once its open bold text, code or link is closed.

    Without this, "**" would be seen for a moment before the words after it turn bold.
    """
    if not isinstance(block, (Paragraph, Heading)) or not block.runs:
        return block
    *before, last = block.runs
    if last.code or last.link:
        return block
    return replace(block, runs=(*before, *_closed(last)))


def _closed(run: Run) -> list[Run]:
    text = _OPEN_LINK.sub(r"\1", run.text)
    code = _OPEN_CODE.search(text)
    bold = None if run.bold else _OPEN_BOLD.search(text)
    mark = code if code and (bold is None or code.start() < bold.start()) else bold
    if mark is None:
        return [replace(run, text=text)]
    look = replace(run, code=True) if mark is code else replace(run, bold=True)
    pieces = [replace(run, text=text[: mark.start()]), replace(look, text=text[mark.end() :])]
    return [piece for piece in pieces if piece.text]
