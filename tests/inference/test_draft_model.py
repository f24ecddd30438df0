"""A draft model that guesses: what it says, what it computes for that, and what goes wrong."""

import math
import random

import pytest
import torch

from inference.drafting.draft_model import DraftModel
from inference.drafting.draft_pace import DraftPace
from inference.errors import ComputeError
from inference.request import RequestId
from inference.sequence import Sequence as TokenSequence
from tests.inference.draft_models import DraftUnderTest, ShortRunner, make_sequence, opened_draft
from tests.inference.tiny_engine import make_loaded, make_parts

P = 8


@pytest.mark.parametrize("num_tokens", [1, P - 1, P, P + 1, 3 * P])
def test_propose_gives_the_greedy_continuation_over_block_borders(num_tokens: int) -> None:
    sequence = make_sequence(num_tokens)
    with opened_draft() as draft:
        guesses = draft.guess(sequence, 10)

        assert guesses == draft.truth(sequence, 10)
        assert draft.runner.take() == [
            [(0, num_tokens)],
            *([(num_tokens + n, 1)] for n in range(9)),
        ]
        assert len(sequence.token_ids) == num_tokens


def test_propose_after_all_were_accepted_computes_the_last_guess_and_the_new_token() -> None:
    sequence = make_sequence(14)
    with opened_draft() as draft:
        sequence.token_ids += [*draft.guess(sequence, 3), 77]
        draft.runner.take()

        assert draft.model.lag(sequence) == 2
        assert draft.guess(sequence, 2) == draft.truth(sequence, 2)
        assert draft.runner.take() == [[(16, 2)], [(18, 1)]]


def test_propose_after_a_rejection_computes_only_the_corrected_token() -> None:
    sequence = make_sequence(14)
    with opened_draft() as draft:
        first, second, *_ = draft.guess(sequence, 4)
        sequence.token_ids += [first, 4 if second != 4 else 5]
        draft.runner.take()

        assert draft.model.lag(sequence) == 1
        assert draft.guess(sequence, 1) == draft.truth(sequence, 1)
        assert draft.runner.take() == [[(15, 1)]]


def test_guesses_that_are_still_right_are_given_again_without_being_computed() -> None:
    sequence = make_sequence(14)
    with opened_draft() as draft:
        guesses = draft.guess(sequence, 5)
        sequence.token_ids += guesses[:2]
        draft.runner.take()

        assert draft.guess(sequence, 3) == guesses[2:]
        assert draft.runner.take() == []
        assert draft.model.lag(sequence) == 0
        assert draft.guess(sequence, 4) == [*guesses[2:], *draft.truth(sequence, 4)[3:]]
        assert draft.runner.take() == [[(18, 1)]]


def test_guesses_stay_right_through_many_acceptances_and_rejections() -> None:
    dice = random.Random(5)
    sequence = make_sequence(5)
    with opened_draft() as draft:
        for _ in range(16):
            guesses = draft.guess(sequence, dice.randint(1, 6))
            assert guesses == draft.truth(sequence, len(guesses))
            sequence.token_ids += guesses[: dice.randint(0, len(guesses))]
            if dice.random() < 0.8:
                sequence.token_ids.append(dice.randint(4, 250))
            draft.model.check_integrity()
        assert len(sequence.token_ids) > 4 * P


def test_ids_that_the_chat_can_do_without_are_not_looked_at_and_others_are() -> None:
    parts = make_parts(make_loaded(), guess="off", ram_cache_bytes=0)
    parts.runner = runner = ShortRunner(parts.runner, vocab_size=260)
    model = DraftModel(parts, vocab_size=260)
    sequence = TokenSequence(RequestId(1), "chat", list(range(4, 30)))
    (guesses,) = model.propose([(sequence, 3)])
    assert runner.num_logits == 32  # an eighth, in units of 4
    assert len(guesses) == 3
    assert max(guesses) < 32
    sequence.token_ids += [200 + n for n in range(20)]
    model.propose([(sequence, 3)])
    assert runner.num_logits == 260
    model.check_integrity()
    model.close()


def test_several_sequences_are_batched_and_guessed_as_alone() -> None:
    sequences = [make_sequence(count, request_id=count, seed=count) for count in (5, 9, 16)]
    counts = [3, 1, 6]
    with opened_draft() as draft:
        guesses = draft.model.propose(list(zip(sequences, counts, strict=True)))

        assert [list(each) for each in guesses] == [
            draft.truth(sequence, count) for sequence, count in zip(sequences, counts, strict=True)
        ]
        assert [len(call) for call in draft.runner.take()] == [3, 2, 2, 1, 1, 1]


