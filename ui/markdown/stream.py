"""Markdown that grows: only the open end is parsed again. Pure Python; any thread, one owner.

    source   |------ final blocks ------|-- open unit --|- line without end -|
             ^0                         ^ start of the tail                   ^ end

After each delta the tail is parsed. Each unit (see `convert`) that is followed by another unit
whose first line is complete is final: nothing that comes later changes it, except definitions of
links, for which the whole text is parsed once more at the end. Three kinds of open units may become
long, so they have ways of their own: the lines of a fence are only appended, the rows of a table
become final in groups, and anything else is cut at a length that no real paragraph has.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ui.markdown.blocks import Block, Code, Run, Table
from ui.markdown.convert import MAX_NESTING, Converter, Unit
from ui.markdown.fence import Fence, open_fence
from ui.markdown.undecided import with_marks_closed, without_undecided

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

MAX_PARAGRAPH_CHARS = 4_000
SENTENCE_FROM = 2_000
"""Behind so many characters it is cut at the end of a sentence, if one ends there."""
MAX_PARAGRAPH_LINES = 150
MAX_CONTAINER_CHARS = 64_000
MAX_OPEN_BRACKETS = 60
"""With more of them unclosed, links are not looked for: that takes time in their square."""
SLICE_CHARS = 4_000
FINAL_ROWS = 32
"""So many rows of an open table become final together."""
# What follows is known for a bit, and would begin no block of its own: what is cut off begins a line.
_NO_BLOCK = r"(?=\S[^\n]{3})(?!#{1,6} |>|[-+*] |[-_*]{3}|```|~~~|\d+[.)]|\[[^\]]*\]:)"
_SENTENCE_END = re.compile(
    "(?:[.!?\u2026][\"'\u201d\u2019)\\]*_]* |[\u3002\uff01\uff1f][\u201d\u2019\u300d\u300f\uff09]*)"
    + _NO_BLOCK
)
_WORD_END = re.compile(" " + _NO_BLOCK)
_BLOCK_MARKS = frozenset("#>*+-_=`~|")


@lru_cache(maxsize=2)
def parser(*, finds_links: bool = True) -> "MarkdownIt":
    """The parser; made when first needed, because the window is painted before."""
    from markdown_it import MarkdownIt  # 30 ms

    options = {"html": False, "linkify": False, "maxNesting": MAX_NESTING}
    made = MarkdownIt("commonmark", options).enable(["table", "strikethrough"])
    return made if finds_links else made.disable(["link", "image"])


@dataclass(slots=True)
class _LongTable:
    """A table with final rows: its two head lines stand before each further parse."""

    head: str
    rows: list[tuple[tuple[Run, ...], ...]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _LongUnit:
    """A unit that is too long, and where the tail is to be cut."""

    index: int
    end: int


class MarkdownStream:
    """The blocks of a text that grows.

    Attributes:
        num_final: So many blocks from the start will never change again.
        num_parsed_chars: Work done so far, for tests and measurements.
    """

    def __init__(self, references: Mapping[str, object] | None = None) -> None:
        self.num_final = 0
        self.num_parsed_chars = 0
        self._final: list[Block] = []
        self._open: list[Block] = []
        self._open_before: list[Block] = []
        self._source: list[str] = []
        self._tail = ""
        self._held = ""
        self._line = 0
        self._ordinal: int | None = None
        self._fence: Fence | None = None
        self._table: _LongTable | None = None
        self._references: dict[str, object] = dict(references or {})
        self._is_second_pass = references is not None

    @property
    def blocks(self) -> list[Block]:
        """All blocks so far. Final ones keep their identity, open ones too while equal."""
        return self._final + self._open

    def feed(self, text: str) -> None:
        """Append `text`, however long: the work grows with its length only."""
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix("\r") if self._held else text
        text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
        for start in range(0, len(text), SLICE_CHARS):
            self._append(text[start : start + SLICE_CHARS])
            self._advance(is_end=False)

    def finish(self, *, is_cut: bool = False) -> None:
        """No more text comes: everything becomes final.

        Args:
            is_cut: More was to come, so what is open at the end is no mistake of the writer.
        """
        self._append("\n" if self._held else "")
        self._held = ""
        self._advance(is_end=True)
        if self._references and not self._is_second_pass:
            self._parse_again()
        if is_cut:
            self._final[-1:] = [with_marks_closed(block) for block in self._final[-1:]]
        self._source = []

    def _append(self, text: str) -> None:
        self._tail += text
        if not self._is_second_pass:
            self._source.append(text)

    def _parse_again(self) -> None:
        """Links may be defined after their use: parse once more with all definitions known."""
        again = MarkdownStream(self._references)
        again.feed("".join(self._source))
        again.finish()
        self.num_parsed_chars += again.num_parsed_chars
        self._final = _with_known(again.blocks, self._final)
        self.num_final = len(self._final)

    def _advance(self, *, is_end: bool) -> None:
        self._open_before = self._open
        self._open = []
        while self._step(is_end=is_end):
            pass
        self.num_final = len(self._final)
        self._open = _with_known(self._open, self._open_before)

    def _step(self, *, is_end: bool) -> bool:
        """Make the first part of the tail final, or show the rest as open; whether to go on."""
        if self._fence is None and self._table is None:
            self._skip_blank_lines()
            self._enter_fence()
        if self._fence is not None:
            return self._step_fence(self._fence, is_end=is_end)
        return self._step_units(is_end=is_end)

    def _skip_blank_lines(self) -> None:
        while (end := self._tail.find("\n")) >= 0 and not self._tail[:end].strip(" \t"):
            self._drop(end + 1, num_lines=1)

    def _drop(self, num_chars: int, *, num_lines: int) -> None:
        self._tail = self._tail[num_chars:]
        self._line += num_lines

    # ------------------------------------------------------------ fences

    def _enter_fence(self) -> None:
        opened = open_fence(self._tail)
        if opened is not None:
            self._fence, num_chars = opened
            self._ordinal = None
            self._drop(num_chars, num_lines=1)

    def _step_fence(self, fence: Fence, *, is_end: bool) -> bool:
        lines = self._tail.split("\n")
        for index, line in enumerate(lines if is_end else lines[:-1]):
            if fence.closing.match(line):
                fence.text += "".join(f"{before}\n" for before in lines[:index])
                self._finish_fence(fence)
                self._drop(sum(map(len, lines[: index + 1])) + index + 1, num_lines=index + 1)
                return True
        partial = lines[-1]
        complete = self._tail.removesuffix(partial)
        fence.text += complete
        self._drop(len(complete), num_lines=len(lines) - 1)
        if is_end:
            fence.text += partial
            self._finish_fence(fence)
            self._tail = ""
            return False
        shown = "" if fence.partial.match(partial) else partial
        self._open = [Code((fence.text + shown).removesuffix("\n"), fence.language, False)]
        return False

    def _finish_fence(self, fence: Fence) -> None:
        self._add_final([Code(fence.text.removesuffix("\n"), fence.language)])
        self._fence = None

    def _add_final(self, blocks: list[Block]) -> None:
        self._final += _with_known(blocks, self._open_before)
        self._open_before = self._open_before[len(blocks) :]

    # ------------------------------------------------------------ everything else

    def _step_units(self, *, is_end: bool) -> bool:
        if not self._tail.strip() and self._table is None:
            return False
        head = self._table.head if self._table else ""
        text = head + self._tail
        if not is_end:
            text = without_undecided(text)
            if len(text) < len(head):  # of a long table, whose head was decided long ago
                text = head
        lines = text.split("\n")
        num_complete = len(lines) if is_end else self._tail.count("\n") + head.count("\n")
        units, references = self._parse(text, lines, num_head_lines=head.count("\n"))
        self._merge_table(units)
        long = None if is_end else self._first_long(units, lines, head)
        if long is not None and long.index == 0:
            self._cut_at(long.end)
            return True
        starts = [i for i, unit in enumerate(units) if unit.line < num_complete]
        num_done = len(units) if is_end else (starts[-1] if starts else 0)
        if long is not None:
            num_done = long.index  # then it is the first one
        if is_end or num_done:
            end = num_complete if is_end else units[num_done].line
            self._finish_units(units[:num_done], lines, end, references)
            if num_done < len(units):
                self._ordinal = units[num_done].ordinal
            return not is_end
        if self._cut_table(units, lines, num_complete):
            return True
        self._open = [block for unit in units for block in unit.blocks]
        self._open[-1:] = [with_marks_closed(block) for block in self._open[-1:]]
        return False

    def _parse(
        self, text: str, lines: list[str], *, num_head_lines: int
    ) -> tuple[list[Unit], dict[str, object]]:
        self.num_parsed_chars += len(text)
        env: dict[str, object] = {"references": dict(self._references)}
        num_open = text.count("[") - text.count("]")
        tokens = parser(finds_links=num_open <= MAX_OPEN_BRACKETS).parse(text, env)
        base_line = self._line - num_head_lines
        converter = Converter(lines, base_line=base_line, first_ordinal=self._ordinal)
        found = env["references"]
        return converter.convert(tokens), found if isinstance(found, dict) else {}

    def _merge_table(self, units: list[Unit]) -> None:
        """Put the rows that are final already before the rows of this parse."""
        first = units[0].blocks[0] if self._table is not None else None
        if self._table is not None and isinstance(first, Table):
            units[0].blocks[0] = replace(first, rows=(*self._table.rows, *first.rows))

    def _finish_units(
        self, units: list[Unit], lines: list[str], end: int, references: dict[str, object]
    ) -> None:
        head = self._table.head if self._table else ""
        num_head_lines = head.count("\n")
        self._add_final([block for unit in units for block in unit.blocks])
        num_chars = sum(map(len, lines[num_head_lines:end])) + end - num_head_lines
        self._drop(num_chars, num_lines=end - num_head_lines)
        self._table = None
        self._ordinal = None
        for label, found in references.items():
            if isinstance(found, dict) and found["map"][1] <= end:
                self._references.setdefault(label, found)

    # ------------------------------------------------------------ long open units

    def _first_long(self, units: list[Unit], lines: list[str], head: str) -> _LongUnit | None:
        """The first unit that is too long, which bounds the work on one that stays open.

        Only its own text counts, not how much of what follows is known: or the blocks would depend on
        the pieces in which the text came.
        """
        line, start = head.count("\n"), 0  # of the tail
        for index, unit in enumerate(units):
            if unit.kind == "table_open":
                continue
            start += sum(map(len, lines[line : unit.line])) + unit.line - line
            line = unit.line
            is_last = index == len(units) - 1
            text = self._tail[start:] if is_last else "\n".join(lines[line : units[index + 1].line])
            end = _long_end(unit.kind, text.rstrip("\n"))
            if end:
                return _LongUnit(index, start + end)
        return None

    def _cut_at(self, end: int) -> None:
        before, rest = self._tail[end - 1], self._tail[end:]
        if rest[:1] in _BLOCK_MARKS and (before.isalnum() or before in _BLOCK_MARKS):
            rest = f"\\{rest}"  # cut within a word, which begins nothing
        self._tail = self._tail[:end]
        self._step_units(is_end=True)
        self._tail = rest

    def _cut_table(self, units: list[Unit], lines: list[str], num_complete: int) -> bool:
        if not units:
            return False
        unit = units[0]
        if not unit.blocks or not isinstance(table := unit.blocks[0], Table):
            return False
        num_known = len(self._table.rows) if self._table else 0
        first_row = unit.line + 2
        if num_complete - first_row < FINAL_ROWS:
            return False
        head = "".join(f"{line}\n" for line in lines[unit.line : first_row])
        num_head_lines = self._table.head.count("\n") if self._table else 0
        rows = lines[first_row : first_row + FINAL_ROWS]
        self._table = _LongTable(head, list(table.rows[: num_known + FINAL_ROWS]))
        num_lines = first_row - num_head_lines + FINAL_ROWS
        num_chars = sum(map(len, rows)) + FINAL_ROWS
        if num_head_lines == 0:
            num_chars += sum(map(len, lines[:first_row])) + first_row
        self._drop(num_chars, num_lines=num_lines)
        return True


def _with_known(blocks: list[Block], known: list[Block]) -> list[Block]:
    """`blocks`, but the object of `known` at the same place wherever it is equal."""
    pairs = zip(blocks, known, strict=False)
    same = [old if old == new else new for new, old in pairs]
    return same + blocks[len(same) :]


def _long_end(kind: str, text: str) -> int:
    """Where to cut a unit; 0 if it is not too long."""
    if kind == "paragraph_open":
        return _paragraph_end(text)
    return text.rfind("\n", 0, MAX_CONTAINER_CHARS) + 1 if len(text) > MAX_CONTAINER_CHARS else 0


def _paragraph_end(text: str) -> int:
    """Where to cut a paragraph that is too long: at a line, a sentence, a word, or anywhere; 0 if not."""
    if text.count("\n", 0, MAX_PARAGRAPH_CHARS) > MAX_PARAGRAPH_LINES:
        lines = text.split("\n", MAX_PARAGRAPH_LINES)
        return len(text) - len(lines[-1])
    if len(text) <= MAX_PARAGRAPH_CHARS:
        return 0
    return (
        text.rfind("\n", 0, MAX_PARAGRAPH_CHARS) + 1
        or _last_end(_SENTENCE_END, text, SENTENCE_FROM)
        or _last_end(_WORD_END, text)
        or MAX_PARAGRAPH_CHARS
    )


def _last_end(pattern: re.Pattern[str], text: str, start: int = 0) -> int:
    ends = [found.end() for found in pattern.finditer(text, start, MAX_PARAGRAPH_CHARS)]
    return ends[-1] if ends else 0
