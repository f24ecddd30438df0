"""Selecting text across blocks and messages with the mouse. GUI thread.

Blocks are widgets of their own, so one controller keeps the two ends of the selection and tells
each block which part of it is covered.
"""

from collections.abc import Callable, Sequence

from PySide6.QtCore import QPoint

from ui.replies.copied_list import copied_before
from ui.replies.reply_leaf import Leaf

Place = tuple[Leaf, int]


class TextSelection:
    """The selection of one message list.

    Args:
        leaves: Gives all blocks with text, top to bottom.

    Attributes:
        is_all: Whether it is everything, also what is still to come.
    """

    def __init__(self, leaves: Callable[[], Sequence[Leaf]]) -> None:
        self._leaves = leaves
        self._anchor: Place | None = None
        self._covered: list[Leaf] = []
        self.is_all = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is selected."""
        return not self._covered

    def begin(self, place: QPoint) -> None:
        """A new selection starts at this point of the screen."""
        self.clear()
        self._anchor = self._place_at(place)

    def extend(self, place: QPoint) -> None:
        """The selection reaches to this point of the screen."""
        end = self._place_at(place)
        if self._anchor is not None and end is not None:
            self._cover(self._anchor, end)

    def select_word(self, place: QPoint) -> None:
        """The word at this point of the screen."""
        found = self._place_at(place)
        if found is not None:
            leaf = found[0]
            start, end = leaf.word_at(leaf.mapFromGlobal(place))
            self.is_all = False
            self._anchor = (leaf, start)
            self._cover((leaf, start), (leaf, end))

    def select(self, leaf: Leaf, start: int, end: int) -> None:
        """These positions of one block."""
        self.clear()
        self._anchor = (leaf, start)
        self._cover((leaf, start), (leaf, end))

    def select_all(self) -> None:
        """Everything that is there; to be called again when there is more."""
        leaves = self._leaves()
        if leaves:
            self._cover((leaves[0], 0), (leaves[-1], leaves[-1].text_length()))
            self.is_all = True

    def clear(self) -> None:
        """Nothing is selected."""
        for leaf in self._covered:
            leaf.set_selection(None)
        self._covered = []
        self._anchor = None
        self.is_all = False

    def text(self) -> str:
        """The selected text with the marks of lists.

        Blocks are parted by an empty line, items by none, and pieces of one text as they were.
        """
        texts: list[str] = []
        leaves = self._leaves() if self._covered else []
        index = leaves.index(self._covered[0]) if self._covered else 0
        before = leaves[index - 1] if index else None
        for leaf in self._covered:
            texts.append(copied_before(before, leaf, is_first=not texts))
            texts.append(leaf.selected_text())
            before = leaf
        return "".join(texts)

    def _place_at(self, place: QPoint) -> Place | None:
        """The block at this height, else the nearest one; they lie below each other."""
        leaves = self._leaves()
        if not leaves:
            return None
        low, high = 0, len(leaves) - 1
        while low < high:
            middle = (low + high) // 2
            bottom = leaves[middle].mapToGlobal(QPoint(0, leaves[middle].height())).y()
            if place.y() < bottom:
                high = middle
            else:
                low = middle + 1
        while low + 1 < len(leaves) and (following := leaves[low + 1]).goes_on_at(
            following.mapFromGlobal(place)
        ):
            low += 1
        return leaves[low], leaves[low].position_at(leaves[low].mapFromGlobal(place))

    def _cover(self, start: Place, end: Place) -> None:
        leaves = list(self._leaves())
        if start[0] not in leaves or end[0] not in leaves:
            self.clear()
            return
        first, last = (leaves.index(start[0]), start[1]), (leaves.index(end[0]), end[1])
        first, last = min(first, last), max(first, last)
        covered: list[Leaf] = []
        for index in range(first[0], last[0] + 1):
            leaf = leaves[index]
            begin = first[1] if index == first[0] else 0
            finish = last[1] if index == last[0] else leaf.text_length()
            if begin < finish:
                leaf.set_selection((begin, finish))
                covered.append(leaf)
        for leaf in set(self._covered).difference(covered):
            leaf.set_selection(None)
        self._covered = covered
