"""What was said before in a chat is guessed again, from the right place."""

import random
import sys

import pytest

from inference.config import MAX_DRAFT_TOKENS
from inference.speculation.base import Proposal
from inference.speculation.ngram import SOURCES, NgramProposer


def guess(token_ids: list[int], num_tokens: int = 3) -> Proposal | None:
    return NgramProposer(token_ids).propose(num_tokens)


def accepted_by_step(prompt: list[int], reply: list[int]) -> list[tuple[str, int]]:
    """Source and right tokens of each step's guess while a reply comes; "" where nothing was guessed."""
    proposer = NgramProposer(prompt)
    steps, done = [], 0
    while done < len(reply):
        proposal = proposer.propose(MAX_DRAFT_TOKENS)
        num_right = 0
        if proposal:
            pairs = zip(proposal.token_ids, reply[done:], strict=False)
            matches = [guessed == came for guessed, came in pairs]
            num_right = matches.index(False) if False in matches else len(matches)
        steps.append((proposal.source if proposal else "", num_right))
        proposer.extend(reply[done : done + num_right + 1])
        done += num_right + 1
    return steps


@pytest.mark.parametrize("token_ids", [[], [7], [7, 8], [1, 2, 3, 4], [1, 2, 9, 2]])
def test_end_that_was_never_said_gives_no_guess(token_ids: list[int]) -> None:
    assert guess(token_ids) is None


def test_what_followed_two_tokens_is_guessed() -> None:
    assert guess([5, 1, 2, 30, 31, 32, 33, 1, 2]) == Proposal((30, 31, 32), "ngram 2")


def test_latest_of_equal_matches_is_taken() -> None:
    assert guess([8, 1, 2, 30, 9, 1, 2, 40, 41, 42, 7, 1, 2]) == Proposal((40, 41, 42), "ngram 2")


def test_longer_match_is_taken_before_a_later_one() -> None:
    assert guess([6, 1, 2, 30, 31, 32, 9, 1, 2, 40, 6, 1, 2]) == Proposal((30, 31, 32), "ngram 3-4")


@pytest.mark.parametrize(
    ("length", "source"),
    [
        (2, "ngram 2"),
        (3, "ngram 3-4"),
        (4, "ngram 3-4"),
        (5, "ngram 5-8"),
        (8, "ngram 5-8"),
        (9, "ngram 9+"),
        (40, "ngram 9+"),
    ],
)
def test_source_tells_how_long_the_match_is(length: int, source: str) -> None:
    said = list(range(100, 100 + length))
    assert guess([*said, 7, 8, 9, 1, *said]) == Proposal((7, 8, 9), source)
    assert source in SOURCES


@pytest.mark.parametrize(("num_tokens", "expected"), [(-1, 0), (0, 0), (1, 1), (16, 16), (99, 16)])
def test_guess_has_at_most_what_is_wanted_and_allowed(num_tokens: int, expected: int) -> None:
    proposal = guess([1, 2, *range(10, 60), 1, 2], num_tokens)
    assert len(proposal.token_ids if proposal else ()) == expected


def test_one_token_that_repeats_is_guessed_to_go_on() -> None:
    assert guess([3, 7, 7, 7, 7], 6) == Proposal((7,) * 6, "ngram 3-4")


def test_lines_that_repeat_are_guessed_to_go_on() -> None:
    proposal = guess([1, 2, 3, 4, 5] * 4 + [1, 2], 12)
    assert proposal == Proposal((3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4), "ngram 9+")


def test_guess_ends_with_the_first_stop_id() -> None:
    proposer = NgramProposer([1, 2, 3, 99, 4, 98, 5, 1, 2], stop_ids=[98, 99])
    assert proposer.propose(8) == Proposal((3, 99), "ngram 2")


def test_extending_in_parts_is_as_extending_at_once() -> None:
    draw = random.Random(5)
    token_ids = draw.choices(range(6), k=300)
    in_parts = NgramProposer(token_ids[:7])
    for token_id in token_ids[7:]:
        in_parts.extend([token_id])
    assert in_parts.propose(9) == NgramProposer(token_ids).propose(9)


def test_proposing_twice_gives_the_same() -> None:
    draw = random.Random(6)
    token_ids = draw.choices(range(8), k=400)
    proposer = NgramProposer(token_ids[:200])
    for token_id in token_ids[200:]:
        assert proposer.propose(5) == proposer.propose(5)
        proposer.extend([token_id])


def test_guesses_are_what_followed_an_earlier_match_of_that_length() -> None:
    """Against a search through everything, in random text that repeats much."""
    draw = random.Random(7)
    token_ids = draw.choices(range(4), k=150)
    for end in range(2, len(token_ids)):
        known = token_ids[:end]
        longest = max(
            (length for length in range(1, 17) for at in range(length, end)
             if end >= length and known[at - length : at] == known[-length:]),
            default=0,
        )  # fmt: skip
        proposal = guess(known, 1)
        if longest < 2:
            assert proposal is None
            continue
        at_end = [*known, *(proposal.token_ids if proposal else ())][-longest - 1 :]
        assert any(known[at : at + longest + 1] == at_end for at in range(end - longest))


# ------------------------------------------------------------------------------ copying


