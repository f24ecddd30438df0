"""Where a piece of a long text goes on: in the line that the piece before has begun. GUI thread; no widgets."""

from dataclasses import dataclass

from PySide6.QtCore import QTextBoundaryFinder
from PySide6.QtGui import QTextLine


@dataclass(frozen=True, slots=True)
class Joint:
    """The end of the piece before.

    Attributes:
        x: Where its last line ends.
        is_in_word: Whether that is inside a word, too long for a line.
        is_right_to_left: Whether both pieces run leftwards.
    """

    x: float
    is_in_word: bool
    is_right_to_left: bool

    @property
    def left(self) -> float:
        """Left edge of what is left of the line."""
        return 0.0 if self.is_right_to_left else self.x

    def fill(self, line: QTextLine, text: str, width: float) -> bool:
        """Fill what is left of the line.

        Args:
            line: The first one of the piece, without a width.
            text: The piece.
            width: Of whole lines.

        Returns:
            False if nothing fits without cutting its first word: then it begins with a line of its own.
        """
        room = self.x if self.is_right_to_left else width - self.x
        if room < 1:
            return False
        line.setLineWidth(room)
        if line.naturalTextWidth() > room:
            return False
        if self.is_in_word:
            return True
        places = QTextBoundaryFinder(QTextBoundaryFinder.BoundaryType.Line, text)
        places.setPosition(line.textStart() + line.textLength())
        return places.isAtBoundary()


def is_inside_word(before: str, after: str) -> bool:
    """Whether no line may end between the two."""
    around = before[-1:] + after[:1]
    places = QTextBoundaryFinder(QTextBoundaryFinder.BoundaryType.Line, around)
    places.setPosition(1)
    return len(around) == 2 and not places.isAtBoundary()
