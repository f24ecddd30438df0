"""Markdown that grows must end up as the same blocks as Markdown that is there at once."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ui.markdown.blocks import Block, Code, Frame, Heading, Paragraph, Rule, Run, plain_text
from ui.markdown.convert import Converter
from ui.markdown.stream import MarkdownStream, parser


def parse(text: str) -> list[Block]:
    stream = MarkdownStream()
    stream.feed(text)
    stream.finish()
    return stream.blocks


def parse_in_pieces(text: str, cuts: list[int]) -> list[Block]:
    stream = MarkdownStream()
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in pairwise(edges):
        stream.feed(text[start:end])
    stream.finish()
    return stream.blocks


def texts(blocks: list[Block]) -> list[str]:
    """The text of each paragraph."""
    return [plain_text(block.runs) for block in blocks if isinstance(block, Paragraph)]


def para(text: str, *frames: Frame) -> Paragraph:
    return Paragraph((Run(text),), frames)


LINES = st.sampled_from(
    [
        "",
        "",
        "word",
        "two words",
        "# head",
        "## head ##",
        "#",
        "- item",
        "- ",
        "* star",
        "  - nested",
        "   - three",
        "    - four",
        "  continued",
        "1. one",
        "2. two",
        "7) seven",
        "   1. inner",
        "> quote",
        "> - in quote",
        ">",
        "```python",
        "```",
        "~~~",
        "    code",
        "\tcode",
        "---",
        "===",
        "***",
        "| a | b |",
        "|---|--:|",
        "| 1 | 2 |",
        "a | b",
        "--|--",
        "**bold** `code` *it*",
        "[x](http://e.org)",
        "<b>html</b>",
        "<!-- c -->",
        "trailing  ",
        "back\\",
        "&amp; &#0;",
        "\u202eabc",
        "[ref]: http://ref.org",
        "see [ref] now",
        "[ref]:",
        "'title",
    ]
)
TEXTS = st.lists(LINES, max_size=14).map("\n".join)


@given(TEXTS, st.lists(st.integers(0, 160), max_size=12))
@settings(max_examples=200, deadline=None)
def test_stream_cut_anywhere_gives_the_blocks_of_one_piece(text, cuts):
    assert parse_in_pieces(text, cuts) == parse(text)


@given(st.text(alphabet="ab-*_`~#>|:[]()!\\ \n\t1.&<\r\0", max_size=60))
@settings(max_examples=150, deadline=None)
def test_stream_fed_by_characters_gives_the_blocks_of_one_piece(text):
    assert parse_in_pieces(text, list(range(len(text)))) == parse(text)


@given(TEXTS, st.lists(st.integers(0, 160), max_size=12))
@settings(max_examples=200, deadline=None)
def test_stream_cut_anywhere_gives_the_blocks_of_the_parser_itself(text, cuts):
    env: dict[str, object] = {}
    parser().parse(text, env)
    tokens = parser().parse(text, env)  # a second time, with every definition known
    units = Converter(text.split("\n")).convert(tokens)
    whole = [block for unit in units for block in unit.blocks]
    assert parse_in_pieces(text, cuts) == whole


# ---------------------------------------------------------------- what becomes final, and when


def test_stream_open_paragraph_is_not_final():
    stream = MarkdownStream()
    stream.feed("one\n\ntwo")
    assert stream.blocks == [para("one"), para("two")]
    assert stream.num_final == 0  # "two" may still become part of anything
    stream.feed("\n")
    assert stream.num_final == 1


def test_stream_final_blocks_keep_their_identity():
    stream = MarkdownStream()
    stream.feed("one\n\n- a\n- b\n- c\n")
    first, item = stream.blocks[:2]
    stream.feed("\n\n```\ncode\n```\n\nend\n")
    stream.finish()
    assert stream.blocks[0] is first
    assert stream.blocks[1] is item


def test_stream_open_blocks_keep_their_identity_while_equal():
    stream = MarkdownStream()
    stream.feed("- a\n  - b\n  - c")
    before = stream.blocks
    stream.feed(" more")
    after = stream.blocks
    assert (after[0] is before[0], after[1] is before[1]) == (True, True)
    assert after[2] == para("c more", Frame("item", 0, "•"), Frame("item", 2, "•"))


def test_stream_ordered_list_goes_on_counting_after_final_items():
    stream = MarkdownStream()
    for number in (3, 1, 1, 1):
        stream.feed(f"{number}. text\n")
    stream.finish()
    assert [block.frames[0].marker for block in stream.blocks] == ["3.", "4.", "5.", "6."]


def test_stream_crlf_cut_between_the_two_is_one_line_end():
    assert parse_in_pieces("a\r\n\r\nb\r", [2, 3]) == [para("a"), para("b")]


def test_stream_link_defined_at_the_end_is_found():
    stream = MarkdownStream()
    stream.feed("see [it]\n\nmore\n\n[it]: http://e.org\n")
    stream.finish()
    assert stream.blocks == [
        Paragraph((Run("see "), Run("it", link="http://e.org"))),
        para("more"),
    ]
    assert stream.num_final == 2


@pytest.mark.parametrize("is_cut", [False, True])
def test_stream_that_was_cut_shows_no_open_marks(is_cut):
    stream = MarkdownStream()
    stream.feed("**a**\n\nb **bold te")
    stream.finish(is_cut=is_cut)
    bold = [Run("b "), Run("bold te", bold=True)]
    end = Paragraph(tuple(bold)) if is_cut else para("b **bold te")
    assert stream.blocks == [Paragraph((Run("a", bold=True),)), end]
    nothing = MarkdownStream()
    nothing.finish(is_cut=is_cut)
    assert nothing.blocks == []


def test_stream_without_text_has_no_blocks():
    stream = MarkdownStream()
    stream.feed("")
    stream.finish()
    assert stream.blocks == []


# ---------------------------------------------------------------- no flicker while it grows


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("para\n-", [para("para")]),  # else a heading for one frame
        ("para\n\n1.", [para("para")]),
        ("para\n\n`", [para("para")]),
        ("| a | b |\n|--", []),  # else pipes as text before the table
        ("```py\nx\n``", [Code("x", "py", is_closed=False)]),
        ("```py\nx", [Code("x", "py", is_closed=False)]),
        ("```py\n", [Code("", "py", is_closed=False)]),
    ],
)
def test_stream_undecided_end_is_held_back(text, shown):
    stream = MarkdownStream()
    stream.feed(text)
    assert stream.blocks == shown


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("para\n\n-", [para("para"), para("", Frame("item", 2, "•"))]),
        ("| a |", [para("| a |")]),
        ("```py\nx\n``", [Code("x\n``", "py")]),
        ("``", [para("``")]),
    ],
)
def test_stream_undecided_end_is_shown_at_the_finish(text, blocks):
    for block in blocks:
        if isinstance(block, Paragraph) and block.runs == (Run(""),):
            blocks = [*blocks[:-1], Paragraph((), block.frames)]
    assert parse(text) == blocks


# ---------------------------------------------------------------- kinds of blocks


def test_stream_fence_with_tildes_and_info_keeps_only_the_language():
    assert parse("~~~ c++ title=x\nint a;\n~~~~\nend") == [Code("int a;", "c++"), para("end")]


def test_stream_backticks_in_the_info_are_no_fence():
    assert parse("``` a`b\ntext") == [para("``` a`b\ntext")]


def test_stream_rule_and_headings():
    assert parse("# one\n\n###### six\n\ntwo\n---\n\n---") == [
        Heading(1, (Run("one"),)),
        Heading(6, (Run("six"),)),
        Heading(2, (Run("two"),)),
        Rule(),
    ]
