"""The end of a text that grows, where one more character may change what it is. Pure Python."""

import re

_UNDECIDED_LINE = re.compile(r"[ \t>]*(?:[-=*+_`~#|:]{1,8}|\d{1,9}[.)]?)?[ \t]*")
_TABLE_START = re.compile(r"\|[^\n]*(?:\n[ \t|:-]*)?")


def without_undecided(text: str) -> str:
    """Leave out a last line that may still become anything, so that nothing flickers.

    A lone "-" below text would be a heading for one frame, before "- item" is a list.
    """
    start = text.rfind("\n") + 1
    if _UNDECIDED_LINE.fullmatch(text[start:]):
        text = text[:start]
    return "" if _TABLE_START.fullmatch(text.rstrip("\n")) else text
