"""Parsing what grows costs the same per character, however long and odd the text is."""

import pytest

from tests.ui.test_markdown_stream import para, parse, parse_in_pieces, texts
from ui.markdown.blocks import Code, Frame, Paragraph, Run, Table
from ui.markdown.stream import (
    FINAL_ROWS,
    MAX_CONTAINER_CHARS,
    MAX_PARAGRAPH_CHARS,
    MAX_PARAGRAPH_LINES,
    MarkdownStream,
)


def parsed_chars_per_char(text: str, step: int) -> float:
    stream = MarkdownStream()
    for start in range(0, len(text), step):
        stream.feed(text[start : start + step])
    stream.finish()
    return stream.num_parsed_chars / len(text)


@pytest.mark.parametrize(
    "unit",
    [
        "A sentence of a paragraph. " * 8 + "\n\n",
        "- an item of a list with `code`\n",
        "12. an item of a numbered list\n",
        "> a quote\n\n",
        "text\n```python\nfor x in range(10):\n    print(x)\n```\n",
    ],
)
def test_stream_work_per_character_does_not_grow_with_the_text(unit):
    short = parsed_chars_per_char(unit * 10, 8)
    long = parsed_chars_per_char(unit * 80, 8)
    assert long < short * 1.2


def test_stream_open_fence_is_not_parsed_again():
    stream = MarkdownStream()
    stream.feed("```\n")
    before = stream.num_parsed_chars
    for _ in range(500):
        stream.feed("line of code\n")
    assert stream.num_parsed_chars == before
    assert stream.blocks == [Code("\n".join(["line of code"] * 500), is_closed=False)]


def test_stream_table_of_a_thousand_rows_is_one_table_in_bounded_work():
    rows = "".join(f"| {n} | x |\n" for n in range(1000))
    text = f"intro\n\n| a | b |\n|---|--:|\n{rows}\nend"
    stream = MarkdownStream()
    for start in range(0, len(text), 60):
        stream.feed(text[start : start + 60])
    stream.finish()
    intro, table, end = stream.blocks
    assert (intro, end) == (para("intro"), para("end"))
    assert isinstance(table, Table)
    assert len(table.rows) == 1000
    assert table.rows[999] == ((Run("999"),), (Run("x"),))
    assert table.aligns == ("left", "right")
    assert stream.num_parsed_chars < len(text) * 2 * FINAL_ROWS
    assert stream.blocks == parse(text)


def test_stream_paragraph_without_end_is_cut_at_a_word():
    text = "word " * 2000
    blocks = parse(text)
    assert [type(block) for block in blocks] == [Paragraph, Paragraph, Paragraph]
    assert max(map(len, texts(blocks))) <= MAX_PARAGRAPH_CHARS
    assert " ".join(texts(blocks)) == text.strip()


@pytest.mark.parametrize(
    "end", [". ", '!" ', "? ", "\u2026) ", "\u3002", "\u3002\u201d", "\u3002\u300d"]
)
def test_stream_paragraph_without_end_is_cut_behind_a_sentence_where_one_ends(end):
    text = "".join(f"One more word and number {number}{end}" for number in range(300))
    blocks = parse(text)
    assert [type(block) for block in blocks] == [Paragraph] * len(blocks)
    assert len(blocks) > 1
    first = texts(blocks)[0]
    assert MAX_PARAGRAPH_CHARS - 100 < len(first) <= MAX_PARAGRAPH_CHARS
    assert first.endswith(end.strip())
    assert texts(blocks)[1].startswith("One more word")


@pytest.mark.parametrize("end", [" word", ". Yes", "\nlonger" * 2 + " line" * 9])
@pytest.mark.parametrize("num_chars", [MAX_PARAGRAPH_CHARS + extra for extra in (-7, -1, 0, 1, 9)])
def test_stream_long_paragraph_is_cut_alike_however_it_comes(end, num_chars):
    text = "before\n\n" + (end * num_chars)[1 : num_chars + 1] + "\n\nnext\n\n- and\n"
    whole = parse(text)
    assert parse_in_pieces(text, list(range(num_chars - 40, len(text)))) == whole
    assert parse_in_pieces(text, list(range(0, len(text), 300))) == whole
    again = parse(f"{text}\n[it]: http://e.org\n")  # a second pass has all at once
    assert again == whole
    assert len(whole) == 4 + (num_chars > MAX_PARAGRAPH_CHARS)


