"""What Markdown becomes: a flat list of frozen block values. Pure Python; any thread.

Containers are not nested here. Every leaf carries the frames that it lies in, outermost first:

    - a            Paragraph("a", frames=(item 0,))
      > b          Paragraph("b", frames=(item 0, quote 1))
    - c            Paragraph("c", frames=(item 2,))

So each leaf can have its own widget, a finished list item never changes again while the list goes
on, and no depth of nesting leads to recursion.
"""

from dataclasses import dataclass
from typing import Literal

Align = Literal["left", "center", "right"]


@dataclass(frozen=True, slots=True)
class Run:
    """A piece of text with one look. A line break in `text` is a line feed.

    Attributes:
        link: Address that a click asks to open; None for plain text.
    """

    text: str
    bold: bool = False
    italic: bool = False
    strike: bool = False
    code: bool = False
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """One container around a leaf.

    Attributes:
        line: Line of the source on which the container starts: tells two neighbours apart.
        marker: Text of the item's marker: "•" or "12."; empty for a quote.
    """

    kind: Literal["item", "quote"]
    line: int
    marker: str = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text.

    Attributes:
        joint: What parts it from the block before where one text was cut into both: nothing, then it goes on
            in the same line, or a line feed. None for a paragraph of its own.
    """

    runs: tuple[Run, ...]
    frames: tuple[Frame, ...] = ()
    joint: Literal["", "\n"] | None = None


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; `level` runs from 1 to 6."""

    level: int
    runs: tuple[Run, ...]
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Code:
    """A code block.

    Attributes:
        text: The lines without the last line feed.
        language: First word after the fence, as written; may be empty.
        is_closed: False while the end of a fence has not come.
    """

    text: str
    language: str = ""
    is_closed: bool = True
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A table; every row has as many cells as the header."""

    header: tuple[tuple[Run, ...], ...]
    rows: tuple[tuple[tuple[Run, ...], ...], ...]
    aligns: tuple[Align, ...]
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A line across."""

    frames: tuple[Frame, ...] = ()


Block = Paragraph | Heading | Code | Table | Rule


def plain_text(runs: tuple[Run, ...]) -> str:
    """The characters of the runs, without their look."""
    return "".join(run.text for run in runs)
