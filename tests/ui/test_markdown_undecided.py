"""What an open end looks like before it is decided."""

import pytest

from ui.markdown.blocks import Code, Heading, Paragraph, Run, Table
from ui.markdown.stream import MarkdownStream
from ui.markdown.undecided import with_marks_closed


def open_runs(text: str) -> tuple[Run, ...]:
    stream = MarkdownStream()
    stream.feed(text)
    block = stream.blocks[-1]
    assert isinstance(block, (Paragraph, Heading))
    return block.runs


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("after **40", (Run("after "), Run("40", bold=True))),
        ("after **", (Run("after "),)),
        ("**40 months", (Run("40 months", bold=True),)),
        ("(**a", (Run("("), Run("a", bold=True))),
        ("use `72 / ", (Run("use "), Run("72 /", code=True))),
        ("use `a ** b", (Run("use "), Run("a ** b", code=True))),
        ("a **b `c", (Run("a "), Run("b `c", bold=True))),
        ("see [it](http://e.or", (Run("see it"),)),
        ("*a **b", (Run("*a "), Run("b", bold=True))),
        ("## a **b", (Run("a "), Run("b", bold=True))),
        ("**done** and", (Run("done", bold=True), Run(" and"))),
    ],
)
def test_open_marks_look_as_if_closed(text, runs):
    assert open_runs(text) == runs


@pytest.mark.parametrize("text", ["2**3 is 8", "a ** b", "[a] (b", "``a", "2 * 3"])
def test_characters_that_open_nothing_stay(text):
    assert open_runs("x " + text) == (Run("x " + text),)


@pytest.mark.parametrize(
    "block",
    [
        Paragraph(()),
        Paragraph((Run("a `b", link="http://e"),)),
        Paragraph((Run("**a", code=True),)),
        Code("**a"),
        Table(((),), (), ("left",)),
    ],
)
def test_blocks_without_open_marks_stay(block):
    assert with_marks_closed(block) is block


def test_finished_text_shows_its_characters():
    stream = MarkdownStream()
    stream.feed("after **40")
    stream.finish()
    assert stream.blocks == [Paragraph((Run("after **40"),))]
