"""How sure a model is of what it says, as a hint for who guesses."""

from inference.speculation.sureness import BETWEEN, SURE, UNSURE, Sureness


def test_sureness_begins_between_and_follows_what_is_told():
    sureness = Sureness()
    assert sureness.source == BETWEEN
    sureness.note(1.0, 4)  # 1 - 0.3 * 0.85^4 = 0.843
    assert sureness.source == BETWEEN
    sureness.note(1.0, 1)  # 0.867
    assert sureness.source == SURE
    sureness.note(0.2, 1)  # 0.767
    assert sureness.source == BETWEEN
    sureness.note(0.2, 2)  # 0.610
    assert sureness.source == UNSURE


def test_several_tokens_at_once_count_as_one_after_the_other():
    one, other = Sureness(), Sureness()
    one.note(0.9, 3)
    for _ in range(3):
        other.note(0.9, 1)
    assert abs(one._average - other._average) < 1e-12


def test_shares_tell_how_a_reply_was_so_far():
    sureness = Sureness()
    assert sureness.shares == {BETWEEN: 1.0}
    sureness.note(1.0, 4)  # 0.843, as above
    sureness.note(1.0, 2)
    sureness.note(0.2, 1)
    sureness.note(0.2, 1)  # 0.66
    sureness.note(0.2, 2)
    assert sureness.shares == {UNSURE: 0.2, BETWEEN: 0.6, SURE: 0.2}
