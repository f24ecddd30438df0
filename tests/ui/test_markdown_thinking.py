import pytest

from ui.markdown.thinking import ThinkingSplitter


def split(pieces: list[str]) -> tuple[str, str]:
    splitter = ThinkingSplitter()
    parts = [splitter.push(piece) for piece in pieces] + [splitter.finish()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>a</think>b", ("a", "b")),
        ("\n<think>\na < b </thin </think>\n\nb", ("\na < b </thin ", "\n\nb")),
        ("hello <think>a</think>", ("", "hello <think>a</think>")),
        ("<think>never closed", ("never closed", "")),
        ("<think>cut in the closer</thi", ("cut in the closer</thi", "")),
        ("<thin", ("", "<thin")),
        ("<thinking>", ("", "<thinking>")),
        ("  ", ("", "  ")),
        ("", ("", "")),
        ("<think></think>", ("", "")),
        ("</think>a", ("", "</think>a")),
    ],
)
def test_splitter_gives_the_same_for_one_piece_and_for_characters(text, parts):
    assert split([text]) == parts
    assert split(list(text)) == parts


def test_splitter_knows_where_it_is():
    splitter = ThinkingSplitter()
    assert not splitter.has_thought
    splitter.push("<think>a")
    assert (splitter.has_thought, splitter.is_thinking) == (True, True)
    splitter.push("</think>")
    assert (splitter.has_thought, splitter.is_thinking) == (True, False)
