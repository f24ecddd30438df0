import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.emoji import EmojiFilter

FAMILY = "👨‍👩‍👧‍👦"


def stream(parts: list[str]) -> list[str]:
    emoji_filter = EmojiFilter()
    return [*(emoji_filter.push(part) for part in parts), emoji_filter.finish()]


@pytest.mark.parametrize("emoji", [FAMILY, "🇫🇷", "👍🏽", "👩🏿‍🚀", "❤️", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "😀"])
def test_emoji_in_code_points_appears_at_once(emoji):
    assert stream(["a", *emoji, " b"]) == ["a", *[""] * len(emoji), f"{emoji} b", ""]


def test_emoji_at_the_end_is_shown_by_finish():
    assert stream(["ok ", *FAMILY]) == ["ok ", *[""] * len(FAMILY), FAMILY]


def test_second_emoji_releases_the_first():
    assert stream(["😀", "😀", "."]) == ["", "😀", "😀.", ""]


@pytest.mark.parametrize("text", ["e", "é", "中", "नि", "5", "#", "\u200d", "e\u0301", "\n", "한"])
def test_anything_but_emoji_is_shown_at_once(text):
    assert stream([text]) == [text, ""]


def test_endless_emoji_is_not_held_for_ever():
    joined = "\u200d".join("👩" * 400)
    parts = stream(list(joined))
    assert "".join(parts) == joined
    silent = 0
    longest = 0
    for part in parts:
        silent = 0 if part else silent + 1
        longest = max(longest, silent)
    assert longest <= 64


@given(st.lists(st.text(alphabet=[*FAMILY, "a", " ", "🇫", "🇷", "é", "\u0301", "🏽"], max_size=4)))
def test_joined_text_is_the_text(parts):
    assert "".join(stream(parts)) == "".join(parts)
