"""The lexers of Pygments: each is loaded on a thread beside the window when it is first wanted.

Importing Pygments, its list of languages and the regular expressions of one language takes 10 to
80 ms, far more than the window may pause for. So whoever wants a lexer asks again and again, and
shows plain text until it is there. No Qt here.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pygments.lexer import Lexer

logger = logging.getLogger(__name__)

_PLAIN = "Text only"


@dataclass(frozen=True, slots=True)
class Language:
    """What is known of a language.

    Attributes:
        name: For people.
        lexer: None if its code stays plain, or while the lexer is on its way.
        is_loaded: Whether this is all that there will be.
    """

    name: str
    lexer: "Lexer | None" = None
    is_loaded: bool = True


class LexerShelf:
    """Lexers by language. One thread asks; another, which starts at the first request, loads.

    What it holds is bounded by what Pygments knows: a language that it does not know leaves nothing.
    """

    def __init__(self) -> None:
        self._names: Mapping[str, str] | None = None  # by alias; None before they are loaded
        self._lexers: dict[str, Lexer | None] = {}  # by name
        self._wanted: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._on_their_way: set[str] = set()
        self._thread: threading.Thread | None = None

    def find(self, language: str) -> Language:
        """What is known of the language of this alias, as written in a fence. Loads nothing itself.

        Asking again is cheap; the first time it makes the other thread load the lexer.
        """
        if not language:
            return Language("Text")
        alias = language.lower()
        names = self._names
        if names is None:
            self._request(alias)
            return Language(language, is_loaded=False)
        name = names.get(alias)
        if name is None or name == _PLAIN:
            return Language(name or language)
        if name not in self._lexers:
            self._request(alias)
            return Language(name, is_loaded=False)
        return Language(name, self._lexers[name])

    def load(self, language: str) -> None:
        """Load what `find` needs for this language, on the thread that calls. Not the GUI thread."""
        if self._names is None:
            self._names = _names_by_alias()
        name = self._names.get(language.lower())
        if name is not None and name not in self._lexers:
            self._lexers[name] = _make_lexer(name)

    def run_beside(self, work: Callable[[], object]) -> None:
        """Run this on the thread that loads, after what was asked for before. The asking thread."""
        self._wanted.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="lexers", daemon=True)
            self._thread.start()

    def _request(self, alias: str) -> None:
        if alias not in self._on_their_way:
            self._on_their_way.add(alias)
            self.run_beside(partial(self._load_requested, alias))

    def _load_requested(self, alias: str) -> None:
        self.load(alias)
        self._on_their_way.discard(alias)

    def _serve(self) -> None:
        while True:
            work = self._wanted.get()
            try:
                work()
            except Exception:
                logger.exception("Something could not be loaded beside the window")


def _names_by_alias() -> Mapping[str, str]:
    """Alias to lexer name, of Pygments' own lexers: plugins would be searched for on disk."""
    found: dict[str, str] = {}
    try:
        from pygments.lexers import get_all_lexers
    except ImportError:
        logger.exception("Code stays without colours")
        return found
    for name, aliases, _patterns, _types in get_all_lexers(plugins=False):
        for alias in aliases:
            found.setdefault(alias.lower(), name)
    return found


def _make_lexer(name: str) -> "Lexer | None":
    """The lexer of this name, with nothing left to load; None if there is none that works.

    Whatever goes wrong in one of 500 modules that are not ours, the thread goes on and code is plain.
    """
    try:
        from pygments.lexers import find_lexer_class

        lexer_class = find_lexer_class(name)
        if lexer_class is None:
            return None
        # Without the code blocks inside Markdown, whose lexers would be looked for while it works.
        lexer = lexer_class(ensurenl=False, stripnl=False, handlecodeblocks=False)
        _load_inner(lexer)
    except Exception:
        logger.exception("Code of one language stays without colours")
        return None
    return lexer


def _load_inner(lexer: "Lexer") -> None:
    """Load the lexers that this one hands parts of a text to, such as CSS inside HTML.

    Pygments would make them in the middle of a text. They are found where its `using` keeps them:
    in the closures of the actions of a lexer's rules, and in the attributes of one that delegates.
    """
    from pygments.lexer import Lexer

    seen: set[object] = set()
    rest: list[object] = [lexer]
    while rest:
        item = rest.pop()
        if isinstance(item, Lexer):
            if type(item) not in seen:
                seen.add(type(item))
                rest += [inner for inner in vars(item).values() if isinstance(inner, Lexer)]
                rest += _actions(item)
        elif isinstance(item, tuple):
            rest += item
        elif isinstance(item, type) and issubclass(item, Lexer):
            if item not in seen:
                rest.append(item())  # compiles its rules, once for all
        elif isinstance(item, FunctionType) and item not in seen:
            seen.add(item)
            rest += [cell.cell_contents for cell in item.__closure__ or ()]


def _actions(lexer: "Lexer") -> list[object]:
    """What the rules of a lexer do with what they match: types of tokens, or functions."""
    rules: Mapping[str, list[tuple[object, ...]]] = getattr(lexer, "_tokens", {})
    return [rule[1] for state in rules.values() for rule in state]


LEXERS = LexerShelf()
"""That of the program; the GUI thread asks."""
