"""Block tokens of markdown-it to units of blocks. Pure Python; any thread.

A unit is what a growing text can be cut at: a block of the top level, or one item of a list of the
top level. Everything before the last unit is final once that unit's first line is complete.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ui.markdown.blocks import Align, Block, Code, Frame, Heading, Paragraph, Rule, Run, Table
from ui.markdown.inline import runs_of

if TYPE_CHECKING:
    from markdown_it.token import Token

MAX_NESTING = 32
"""Containers deeper than this are shown as their source: markdown-it would drop their content."""

BULLET = "•"


@dataclass(slots=True)
class Unit:
    """Blocks that become final together.

    Attributes:
        line: First line, counted from the start of the text that was parsed.
        kind: Type of the token that opened it.
        ordinal: Number of a list item that continues a list; None for all else.
    """

    line: int
    kind: str
    ordinal: int | None = None
    blocks: list[Block] = field(default_factory=list)
    is_too_deep: bool = False


@dataclass(slots=True)
class _OpenList:
    is_ordered: bool
    ordinal: int
    is_first: bool = True


@dataclass(slots=True)
class _OpenLeaf:
    kind: str = ""
    tag: str = ""


@dataclass(slots=True)
class _OpenTable:
    cells: list[tuple[Run, ...]] = field(default_factory=list)
    rows: list[tuple[tuple[Run, ...], ...]] = field(default_factory=list)
    aligns: list[Align] = field(default_factory=list)


class Converter:
    """Walks the tokens once; no recursion.

    Args:
        lines: The source that was parsed.
        base_line: Line of the whole text on which it starts.
        first_ordinal: Number of the first item if the text starts within a list.
    """

    def __init__(
        self, lines: Sequence[str], *, base_line: int = 0, first_ordinal: int | None = None
    ) -> None:
        self.units: list[Unit] = []
        self._lines = lines
        self._base_line = base_line
        self._first_ordinal = first_ordinal
        self._frames: list[Frame] = []
        self._counts: list[int] = []  # blocks in the unit when each frame was opened
        self._lists: list[_OpenList] = []
        self._table = _OpenTable()
        self._leaf = _OpenLeaf()

    def convert(self, tokens: "Sequence[Token]") -> list[Unit]:
        """The units of `tokens`, in order."""
        for token in tokens:
            self._start_unit(token)
            handle = _HANDLERS.get(token.type)
            if handle is not None:
                handle(self, token)
        ends = [*(unit.line for unit in self.units[1:]), len(self._lines)]
        for unit, end in zip(self.units, ends, strict=False):
            if unit.is_too_deep:
                source = "\n".join(self._lines[unit.line : end]).strip("\n")
                unit.blocks = [Paragraph((Run(source),))]
        return self.units

    def _start_unit(self, token: "Token") -> None:
        is_item = token.type == "list_item_open" and token.level == 1 and not self._frames
        is_top = token.level == 0 and token.nesting >= 0 and token.type not in _LIST_OPENERS
        if (is_item or is_top) and token.map is not None:
            ordinal = None
            if is_item and not self._lists[-1].is_first:
                ordinal = self._lists[-1].ordinal
            self.units.append(Unit(token.map[0], token.type, ordinal))
        elif token.level >= MAX_NESTING - 1:
            self.units[-1].is_too_deep = True

    def _emit(self, block: Block) -> None:
        self.units[-1].blocks.append(block)

    def _open_list(self, token: "Token") -> None:
        ordinal = int(token.attrs.get("start", 1))
        is_resumed = not self.units and self._first_ordinal is not None
        if is_resumed and self._first_ordinal is not None:
            ordinal = self._first_ordinal
        self._lists.append(
            _OpenList(token.type == "ordered_list_open", ordinal, is_first=not is_resumed)
        )

    def _close_list(self, _token: "Token") -> None:
        self._lists.pop()

    def _open_item(self, token: "Token") -> None:
        innermost = self._lists[-1]
        marker = f"{innermost.ordinal}{token.markup}" if innermost.is_ordered else BULLET
        innermost.ordinal += 1
        innermost.is_first = False
        self._push(Frame("item", self._line_of(token), marker))

    def _open_quote(self, token: "Token") -> None:
        self._push(Frame("quote", self._line_of(token)))

    def _push(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._counts.append(len(self.units[-1].blocks))

    def _close_frame(self, _token: "Token") -> None:
        if len(self.units[-1].blocks) == self._counts.pop():
            self._emit(Paragraph((), tuple(self._frames)))  # an empty item still has a marker
        self._frames.pop()

    def _line_of(self, token: "Token") -> int:
        return self._base_line + (token.map[0] if token.map else 0)

    def _open_leaf(self, token: "Token") -> None:
        self._leaf = _OpenLeaf(token.type, token.tag)

    def _inline(self, token: "Token") -> None:
        runs = runs_of(token.children or [])
        frames = tuple(self._frames)
        if self._leaf.kind == "heading_open":
            self._emit(Heading(int(self._leaf.tag[1:]), runs, frames))
        elif self._leaf.kind == "paragraph_open":
            self._emit(Paragraph(runs, frames))
        else:
            self._table.cells.append(runs)

    def _code(self, token: "Token") -> None:
        language = token.info.split(maxsplit=1)[0] if token.info.strip() else ""
        text = token.content.removesuffix("\n")
        self._emit(Code(text, language, frames=tuple(self._frames)))

    def _rule(self, _token: "Token") -> None:
        self._emit(Rule(tuple(self._frames)))

    def _open_table(self, token: "Token") -> None:
        self._table = _OpenTable()

    def _open_head_cell(self, token: "Token") -> None:
        self._leaf = _OpenLeaf(token.type, token.tag)
        style = str(token.attrs.get("style", ""))
        self._table.aligns.append(_ALIGNS.get(style.removeprefix("text-align:"), "left"))

    def _close_row(self, _token: "Token") -> None:
        self._table.rows.append(tuple(self._table.cells))
        self._table.cells = []

    def _close_table(self, _token: "Token") -> None:
        header, *rows = self._table.rows
        self._emit(Table(header, tuple(rows), tuple(self._table.aligns), tuple(self._frames)))


_LIST_OPENERS = ("bullet_list_open", "ordered_list_open")
_ALIGNS: dict[str, Align] = {"left": "left", "center": "center", "right": "right"}
_HANDLERS = {
    "bullet_list_open": Converter._open_list,
    "ordered_list_open": Converter._open_list,
    "bullet_list_close": Converter._close_list,
    "ordered_list_close": Converter._close_list,
    "list_item_open": Converter._open_item,
    "list_item_close": Converter._close_frame,
    "blockquote_open": Converter._open_quote,
    "blockquote_close": Converter._close_frame,
    "paragraph_open": Converter._open_leaf,
    "heading_open": Converter._open_leaf,
    "inline": Converter._inline,
    "fence": Converter._code,
    "code_block": Converter._code,
    "hr": Converter._rule,
    "table_open": Converter._open_table,
    "th_open": Converter._open_head_cell,
    "td_open": Converter._open_leaf,
    "tr_close": Converter._close_row,
    "table_close": Converter._close_table,
}