def test_copy_keeps_its_place_though_parts_were_said_again_later() -> None:
    """Twenty tokens stand in the text twice; the copy of the first place goes on as the first place does."""
    same = list(range(50, 70))
    text = [*range(100, 120), *same, *range(120, 140), *same, *range(140, 160)]
    steps = accepted_by_step([*text, 1], text)
    assert steps[:2] == [("", 0), ("", 0)]
    assert sum(num_right + 1 for _, num_right in steps) >= len(text)
    assert len(steps) == 2 + -(-(len(text) - 2) // 17)


def test_copy_keeps_its_place_behind_words_that_stand_nearly_everywhere() -> None:
    often = [token_id for other in range(100, 180) for token_id in (1, 2, other)]
    proposer = NgramProposer([9, 8, 1, 2, 50, *often, 9, 8])
    assert proposer.propose(1) == Proposal((1,), "ngram 2")
    proposer.extend([1, 2])
    assert proposer.propose(1) == Proposal((50,), "ngram 3-4")


@pytest.mark.parametrize(
    ("replacement", "expected"),
    [
        ([7], [("ngram resumed", 16)]),  # one token for another: guessed at once
        ([7, 8], [("ngram resumed", 0), ("ngram resumed", 16)]),  # two for one: at the second try
        ([7, 140], [("ngram resumed", 0), ("ngram near", 16)]),  # one more
        ([], [("ngram near", 16)]),  # one fewer
    ],
)
def test_copy_is_taken_up_again_behind_a_changed_word(
    replacement: list[int], expected: list[tuple[str, int]]
) -> None:
    text = list(range(100, 180))
    reply = [*text[:40], *replacement, *text[41:]]
    steps = accepted_by_step([*text, 1], reply)
    left = next(i for i, (source, num_right) in enumerate(steps) if source and num_right < 16)
    assert steps[left + 1 : left + 1 + len(expected)] == expected


def test_copy_that_was_left_for_long_is_given_up() -> None:
    text = list(range(100, 140))
    proposer = NgramProposer([*text, 1, *text[:10]])
    assert proposer.propose(1) == Proposal((110,), "ngram 9+")
    proposer.extend([500, 501, 502])
    assert proposer.propose(1) == Proposal((111,), "ngram resumed")
    proposer.extend([503])
    assert proposer.propose(1) is None


@pytest.mark.parametrize(
    ("num_other", "expected"), [(15, Proposal((121,), "ngram near")), (16, None)]
)
def test_neighbourhood_of_a_copy_is_searched_for_a_while(
    num_other: int, expected: Proposal | None
) -> None:
    text = list(range(100, 140))
    proposer = NgramProposer([*text, 1, *text[:10]])
    assert proposer.propose(1) == Proposal((110,), "ngram 9+")
    proposer.extend([*range(500, 500 + num_other), 120])
    assert proposer.propose(1) == expected


def test_long_match_elsewhere_beats_the_neighbourhood_of_the_last_copy() -> None:
    text = [*range(100, 120), 60, *range(121, 140)]
    other = [61, 62, 63, 64, 60, 70, 71]
    proposer = NgramProposer([*text, *other, *range(100, 115)])
    assert proposer.propose(1) == Proposal((115,), "ngram 9+")
    proposer.extend([61, 62, 63, 64, 60])
    assert proposer.propose(2) == Proposal((70, 71), "ngram 5-8")


# ------------------------------------------------------------------------------ size


def test_long_chat_takes_little_memory() -> None:
    draw = random.Random(8)
    proposer = NgramProposer(draw.choices(range(50_000), k=32_000))
    held = [value for value in vars(proposer).values() if isinstance(value, (list, dict))]
    num_bytes = sum(sys.getsizeof(value) for value in held)
    num_bytes += sum(sys.getsizeof(key) + sys.getsizeof(32_000) for key in proposer._latest)
    assert num_bytes < 5 * 2**20


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The indices whose surroundings are compared with the end."""
    indices: list[int] = []
    compare = NgramProposer._match_before

    def noted(self: NgramProposer, index: int) -> int:
        indices.append(index)
        return compare(self, index)

    monkeypatch.setattr(NgramProposer, "_match_before", noted)
    return indices


def test_what_is_looked_at_has_a_bound_however_often_a_text_repeats(compared: list[int]) -> None:
    token_ids = [token_id for other in range(3000) for token_id in (10 + other, 1, 2)]
    assert NgramProposer(token_ids).propose(4) == Proposal((3009, 1, 2, 3009), "ngram 2")
    assert compared == list(range(8997, 8997 - 64 * 3, -3))


def test_search_ends_with_a_match_that_is_long_enough(compared: list[int]) -> None:
    assert NgramProposer([7] * 500).propose(2) == Proposal((7, 7), "ngram 9+")
    assert compared == [499]


def test_copy_that_is_surely_followed_is_not_searched_for(compared: list[int]) -> None:
    text = list(range(100, 140))
    proposer = NgramProposer([*text, 1, *text[:9]])
    for token_id in text[9:30]:
        assert proposer.propose(1) == Proposal((token_id,), "ngram 9+")
        proposer.extend([token_id])
    assert compared == [9]