def test_stream_paragraph_of_many_lines_is_cut_alike_however_it_comes():
    for num_lines in (MAX_PARAGRAPH_LINES, MAX_PARAGRAPH_LINES + 1, MAX_PARAGRAPH_LINES + 2):
        text = "ab\n" * num_lines + "\nnext\n\n" + "more\n" * 9
        whole = parse(text)
        assert parse_in_pieces(text, list(range(len(text)))) == whole
        assert len(whole) == 3 + (num_lines > MAX_PARAGRAPH_LINES + 1)


@pytest.mark.parametrize("num_items", [4, 6])
def test_stream_long_item_is_cut_alike_however_it_comes(num_items):
    line = "  - " + "word " * 3200 + "\n"
    text = "- head\n" + line * num_items + "\nnext\n"
    assert parse_in_pieces(text, list(range(0, len(text), 900))) == parse(text)


def test_stream_paragraph_without_spaces_is_cut_anywhere():
    text = "x" * (2 * MAX_PARAGRAPH_CHARS + 5)
    lengths = [len(shown) for shown in texts(parse(text))]
    assert lengths == [MAX_PARAGRAPH_CHARS, MAX_PARAGRAPH_CHARS, 5]


def test_stream_long_item_is_cut_at_a_line():
    text = "- " + "\n  line of the item" * 4000
    blocks = parse(text)
    assert len(blocks) > 1
    shown = "\n".join(texts(blocks))
    assert shown.count("line of the item") == 4000


def test_stream_long_line_of_an_item_is_not_cut():
    text = "- " + "x" * (MAX_CONTAINER_CHARS + 10)
    assert parse_in_pieces(text, [10]) == [
        para("x" * (MAX_CONTAINER_CHARS + 10), Frame("item", 0, "•"))
    ]


def test_stream_million_characters_of_one_paragraph_are_done_in_linear_work():
    text = "lorem ipsum " * 84_000
    stream = MarkdownStream()
    stream.feed(text)
    stream.finish()
    assert sum(map(len, texts(stream.blocks))) >= len(text) - 500
    assert stream.num_parsed_chars < 5 * len(text)


@pytest.mark.parametrize("ending", [" |\n", "\n"])
@pytest.mark.parametrize("before", ["", "Sizes:\n\n"])
@pytest.mark.parametrize("piece_chars", [1, 2, 3, 7])
def test_long_table_in_small_pieces_never_loses_a_row(
    ending: str, before: str, piece_chars: int
) -> None:
    rows = "".join(f"| {number} | {number * 10}{ending}" for number in range(100))
    text = f"{before}| A | B |\n| --- | --- |\n{rows}"
    stream = MarkdownStream()
    most = 0
    for start in range(0, len(text), piece_chars):
        stream.feed(text[start : start + piece_chars])
        tables = [block for block in stream.blocks if isinstance(block, Table)]
        num_rows = sum(len(table.rows) for table in tables)
        assert num_rows >= most - 1  # one that has just begun may not be decided yet
        most = max(most, num_rows)
    stream.finish()
    (table,) = [block for block in stream.blocks if isinstance(block, Table)]
    assert [len(row) for row in table.rows] == [2] * 100


def test_marks_after_the_place_of_a_cut_are_kept() -> None:
    for text in (
        "One word. **Bold** and `code`. *Slanted*, [1] too. " * 200,
        "你好。**粗体**。" * 900,
    ):
        blocks = parse(text)
        assert len(blocks) > 1
        shown = "".join(run.text for block in blocks for run in block.runs)  # type: ignore[union-attr]  # paragraphs
        assert not {"*", "`", "\\"}.intersection(shown)
        assert parse_in_pieces(text, list(range(7, len(text), 7))) == blocks


@pytest.mark.parametrize(
    "text",
    [
        "1 + 2 " * 2000,
        "a - b " * 2000,
        "see " + "`" * 9000 + " end",
        "see " + "#" * 9000 + " end",
        "see " + ">" * 9000 + " end",
        "in 7. or 8) " * 1000,
        "One. - two. + three. # four. > five. " * 300,
    ],
    ids=["plus", "minus", "backticks", "hashes", "quotes", "numbers", "sentences"],
)
def test_parts_of_a_long_line_begin_no_other_blocks(text: str) -> None:
    blocks = parse(text)
    assert len(blocks) > 1
    assert all(isinstance(block, Paragraph) for block in blocks)
    shown = "".join(run.text for block in blocks for run in block.runs)  # type: ignore[union-attr]  # paragraphs
    assert shown.replace(" ", "") == text.replace(" ", "")
    assert parse_in_pieces(text, list(range(7, len(text), 7))) == blocks
