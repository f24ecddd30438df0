import pytest

from app.search import fold, holds, index_query, needs_plain_search, snippet


@pytest.mark.parametrize("text", ["plane", "plane trees", "Été2 naïve", "деревья"])
def test_words_of_spaced_scripts_use_the_index(text: str) -> None:
    assert not needs_plain_search(text)


@pytest.mark.parametrize(
    "text",
    ["ab", "plane ab", "C++", "a.b.c", "“quoted”", "梧桐树", "カタカナ", "한국어", "ภาษาไทย"],
)
def test_short_words_signs_and_unspaced_scripts_do_not(text: str) -> None:
    assert needs_plain_search(text)


def test_index_query_asks_for_all_words_from_their_beginning() -> None:
    assert index_query(["plane", "tree"]) == '"plane"* "tree"*'


def test_holds_ignores_case_and_spelling_of_accents() -> None:
    assert holds("Ein Straßenbaum", "STRASSEN")
    assert holds("e\u0301te\u0301", "ÉTÉ")
    assert not holds("plane", "tree")
    assert fold("É") == fold("e\u0301")


def test_snippet_of_a_short_text_is_the_text_on_one_line() -> None:
    assert snippet("Plane\n trees", ["tree"]) == "Plane trees"


def test_snippet_of_a_long_text_is_around_the_first_match() -> None:
    text = "a" * 100 + " Bark " + "z" * 200
    found = snippet(text, ["nothing", "bark"])
    assert found == "…" + text[89:209] + "…"
    assert "Bark" in found


def test_snippet_without_a_match_is_the_beginning() -> None:
    assert snippet("x" * 200, ["bark"]) == "x" * 120 + "…"
