"""The marks of lists in text that is copied: a block shows them beside itself. GUI thread, for the blocks."""

from ui.markdown.blocks import Frame
from ui.replies.reply_gaps import is_next_item, num_shared
from ui.replies.reply_leaf import Leaf

_DEEPER = "  "


def copied_before(before: Leaf | None, leaf: Leaf, *, is_first: bool) -> str:
    """What is copied before the text of a block: line ends, and the marks of the items that begin with it.

    Args:
        before: The block before it in the chat, if there is one.
        leaf: The block.
        is_first: Whether nothing is copied before it.
    """
    if leaf.joint is not None:
        return "" if is_first else leaf.joint
    # In another message lines are counted anew, so that frames may seem to be the same.
    is_in_message = before is not None and before.parent() is leaf.parent()
    frames = before.frames if before is not None and is_in_message else ()
    gap = "\n" if is_next_item(frames, leaf.frames) else "\n\n"
    mark = _mark(frames, leaf.frames) if leaf.is_selected_from_start else ""
    return mark if is_first else gap + mark


def _mark(before: tuple[Frame, ...], after: tuple[Frame, ...]) -> str:
    shared = num_shared(before, after)
    depth = sum(frame.kind == "item" for frame in after[:shared])
    marks = [frame.marker for frame in after[shared:] if frame.kind == "item"]
    return _DEEPER * depth + "".join(f"{mark} " for mark in marks)
