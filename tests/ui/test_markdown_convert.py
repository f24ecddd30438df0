"""Blocks and runs, one construct at a time."""

import pytest

from ui.markdown.blocks import Block, Code, Frame, Paragraph, Rule, Run, Table, plain_text
from ui.markdown.convert import BULLET
from ui.markdown.inline import is_openable
from ui.markdown.stream import MarkdownStream


def parse(text: str) -> list[Block]:
    stream = MarkdownStream()
    stream.feed(text)
    stream.finish()
    return stream.blocks


def shown_text(blocks: list[Block]) -> str:
    return "".join(plain_text(block.runs) for block in blocks if isinstance(block, Paragraph))


def runs(text: str) -> tuple[Run, ...]:
    (block,) = parse(text)
    assert isinstance(block, Paragraph)
    return block.runs


def test_inline_looks_nest():
    assert runs("a *b **c*** ~~d~~ `e`") == (
        Run("a "),
        Run("b ", italic=True),
        Run("c", italic=True, bold=True),
        Run(" "),
        Run("d", strike=True),
        Run(" "),
        Run("e", code=True),
    )


def test_inline_line_breaks_of_both_kinds_are_line_feeds():
    assert runs("a\nb  \nc") == (Run("a\nb\nc"),)


def test_inline_entities_and_escapes_are_characters():
    assert runs("&amp; \\* &copy;") == (Run("& * ©"),)


@pytest.mark.parametrize("address", ["http://e.org", "https://e.org/a%20b"])
def test_inline_link_that_opens_something_is_a_link(address):
    assert runs(f"[*t* u]({address})") == (
        Run("t", italic=True, link=address),
        Run(" u", link=address),
    )


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("[a](javascript:alert(1))", "[a](javascript:alert(1))"),
        ("[a](JaVaScRiPt:x)", "[a](JaVaScRiPt:x)"),
        ("[a](data:text/html;base64,x)", "[a](data:text/html;base64,x)"),
        ("[a](file:///etc/passwd)", "[a](file:///etc/passwd)"),
        ("[a](vbscript:x)", "[a](vbscript:x)"),
        ("[a](other/page.md)", "a (other/page.md)"),
        ("[a](ftp://e.org)", "a (ftp://e.org)"),
        ("[a](mailto:a@e.org)", "a (mailto:a@e.org)"),
        ("<a@e.org>", "a@e.org"),
        ("<ftp://e.org>", "ftp://e.org"),
        ("[a]()", "a"),
        ("<img src=http://e.org/x.png>", "<img src=http://e.org/x.png>"),
        ("<script>x</script>", "<script>x</script>"),
        ("![](data:image/png;base64,x)", "data:image/png;base64,x"),
        ("![cat](/etc/cat.png)", "cat (/etc/cat.png)"),
    ],
)
def test_inline_anything_that_must_not_be_reached_is_text(source, shown):
    found = runs(source)
    assert plain_text(found) == shown
    assert all(run.link is None for run in found)


def test_inline_picture_is_a_link_to_its_address():
    assert runs("![cat](http://e.org/c.png)") == (Run("cat", link="http://e.org/c.png"),)
    assert runs("![](http://e.org/c.png)") == (
        Run("http://e.org/c.png", link="http://e.org/c.png"),
    )


def test_is_openable_ignores_case():
    assert is_openable("HTTPS://E.ORG")
    assert not is_openable("//e.org")


def test_list_leaves_carry_their_containers():
    outer, inner = Frame("item", 0, BULLET), Frame("item", 1, "1.")
    assert parse("- a\n  1. b\n\n     c\n- d") == [
        Paragraph((Run("a"),), (outer,)),
        Paragraph((Run("b"),), (outer, inner)),
        Paragraph((Run("c"),), (outer, inner)),
        Paragraph((Run("d"),), (Frame("item", 4, BULLET),)),
    ]


def test_list_with_parenthesis_keeps_its_kind_of_marker():
    assert [block.frames[0].marker for block in parse("4) a\n5) b")] == ["4)", "5)"]


def test_quote_holds_all_kinds_of_leaves():
    quote = Frame("quote", 0)
    assert parse("> ```py\n> x\n> ```\n> ---\n>\n>     indented") == [
        Code("x", "py", frames=(quote,)),
        Rule((quote,)),
        Code("indented", frames=(quote,)),
    ]


def test_empty_item_and_quote_still_have_a_leaf():
    assert parse("-\n- a\n\n>") == [
        Paragraph((), (Frame("item", 0, BULLET),)),
        Paragraph((Run("a"),), (Frame("item", 1, BULLET),)),
        Paragraph((), (Frame("quote", 3),)),
    ]


def test_table_cells_follow_the_header():
    (table,) = parse("| *a* | b | c |\n|:-:|---|--:|\n| 1 |\n| 1 | 2 | 3 | 4 |")
    assert table == Table(
        header=((Run("a", italic=True),), (Run("b"),), (Run("c"),)),
        rows=(((Run("1"),), (), ()), ((Run("1"),), (Run("2"),), (Run("3"),))),
        aligns=("center", "left", "right"),
    )


@pytest.mark.parametrize("opener", ["> ", "- ", "1. ", "> - "])
def test_nesting_without_end_is_shown_as_its_source(opener):
    text = opener * 2000 + "deep"
    blocks = parse(text)
    assert blocks[-1].frames == ()
    assert "deep" in shown_text(blocks)


@pytest.mark.parametrize("text", ["[" * 900, "*" * 3000, "`" * 3000, "![" * 500, "<" * 3000])
def test_openers_without_end_stay_text(text):
    assert shown_text(parse("x" + text)) == "x" + text


def test_nul_is_the_replacement_character_everywhere():
    assert parse("a\0b\n\n```\n\0\n```") == [Paragraph((Run("a\ufffdb"),)), Code("\ufffd")]