def test_one_chunk_is_read_per_call_and_no_guess_given_until_all_is_read() -> None:
    sequence = make_sequence(40)
    with opened_draft(prefill_chunk_tokens=16) as draft:
        assert [draft.guess(sequence, 2) for _ in range(2)] == [[], []]
        assert draft.model.lag(sequence) == 8
        assert draft.guess(sequence, 2) == draft.truth(sequence, 2)
        assert draft.runner.take() == [[(0, 16)], [(16, 16)], [(32, 8)], [(40, 1)]]


def test_sequence_that_is_not_wanted_is_not_computed() -> None:
    unread, other = make_sequence(40), make_sequence(9, request_id=2, seed=2)
    with opened_draft(prefill_chunk_tokens=16) as draft:
        draft.guess(unread, 2)
        draft.runner.take()

        assert draft.guess(other, 2) == draft.truth(other, 2)
        assert draft.runner.take() == [[(0, 9)], [(9, 1)]]
        assert draft.guess(unread, 2) == []
        assert draft.guess(unread, 2) == draft.truth(unread, 2)


def test_nothing_is_guessed_beyond_the_end_of_a_turn() -> None:
    sequence = make_sequence(12)
    with opened_draft() as draft:
        free = draft.guess(sequence, 6)
    end = next(n for n in range(1, 6) if free[n] not in free[:n])
    with opened_draft(make_loaded(eos_ids=[free[end]])) as draft:
        assert draft.guess(sequence, 6) == free[: end + 1]
        sequence.token_ids += free[:end]
        draft.runner.take()
        assert draft.guess(sequence, 6) == [free[end]]
        assert draft.runner.take() == []
        sequence.token_ids.append(9)
        assert draft.guess(sequence, 1) == draft.truth(sequence, 1)


def test_guesses_end_where_the_context_does() -> None:
    sequence = make_sequence(61)
    with opened_draft(context_tokens=64) as draft:
        assert draft.guess(sequence, 10) == draft.truth(sequence, 3)
        sequence.token_ids += [9, 9, 9]
        draft.runner.take()
        assert draft.guess(sequence, 10) == []
        assert draft.runner.take() == []


@pytest.mark.parametrize("is_known_before", [False, True])
def test_id_that_the_draft_does_not_have_ends_guessing(is_known_before: bool) -> None:
    sequence = make_sequence(9)
    sequence.token_ids = [token_id % 200 for token_id in sequence.token_ids]
    with opened_draft(vocab_size=200) as draft:
        if is_known_before:
            guesses = draft.guess(sequence, 3)
            assert len(guesses) == 3
            assert max(guesses) < 200
        sequence.token_ids += [200, 5]
        assert draft.guess(sequence, 3) == []
        assert draft.parts.kv.counts().used == 0
        assert draft.model.lag(sequence) == 11


# ------------------------------------------------------------------ blocks


def hold_all_but(num_blocks: int, draft: DraftUnderTest) -> list[int]:
    kv = draft.parts.kv
    table: list[int] = []
    assert kv.grow(table, (kv.num_blocks - num_blocks) * P)
    return table


def test_guesses_end_where_the_blocks_do() -> None:
    sequence, longer = make_sequence(20), make_sequence(30, request_id=2, seed=2)
    with opened_draft() as draft:
        held = hold_all_but(3, draft)
        assert draft.guess(sequence, 10) == draft.truth(sequence, 5)  # the rows of four fit
        assert draft.guess(longer, 2) == []
        draft.parts.kv.release(held)
        assert draft.guess(longer, 2) == draft.truth(longer, 2)
        assert draft.guess(sequence, 6) == draft.truth(sequence, 6)


def test_sequence_that_rests_gives_its_blocks_to_one_that_is_wanted() -> None:
    first, second = make_sequence(20), make_sequence(21, request_id=2, seed=2)
    with opened_draft() as draft:
        held = hold_all_but(4, draft)
        for sequence in (first, second, first):
            assert draft.guess(sequence, 3) == draft.truth(sequence, 3)
        draft.parts.kv.release(held)


def test_two_that_do_not_fit_beside_each_other_do_not_stop_the_older_one() -> None:
    first, second = make_sequence(20), make_sequence(21, request_id=2, seed=2)
    with opened_draft() as draft:
        held = hold_all_but(5, draft)
        guesses = draft.model.propose([(first, 3), (second, 3)])
        assert [list(each) for each in guesses] == [draft.truth(first, 3), []]
        draft.model.end(first, keep=True, on_disk=False)
        assert draft.guess(second, 3) == draft.truth(second, 3)
        draft.parts.kv.release(held)


