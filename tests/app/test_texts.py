import pytest

from app.texts import is_blank, joined


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \u200b" * 1_000,
        " \n\t",
        "\0\0",
        "\x1b\x7f\x85",
        "\u200b\u200c\u200d",
        " \u2060 ",
        "\ufeff",
        "\u3000",
    ],
)
def test_text_of_which_nothing_can_be_seen_is_blank(text: str) -> None:
    assert is_blank(text)


@pytest.mark.parametrize(
    "text", [".", " \u200b" * 1_000 + "a", "\0a", "\u200b中", "👩\u200d👩", "\u0301", "\ue000"]
)
def test_text_with_anything_to_see_is_not_blank(text: str) -> None:
    assert not is_blank(text)


def test_what_is_joined_to_nothing_visible_stands_alone() -> None:
    assert joined("a", "b") == "a\n\nb"
    assert joined("\u200b", "b") == "b"
    assert joined("a", "\0") == "a"
