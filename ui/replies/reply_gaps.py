"""How far blocks stand apart. No Qt; pixels at 100 % text size."""

from ui.markdown.blocks import Block, Code, Frame, Heading, Paragraph, Rule, Table

_ABOVE = {"heading": 18, "table": 10, "rule": 14}
_BELOW = {"heading": 6, "table": 14, "code": 14, "rule": 14}
_GAP = 10
_ITEM_GAP = 4


def gap_between(before: Block, after: Block) -> int:
    """Space between two blocks that follow each other."""
    is_new_item = num_shared(before.frames, after.frames) < len(after.frames)
    is_in_list = bool(before.frames and after.frames) and before.frames[0].kind == "item"
    if is_new_item and is_in_list and after.frames[-1].kind == "item":
        is_plain = isinstance(before, Paragraph) and isinstance(after, Paragraph)
        return _ITEM_GAP if is_plain else _GAP
    below = _BELOW.get(_kind(before), _GAP)
    if isinstance(before, Heading):
        return below
    return max(_ABOVE.get(_kind(after), _GAP), below)


def num_shared(before: tuple[Frame, ...], after: tuple[Frame, ...]) -> int:
    """How many containers both lie in."""
    count = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            break
        count += 1
    return count


def _kind(block: Block) -> str:
    match block:
        case Heading():
            return "heading"
        case Table():
            return "table"
        case Code():
            return "code"
        case Rule():
            return "rule"
    return "text"