def test_preempted_mirror_loses_the_rows_of_its_guesses() -> None:
    older, younger = make_sequence(15), make_sequence(14, request_id=2, seed=2)
    with opened_draft() as draft:
        held = hold_all_but(4, draft)
        draft.model.propose([(older, 2), (younger, 2)])
        older.token_ids += draft.truth(older, 3)
        guesses = draft.model.propose([(older, 8), (younger, 8)])
        assert list(guesses[0]) == draft.truth(older, len(guesses[0]))
        assert list(guesses[1]) == draft.truth(younger, len(guesses[1]))
        draft.parts.kv.release(held)
        assert draft.guess(younger, 4) == draft.truth(younger, 4)


def test_more_sequences_than_may_hold_blocks_are_all_guessed_for() -> None:
    with opened_draft() as draft:
        for number in range(1, 20):
            sequence = make_sequence(9, request_id=number, chat=str(number), seed=number)
            assert draft.guess(sequence, 1) == draft.truth(sequence, 1)
        draft.model.check_integrity()


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize(
    "error", [RuntimeError("broken"), MemoryError(), ComputeError("no numbers")]
)
@pytest.mark.parametrize("num_good_steps", [0, 1])
def test_step_that_fails_gives_no_guesses_and_harms_nobody_else(
    error: Exception, num_good_steps: int
) -> None:
    failing, other = make_sequence(20), make_sequence(20, request_id=2, chat="other", seed=2)
    with opened_draft() as draft:
        if num_good_steps:
            assert draft.guess(failing, 1)
            failing.token_ids.append(9)
        draft.runner.error = error
        assert draft.guess(failing, 4) == []
        assert draft.guess(failing, 4) == []
        assert draft.parts.kv.counts().used == draft.parts.kv.counts().cached == 0
        assert draft.guess(other, 4) == draft.truth(other, 4)
        draft.model.end(failing, keep=True, on_disk=True)


def test_torch_computes_on_as_many_threads_as_before() -> None:
    before = torch.get_num_threads()
    try:
        with opened_draft(num_threads=2) as draft:
            torch.set_num_threads(1)
            draft.guess(make_sequence(9), 3)
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_times_are_unknown_until_they_were_measured() -> None:
    with opened_draft() as draft:
        before = draft.model.token_ms, draft.model.read_ms_per_token
        draft.guess(make_sequence(40), 3)
        after = draft.model.token_ms, draft.model.read_ms_per_token

        assert before == (None, None)
        assert all(time_ms is not None and time_ms > 0 for time_ms in after)


def test_averages_of_times_follow_slowly_and_each_kind_of_step_alone() -> None:
    pace = DraftPace()
    for seconds in (0.010, 0.020):
        pace.record(1, 1, seconds)
    assert pace.token_ms == pytest.approx(15.0)
    pace.record(4, 4, 0.060)  # four sequences: 15 ms each
    pace.record(1, 9, 9.0)
    assert pace.token_ms == pytest.approx(15.0)
    assert pace.read_ms_per_token is None
    for _ in range(7):
        pace.record(1, 1, 0.015)
    pace.record(1, 1, 0.115)
    assert pace.token_ms == pytest.approx(35.0)
    pace.record(2, 64, 0.128)
    assert pace.read_ms_per_token == pytest.approx(2.0)


def test_guessing_ends_where_the_model_is_not_sure() -> None:
    with opened_draft() as draft:
        sequence = make_sequence(17)
        whole = draft.read_and_guess(sequence, 6)
        mirror = draft.model._mirrors[sequence.request_id]
        probabilities = list(mirror.probabilities)
        assert len(whole) == 6
        assert all(0 < probability < 1 for probability in probabilities)
        together = [math.prod(probabilities[:count]) for count in range(7)]
        draft.model.end(sequence, keep=False, on_disk=False)

        for count in range(1, 7):
            again = make_sequence(17)
            # Just as sure as it is before the guess of this number: that one is made, and is the last.
            found: tuple[int, ...] = ()
            while not found:
                (found,) = draft.model.propose([(again, 6)], together[count - 1] * (1 - 1e-6))
            assert list(found) == whole[:count]
            draft.model.end(again, keep=False, on_disk=False)
