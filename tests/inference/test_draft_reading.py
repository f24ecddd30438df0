"""What a draft model reads of a chat before it can guess."""

import pytest

from inference.request import RequestId
from inference.sequence import Sequence
from inference.speculation.allowance import LOSS_SHARE, Allowances
from inference.speculation.draft_reading import (
    LEAST_LAG,
    READ_SHARE,
    TRY_AGAIN,
    DraftReading,
)
from tests.inference.test_speculator import FakeDraft

PLAIN_MS = 10.0


def reply_of(num_tokens: int = 0, request_id: int = 1) -> Sequence:
    sequence = Sequence(RequestId(request_id), "chat", [1, 2, 3])
    sequence.token_ids += [5] * num_tokens
    return sequence


def left_ms(
    reading: DraftReading,
    draft: FakeDraft,
    sequence: Sequence,
    *,
    gain: float = 0.0,
    num_sequences: int = 1,
) -> float | None:
    """As the speculator asks; a token takes 1 ms to read, a tenth of a step."""
    return reading.left_ms(
        draft,  # type: ignore[arg-type]  # what is beside guessing is not needed
        sequence,
        plain_ms=PLAIN_MS,
        gain=lambda: gain,
        num_sequences=num_sequences,
        is_ordered=False,
    )


@pytest.mark.parametrize(("lag", "expected"), [(0, 0.0), (1, 0.0), (2, 1.0), (LEAST_LAG, 15.0)])
def test_few_tokens_are_read_beside_the_first_guess_and_their_time_is_told(lag, expected):
    reading, sequence = DraftReading(Allowances()), reply_of()
    assert left_ms(reading, FakeDraft(lag=lag), sequence) == expected
    assert not reading.is_reading(sequence)


def test_time_of_reading_is_what_is_usual_until_it_is_known():
    draft = FakeDraft(lag=5)
    draft.read_ms_per_token = None
    assert left_ms(DraftReading(Allowances()), draft, reply_of()) == pytest.approx(
        4 * READ_SHARE * PLAIN_MS
    )


def test_what_will_save_twice_as_much_is_read_to_its_end():
    allowances, draft = Allowances(), FakeDraft(lag=101)  # ten steps
    reading, sequence = DraftReading(allowances), reply_of(30)
    allowances.end(reply_of(129, request_id=9))
    assert left_ms(reading, draft, sequence, gain=0.2) is None
    assert not reading.is_reading(sequence)  # it would save 19.8 steps
    short = reply_of(29, request_id=3)
    assert left_ms(reading, draft, short, gain=0.21) is None
    assert not reading.is_reading(short)  # if it ended now, much of its time would be lost
    sequence = reply_of(30, request_id=2)
    assert left_ms(reading, draft, sequence, gain=0.21, num_sequences=2) is None
    assert not reading.is_reading(sequence)  # the other reply would wait as well
    assert left_ms(reading, draft, sequence, gain=0.21) is None
    assert reading.is_reading(sequence)
    draft.lacks = 60
    assert left_ms(reading, draft, sequence, gain=0.0) is None
    assert reading.is_reading(sequence)  # what is begun is not left
    assert allowances.steps(sequence) == pytest.approx(
        LOSS_SHARE * 30
    )  # and is no loss to be borne
    draft.lacks = 1
    assert left_ms(reading, draft, sequence) == 0.0
    assert not reading.is_reading(sequence)
    # What it lacks later is another question.
    draft.lacks = 101
    assert left_ms(reading, draft, sequence, gain=0.0) is None
    assert not reading.is_reading(sequence)


def test_what_should_save_as_much_as_it_takes_is_tried_when_the_reply_can_bear_it():
    allowances, draft = Allowances(), FakeDraft(lag=101)
    reading, sequence = DraftReading(allowances), reply_of(499)
    assert left_ms(reading, draft, sequence, gain=0.04) is None
    assert not reading.is_reading(sequence)
    sequence.token_ids.append(5)  # of 500 steps the share is ten, and 250 more may be counted on
    assert left_ms(reading, draft, sequence, gain=0.039) is None
    assert not reading.is_reading(sequence)
    assert left_ms(reading, draft, sequence, gain=0.04) is None
    assert reading.is_reading(sequence)
    assert allowances.steps(sequence) == pytest.approx(LOSS_SHARE * 500 - 10)
    left_ms(reading, draft, sequence)
    assert allowances.steps(sequence) == pytest.approx(0.0)  # it pays once
    two = reply_of(600, request_id=2)  # of two replies each would wait ten steps
    assert left_ms(reading, draft, two, gain=0.04, num_sequences=2) is None
    assert not reading.is_reading(two)


def test_what_does_not_pay_is_tried_in_one_of_some_replies_that_can_bear_it():
    allowances, draft = Allowances(), FakeDraft(lag=101)
    reading = DraftReading(allowances)
    tried = []
    for number in range(1, 2 * TRY_AGAIN + 1):
        sequence = reply_of(600, request_id=number)
        for _ in range(3):  # each reply is one, however often it is asked about
            assert left_ms(reading, draft, sequence) is None
        assert left_ms(reading, draft, reply_of(400, request_id=99)) is None  # it cannot bear it
        if reading.is_reading(sequence):
            tried.append(number)
            assert allowances.steps(sequence) == pytest.approx(LOSS_SHARE * 600 - 10)
        assert reading.end(sequence)
    assert tried == [TRY_AGAIN, 2 * TRY_AGAIN]
    # Where it pays again it is no try of that kind.
    assert left_ms(reading, draft, again := reply_of(600, request_id=100), gain=0.04) is None
    assert reading.is_reading(again)


def test_replies_that_were_passed_by_count_for_one_draft_model_alone():
    reading, draft = DraftReading(Allowances()), FakeDraft(lag=101)
    for number in range(1, TRY_AGAIN):
        left_ms(reading, draft, reply_of(600, request_id=number))
    reading.reset()
    left_ms(reading, draft, sequence := reply_of(600, request_id=TRY_AGAIN))
    assert not reading.is_reading(sequence)


def test_draft_model_is_told_of_each_reply_once_and_again_after_its_end():
    allowances, draft = Allowances(), FakeDraft(lag=101)
    reading, sequence = DraftReading(allowances), reply_of(600)
    assert not reading.end(sequence)
    for _ in range(2):
        left_ms(reading, draft, sequence, gain=0.04)
    assert draft.calls == [("begin", 1)]
    assert reading.is_reading(sequence)
    assert reading.end(sequence)
    assert not reading.is_reading(sequence)
    assert not reading.end(sequence)
    left_ms(reading, draft, sequence, gain=0.04)
    assert draft.calls == [("begin", 1)] * 2


def test_another_draft_model_knows_nothing():
    reading, sequence = DraftReading(Allowances()), reply_of(600)
    left_ms(reading, FakeDraft(lag=101), sequence, gain=0.04)
    assert reading.is_reading(sequence)
    reading.reset()
    assert not reading.is_reading(sequence)
    other = FakeDraft()
    left_ms(reading, other, sequence)
    assert other.calls == [("begin", 1)]
