"""Lexers come from a thread of their own; until then code is plain."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pygments.lexers
import pytest
from pytestqt.qtbot import QtBot

from tests.ui.open_window import wait_for
from tests.ui.reply_helpers import NO_DEADLINE, collected, make_parent, make_theme
from ui.markdown.blocks import Code
from ui.replies import code_block
from ui.replies.code_block import CodeBlock
from ui.replies.reply_highlight import Highlighter
from ui.replies.reply_lexers import LexerShelf

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "def f():\n    return 1"


class HeldShelf(LexerShelf):
    """Nothing is loaded before the gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.loaders: list[threading.Thread] = []
        self.run_beside(partial(wait_for, self.gate))

    def load(self, language: str) -> None:
        self.loaders.append(threading.current_thread())
        super().load(language)


@pytest.fixture
def shelf() -> Iterator[HeldShelf]:
    made = HeldShelf()
    yield made
    made.gate.set()


@pytest.fixture
def block(qtbot: QtBot, shelf: HeldShelf, monkeypatch: pytest.MonkeyPatch) -> CodeBlock:
    monkeypatch.setattr(code_block, "Highlighter", partial(Highlighter, shelf=shelf))
    return CodeBlock(Code(SOURCE, "py"), make_theme(), make_parent(qtbot, 400, 300))


def test_highlighter_waits_for_its_lexer_and_then_colours(qtbot: QtBot, shelf: HeldShelf) -> None:
    highlighter = Highlighter("py", shelf)
    assert not highlighter.find_lexer()
    assert (highlighter.is_waiting, highlighter.is_plain, highlighter.name) == (True, False, "py")
    assert not highlighter.start(["x = 1"], is_closed=True)
    shelf.gate.set()
    qtbot.waitUntil(highlighter.find_lexer)
    assert (highlighter.is_waiting, highlighter.is_plain) == (False, False)
    assert highlighter.name == "Python"
    assert highlighter.start(["x = 1"], is_closed=True)
    assert highlighter.work(NO_DEADLINE) == [0]


def test_unknown_language_is_plain_once_the_languages_are_known(
    qtbot: QtBot, shelf: HeldShelf
) -> None:
    highlighter = Highlighter("no-such-language", shelf)
    assert highlighter.is_waiting
    shelf.gate.set()
    qtbot.waitUntil(highlighter.find_lexer)
    assert (highlighter.is_plain, highlighter.name) == (True, "no-such-language")
    assert Highlighter("another", shelf).is_plain  # no need to wait any more


def test_several_languages_come_from_one_thread(qtbot: QtBot, shelf: HeldShelf) -> None:
    highlighters = [Highlighter(language, shelf) for language in ("js", "sql", "rust", "py", "js")]
    shelf.gate.set()
    qtbot.waitUntil(lambda: all(one.find_lexer() for one in highlighters))
    names = [highlighter.name for highlighter in highlighters]
    assert names == ["JavaScript", "SQL", "Rust", "Python", "JavaScript"]
    assert [thread.daemon for thread in set(shelf.loaders)] == [True]
    assert len(shelf.loaders) == 4  # the same language is not asked for twice


def test_language_whose_lexer_cannot_be_made_is_plain_and_others_still_come(
    qtbot: QtBot, shelf: HeldShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = pygments.lexers.find_lexer_class

    def find(name: str) -> object:
        if name == "Ada":
            raise OSError("the file cannot be read")
        return make(name)

    monkeypatch.setattr(pygments.lexers, "find_lexer_class", find)
    ada, json = Highlighter("ada", shelf), Highlighter("json", shelf)
    shelf.gate.set()
    qtbot.waitUntil(lambda: ada.find_lexer() and json.find_lexer())
    assert (ada.is_plain, ada.name) == (True, "Ada")
    assert not json.is_plain


def test_work_that_fails_beside_the_window_does_not_end_the_thread(
    qtbot: QtBot, shelf: HeldShelf
) -> None:
    shelf.run_beside(partial(int, "none"))
    shelf.gate.set()
    qtbot.waitUntil(Highlighter("json", shelf).find_lexer)


def test_code_block_is_named_and_coloured_when_its_lexer_comes(
    qtbot: QtBot, shelf: HeldShelf, block: CodeBlock
) -> None:
    assert block.accessibleName() == "Code, py, 2 lines"
    qtbot.wait(100)  # it asks in vain
    assert block.is_highlighting
    assert block.highlighter.colors == []
    shelf.gate.set()
    qtbot.waitUntil(lambda: not block.is_highlighting)
    assert block.accessibleName() == "Code, Python, 2 lines"
    assert block.highlighter.colors[0][0] == (0, 3, "keyword")


def test_code_block_that_is_gone_before_its_lexer_comes_is_left_alone(
    qtbot: QtBot, shelf: HeldShelf, block: CodeBlock
) -> None:
    gone = collected(block.destroyed)
    block.deleteLater()
    qtbot.waitUntil(lambda: gone != [])
    shelf.gate.set()
    qtbot.waitUntil(lambda: shelf.find("py").is_loaded)


_FRESH = """
import sys, threading, time
threads = set()
class Watch:
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "pygments":
            threads.add(threading.current_thread().name)
sys.meta_path.insert(0, Watch())
from PySide6.QtWidgets import QApplication, QWidget
from ui.look.theme import Theme
from ui.markdown.blocks import Code
from ui.replies.code_block import CodeBlock
application, parent = QApplication([]), QWidget()
page = "<style>a { color: red }</style><script>var a = 1</script>"
blocks = [CodeBlock(Code(page, name), Theme(), parent) for name in ("py", "js", "html", "none")]
end = time.monotonic() + 30
while any(block.is_highlighting for block in blocks) and time.monotonic() < end:
    application.processEvents()
print(threads, [len(block.highlighter.colors) for block in blocks])
"""


def test_gui_thread_of_a_fresh_process_imports_nothing_of_pygments() -> None:
    result = subprocess.run(
        [sys.executable, "-c", _FRESH], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "{'lexers'} [1, 1, 1, 0]"


_INNER = """
import sys
from ui.replies.reply_lexers import LexerShelf
shelf = LexerShelf()
shelf.load("html")
from pygments.lexers.css import CssLexer
from pygments.lexers.javascript import JavascriptLexer
print("_tokens" in vars(CssLexer), "_tokens" in vars(JavascriptLexer))
"""


def test_lexer_comes_with_those_that_it_hands_parts_to() -> None:
    result = subprocess.run(
        [sys.executable, "-c", _INNER], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["True", "True"]
