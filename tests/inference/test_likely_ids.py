"""How much of the vocabulary is worth looking at, by what was said."""

import pytest

from inference.drafting.likely_ids import LikelyIds

V = 1600


def make(share: float = 0.4) -> LikelyIds:
    return LikelyIds(V, unit=16, share=share)


def test_without_knowledge_all_ids_are_looked_at() -> None:
    assert make().num_ids == V


@pytest.mark.parametrize(
    ("highest", "expected"),
    [(200, 192), (300, 288), (400, 400), (600, 592), (800, 800), (1200, 1200), (1600, 1600)],
)
def test_ids_up_to_one_need_the_part_that_holds_them(highest: int, expected: int) -> None:
    likely = make()
    likely.note(range(highest - 8 if highest % 16 else highest))
    assert likely.num_ids == expected


def test_a_few_rare_tokens_are_not_worth_the_whole_vocabulary_and_many_are() -> None:
    likely = make()
    likely.note([5] * 98 + [1599] * 2)
    assert likely.num_ids == 192
    likely.note([1599] * 30)
    assert likely.num_ids == V


def test_the_square_of_the_hits_is_weighed_against_the_time() -> None:
    # A quarter less of the time against 0.9 squared = 0.81 of the tokens: not worth it; against 0.95: it is.
    likely = LikelyIds(V, unit=16, share=0.25 / 0.875)
    likely.note([0] * 85 + [1599] * 15)
    assert likely.num_ids == V
    likely = LikelyIds(V, unit=16, share=0.25 / 0.875)
    likely.note([0] * 95 + [1599] * 5)
    assert likely.num_ids == 192


def test_another_language_is_noticed_and_forgotten_again() -> None:
    likely = make()
    likely.note([7] * 1000)
    likely.note([1500] * 400)
    assert likely.num_ids == V
    for _ in range(12):
        likely.note([7] * 1000)
    assert likely.num_ids == 192


def test_a_head_that_takes_no_time_is_used_whole_unless_nothing_is_missed() -> None:
    likely = make(share=0.0)
    likely.note([5] * 99 + [1599])
    assert likely.num_ids == V


def test_of_a_small_vocabulary_no_part_is_taken() -> None:
    likely = LikelyIds(20, unit=16, share=0.5)
    likely.note([1, 2, 3])
    assert likely.num_ids == 20
