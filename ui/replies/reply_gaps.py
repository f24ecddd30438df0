"""How far blocks stand apart. No Qt; pixels at 100 % text size."""

from ui.markdown.blocks import Block, Code, Frame, Heading, Paragraph, Rule, Table

_ABOVE = {"heading": 18, "table": 10, "rule": 14}
_BELOW = {"heading": 6, "table": 14, "code": 14, "rule": 14}
_GAP = 10
_ITEM_GAP = 4


def gap_between(before: Block, after: Block) -> int:
    """Space between two blocks that follow each other."""
    if is_next_item(before.frames, after.frames):
        is_plain = isinstance(before, Paragraph) and isinstance(after, Paragraph)
        return _ITEM_GAP if is_plain else _GAP
    below = _BELOW.get(_kind(before), _GAP)
    if isinstance(before, Heading):
        return below
    return max(_ABOVE.get(_kind(after), _GAP), below)


def is_next_item(before: tuple[Frame, ...], after: tuple[Frame, ...]) -> bool:
    """Whether a block begins another item of the list that the one before is in, or of a list inside it.

    Of two lists that follow each other nothing tells that they are two but a change between numbers and
    bullets.
    """
    shared = num_shared(before, after)
    is_new = shared < len(after) and after[-1].kind == "item"
    if not is_new or not before or before[0].kind != "item":
        return False
    return shared == len(before) or _list_of(before[shared]) == _list_of(after[shared])


def _list_of(frame: Frame) -> tuple[str, bool]:
    return frame.kind, frame.marker[:1].isdigit()


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
