"""Colours for code: Pygments in small slices, so that no block of code holds up the window.

No Qt here. Positions are characters of one line. Pygments can only start at the beginning, so a
block that grows is coloured from the last line where a new top-level statement seems to start; once
it is closed, everything is coloured once more from the top.
"""

import time
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from ui.replies.reply_lexers import LEXERS, LexerShelf

if TYPE_CHECKING:
    from pygments.token import _TokenType

MAX_HIGHLIGHTED_CHARS = 200_000
_MAX_LINE_CHARS = 4_000
"""Longer lines are data, not code: they stay plain, and no regular expression runs over them."""

LineColors = tuple[tuple[int, int, str], ...]
"""(start, end, field of CodePalette) for one line."""

_ROLES = (
    ("Comment", "comment"),
    ("Keyword.Type", "type"),
    ("Keyword.Constant", "keyword"),
    ("Keyword", "keyword"),
    ("Name.Function", "name"),
    ("Name.Tag", "name"),
    ("Name.Attribute", "type"),
    ("Name.Class", "type"),
    ("Name.Exception", "type"),
    ("Name.Builtin", "type"),
    ("Name.Decorator", "name"),
    ("Literal.Number", "number"),
    ("Literal.String", "string"),
    ("Operator.Word", "keyword"),
    ("Operator", "operator"),
    ("Punctuation", "operator"),
)
"""Token types of Pygments, and the field of CodePalette; the first that fits counts."""


@lru_cache(maxsize=512)
def _role_of(token_type: "_TokenType") -> str | None:
    name = ".".join(token_type) + "."
    return next((role for kind, role in _ROLES if name.startswith(f"{kind}.")), None)


class Highlighter:
    """Colours of one block of code, line by line.

    Args:
        language: As written; its lexer may come later.
        shelf: Where lexers come from.

    Attributes:
        colors: By line; shorter than the text while work is left.
    """

    def __init__(self, language: str, shelf: LexerShelf = LEXERS) -> None:
        self.colors: list[LineColors] = []
        self._written = language
        self._shelf = shelf
        self._language = shelf.find(language)
        self._pass: Iterator[tuple[int, LineColors]] | None = None
        self._restart_line = 0
        self._num_lines_done = 0

    @property
    def name(self) -> str:
        """The language for people: "py" gives "Python"; as written if unknown, or until known."""
        return self._language.name

    @property
    def is_waiting(self) -> bool:
        """Whether the lexer is on its way: `find_lexer` will tell when it is there."""
        return not self._language.is_loaded

    @property
    def is_plain(self) -> bool:
        """Whether the language is not known, so that nothing is ever coloured."""
        return self._language.is_loaded and self._language.lexer is None

    def find_lexer(self) -> bool:
        """Ask for the lexer again; whether all is known now."""
        if self.is_waiting:
            self._language = self._shelf.find(self._written)
        return not self.is_waiting

    def start(self, lines: list[str], *, is_closed: bool) -> bool:
        """Begin to colour `lines` if there is anything new; whether `work` has something to do."""
        if self._language.lexer is None or self._pass is not None:
            return self._pass is not None
        if sum(map(len, lines)) > MAX_HIGHLIGHTED_CHARS:
            return False
        first = 0 if is_closed else self._restart_line
        if len(lines) <= self._num_lines_done and not is_closed:
            return False
        self._pass = self._colored(lines[first:], first)
        return True

    def work(self, deadline: float) -> list[int]:
        """Colour until `deadline` (perf_counter); the lines whose colours changed."""
        changed: list[int] = []
        while self._pass is not None:
            step = next(self._pass, None)
            if step is None:
                self._pass = None
                break
            line, colors = step
            self._num_lines_done = max(self._num_lines_done, line + 1)
            if line < len(self.colors) and self.colors[line] == colors:
                continue
            self.colors += [()] * (line + 1 - len(self.colors))
            self.colors[line] = colors
            changed.append(line)
            if time.perf_counter() > deadline:
                break
        return changed

    @property
    def is_working(self) -> bool:
        """Whether `work` has something to do."""
        return self._pass is not None

    def _colored(self, lines: list[str], first: int) -> Iterator[tuple[int, LineColors]]:
        """Yield every line with its colours; the lexer runs only as far as it is asked."""
        lexer = self._language.lexer
        if lexer is None:
            return
        text = "\n".join(line if len(line) <= _MAX_LINE_CHARS else "" for line in lines)
        starts = [0]
        for line in text.split("\n"):
            starts.append(starts[-1] + len(line) + 1)
        number = 0
        spans: list[tuple[int, int, str]] = []
        before: _TokenType | None = None
        # Many lexers know a comment only by the end of its line.
        for index, token_type, value in lexer.get_tokens_unprocessed(f"{text}\n"):
            role = _role_of(token_type)
            position, end = index, index + len(value)
            while number < len(lines) and end > starts[number + 1]:  # it reaches into later lines
                _add(
                    spans, position - starts[number], starts[number + 1] - 1 - starts[number], role
                )
                yield first + number, tuple(spans)
                spans = []
                number += 1
                position = starts[number]
                self._note_restart(lines, number, first, token_type if role else before)
            if number < len(lines):
                stop = min(end, starts[number + 1] - 1)
                _add(spans, position - starts[number], stop - starts[number], role)
            before = token_type
        for rest in range(number, len(lines)):
            yield first + rest, tuple(spans)
            spans = []

    def _note_restart(
        self, lines: list[str], number: int, first: int, before: "_TokenType | None"
    ) -> None:
        """A line at the left edge after an empty one, not within a string or comment."""
        if number < 1 or number >= len(lines) or lines[number - 1].strip():
            return
        is_inside = before is not None and _role_of(before) in ("string", "comment")
        if not is_inside and lines[number][:1].isalpha():
            self._restart_line = max(self._restart_line, first + number)


def _add(spans: list[tuple[int, int, str]], start: int, end: int, role: str | None) -> None:
    """Note a coloured piece of the current line; neighbours of one role become one piece."""
    if role is None or start >= end:
        return
    if spans and spans[-1][1] == start and spans[-1][2] == role:
        start = spans.pop()[0]
    spans.append((start, end, role))
