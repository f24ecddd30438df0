"""Loads what the first reply would wait for, before there is one."""

from ui.markdown.stream import parser
from ui.replies.reply_lexers import LEXERS

_LIKELY_LANGUAGE = "python"


def warm_up() -> None:
    """Load the parser, the languages and Python's lexer. Takes some 100 ms; not the GUI thread."""
    parser()
    LEXERS.load(_LIKELY_LANGUAGE)


def warm_up_beside() -> None:
    """The same on a thread beside the window. GUI thread, which gets it as soon as it is painted."""
    LEXERS.run_beside(parser)
    LEXERS.find(_LIKELY_LANGUAGE)
