import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.text.stop_strings import StopStringFilter


def run(stops: list[str], deltas: list[str]) -> tuple[list[str], bool]:
    """What is shown after each delta and at the end, and whether a stop string was hit."""
    stop_filter = StopStringFilter(stops)
    shown = []
    for delta in deltas:
        text, is_hit = stop_filter.push(delta)
        shown.append(text)
        if is_hit:
            return [*shown, stop_filter.finish()], True
    return [*shown, stop_filter.finish()], False


def test_stop_string_in_one_delta_ends_before_it() -> None:
    assert run(["END"], ["abcENDdef"]) == (["abc", ""], True)


def test_stop_string_across_deltas_shows_none_of_it() -> None:
    assert run(["END"], ["abcE", "N", "Dxyz"]) == (["abc", "", "", ""], True)


def test_false_start_comes_out_as_soon_as_it_is_none() -> None:
    assert run(["END"], ["aE", "NE", "x"]) == (["a", "EN", "Ex", ""], False)


def test_only_the_possible_beginning_is_held_back() -> None:
    assert run(["\n\nUser:"], ["Hello.\n"]) == (["Hello.", "\n"], False)


def test_finish_releases_what_was_held() -> None:
    assert run(["<stop>"], ["a<sto"]) == (["a", "<sto"], False)


def test_stop_string_complete_first_wins() -> None:
    assert run(["abcd", "bc"], ["xabcd"]) == (["xa", ""], True)
    assert run(["abcd", "bc"], list("xabcd"))[0] == ["x", "", "", "a", ""]


def test_longer_of_two_complete_at_once_wins() -> None:
    assert run(["c", "abc"], ["xabc"]) == (["x", ""], True)


def test_no_stop_strings_let_everything_through() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], False)
    assert run([""], ["a"]) == (["a", ""], False)


def test_push_after_hit_shows_nothing() -> None:
    stop_filter = StopStringFilter(["x"])
    assert stop_filter.push("ax") == ("a", True)
    assert stop_filter.push("more") == ("", True)


@pytest.mark.parametrize("text", ["aaa", "aabaab"])
def test_repeating_stop_string_is_found(text: str) -> None:
    shown, is_hit = run([text], list("aa" + text))
    assert is_hit
    assert text not in "".join(shown)


def reference(stops: list[str], text: str) -> tuple[str, bool]:
    """Cut before the stop string that is complete first, character by character."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@settings(max_examples=500, deadline=None)
@given(
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
    deltas=st.lists(st.text("abc", max_size=4), max_size=12),
)
def test_any_cuts_give_the_reference(stops: list[str], deltas: list[str]) -> None:
    shown, is_hit = run(stops, deltas)
    assert ("".join(shown), is_hit) == reference(stops, "".join(deltas))


@settings(max_examples=300, deadline=None)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    deltas=st.lists(st.text("ab", max_size=3), max_size=8),
)
def test_held_text_is_always_a_beginning_of_a_stop_string(
    stops: list[str], deltas: list[str]
) -> None:
    stop_filter = StopStringFilter(stops)
    given_text = shown = ""
    for delta in deltas:
        text, is_hit = stop_filter.push(delta)
        given_text, shown = given_text + delta, shown + text
        if is_hit:
            return
        held = given_text[len(shown) :]
        assert given_text == shown + held
        assert not held or any(s.startswith(held) and s != held for s in stops)
