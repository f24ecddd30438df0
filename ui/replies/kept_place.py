"""A place in a message that stays where it is on screen while the chat is laid out. GUI thread."""

from bisect import bisect_right
from dataclasses import dataclass

from PySide6.QtCore import QPoint

from app.conversation import MessageId
from ui.replies.message_view import MessageView
from ui.replies.reply_leaf import Leaf

LaidOutFor = tuple[int, int]
"""Width of the column, and height of a line."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place in a message.

    Attributes:
        leaf: Block of the message; None for the message itself.
        offset: Pixels below the top of that.
        height: Of the block.
        laid_out_for: What the message was laid out for.
    """

    message_id: MessageId
    leaf: Leaf | None
    offset: int
    height: int
    laid_out_for: LaidOutFor | None

    def leaf_in(self, view: MessageView | None) -> Leaf | None:
        """Its block, if that is still there."""
        return self.leaf if view is not None and self.leaf in view.leaves() else None

    def offset_in(self, view: MessageView | None, laid_out_for: LaidOutFor | None) -> int:
        """Where it is in its message now, laid out for something else perhaps."""
        leaf = self.leaf_in(view)
        if leaf is None or view is None:
            return self.offset
        offset = self.offset
        if laid_out_for != self.laid_out_for and self.height:
            offset = round(offset * leaf.height() / self.height)
        return top_in(view, leaf) + offset


def anchor_in(
    message_id: MessageId, view: MessageView | None, offset: int, laid_out_for: LaidOutFor | None
) -> Anchor:
    """The place so far below a message's top.

    Also in which of its blocks: the others change their heights with the width and the text size.
    """
    if view is not None:
        leaves = view.leaves()
        index = bisect_right(leaves, offset, key=lambda leaf: top_in(view, leaf)) - 1
        if index >= 0:
            leaf, below = leaves[index], offset - top_in(view, leaves[index])
            if below <= leaf.height():  # else below its blocks, or between two
                return Anchor(message_id, leaf, below, leaf.height(), laid_out_for)
    return Anchor(message_id, None, offset, 0, laid_out_for)


def top_in(view: MessageView, leaf: Leaf) -> int:
    """Where a block begins in its message."""
    return leaf.mapTo(view, QPoint()).y()
