"""Guessed tokens in the scheduler: they take what is left, and nobody gives anything for them."""

import pytest

from inference.kv_cache.manager import KvCacheManager
from inference.request import RequestId
from inference.scheduler import Scheduler
from inference.sequence import ScheduledChunk, Sequence
from tests.inference.memory_tiers import FakeMover

P = 4


def make_scheduler(num_blocks: int = 16, *, token_budget: int = 8) -> Scheduler:
    mover = FakeMover(P)
    kv = KvCacheManager(num_blocks, P, namespace=b"model", mover=mover)
    return Scheduler(kv, token_budget=token_budget, mover=mover)


def add(scheduler: Scheduler, request_id: int, token_ids: list[int]) -> Sequence:
    sequence = Sequence(RequestId(request_id), f"chat {request_id}", token_ids)
    scheduler.add(sequence)
    return sequence


def decoding(scheduler: Scheduler, *prompts: list[int]) -> list[Sequence]:
    """Sequences whose prompts are computed and whose first tokens were sampled."""
    sequences = [add(scheduler, n, prompt) for n, prompt in enumerate(prompts, start=1)]
    scheduler.commit(scheduler.schedule())
    for sequence in sequences:
        assert not sequence.num_pending
        sequence.append(900)
    return sequences


def drafts(chunks: list[ScheduledChunk]) -> dict[int, tuple[int, ...]]:
    return {chunk.sequence.request_id: chunk.draft for chunk in chunks}


def test_draft_follows_the_pending_token_and_has_slots():
    scheduler = make_scheduler()
    (sequence,) = decoding(scheduler, [1, 2, 3])
    sequence.draft = (7, 8, 9)
    (chunk,) = scheduler.schedule()
    assert (chunk.start, chunk.num_tokens, chunk.draft, chunk.num_rows) == (3, 1, (7, 8, 9), 4)
    assert len(sequence.block_table) == 2  # 3 + 1 + 3 tokens
    assert scheduler._kv.is_writable(sequence.block_table, 3, 4)
    assert list(sequence.draft) == []  # used up
    scheduler.check_integrity()


@pytest.mark.parametrize("num_accepted", range(6))
def test_accept_names_only_what_was_taken(num_accepted):
    scheduler = make_scheduler()
    (sequence,) = decoding(scheduler, [1, 2, 3])
    sequence.draft = (11, 12, 13, 14, 15)
    chunks = scheduler.schedule()
    scheduler.commit(chunks)
    for token_id in [*sequence.draft, *(11, 12, 13, 14, 15)[:num_accepted], 901]:
        sequence.append(token_id)
    scheduler.accept(sequence)
    assert sequence.num_computed == 4 + num_accepted
    assert sequence.num_pending == 1
    full = (4 + num_accepted) // P
    named = [scheduler._kv._pool.prefix_of(block_id) for block_id in sequence.block_table]
    assert [prefix is not None for prefix in named] == [True] * full + [False] * (
        len(sequence.block_table) - full
    )
    assert scheduler._kv.is_writable(sequence.block_table, sequence.num_computed, 1)
    scheduler.check_integrity()


def test_accept_passes_over_a_sequence_that_was_removed_meanwhile():
    scheduler = make_scheduler()
    sequence, other = decoding(scheduler, [1, 2, 3], [51, 52, 53])
    sequence.draft = (7, 8)
    scheduler.commit(scheduler.schedule())
    scheduler.remove(sequence.request_id)
    num_free = scheduler._kv.num_available
    sequence.append(7)
    scheduler.accept(sequence)
    assert scheduler._kv.num_available == num_free
    assert list(scheduler.running) == [other]
    scheduler.check_integrity()


def test_drafts_take_the_budget_that_all_decoding_ones_leave():
    scheduler = make_scheduler(token_budget=8)
    sequences = decoding(scheduler, [10, 11], [20, 21], [30, 31])
    for sequence in sequences:
        sequence.draft = (5, 6, 7, 8)
    assert drafts(scheduler.schedule()) == {1: (5, 6, 7, 8), 2: (5,), 3: ()}


def test_drafts_get_what_prompts_leave():
    scheduler = make_scheduler(token_budget=8)
    (sequence,) = decoding(scheduler, [1, 2])
    sequence.draft = (5, 6, 7)
    add(scheduler, 2, list(range(50, 60)))
    chunks = scheduler.schedule()
    assert [(c.sequence.request_id, c.num_rows) for c in chunks] == [(1, 1), (2, 7)]
    sequence.append(901)
    scheduler.commit(chunks)
    sequence.draft = (5, 6, 7)
    assert [(c.sequence.request_id, c.num_rows) for c in scheduler.schedule()] == [(1, 4), (2, 3)]


@pytest.mark.parametrize("has_begun", [False, True])
def test_nobody_is_put_back_or_kept_out_for_guesses(has_begun):
    scheduler = make_scheduler(num_blocks=8, token_budget=16)
    (one,) = decoding(scheduler, [1])
    other = None
    for number in range(12):
        if number == (0 if has_begun else 1):
            other = add(scheduler, 2, list(range(100, 127)))  # with `one`, all blocks
        one.draft = tuple(range(700, 716))
        chunks = scheduler.schedule()
        scheduler.commit(chunks)
        for chunk in chunks:
            if chunk.sequence is one and number < 2:
                one.append(901 + number)
                scheduler.accept(one)  # every guess was wrong
        scheduler.check_integrity()
        if other is not None and not other.num_pending:
            break
    assert other is not None
    assert other.num_pending == 0
    assert scheduler.preemptions == 0
    assert number <= 3


def test_draft_without_a_free_block_is_dropped_and_nobody_is_put_back():
    scheduler = make_scheduler(num_blocks=2)
    one, other = decoding(scheduler, [1, 2], [51, 52])
    one.draft = (5, 6)  # 2 + 1 + 2 tokens do not fit in its block
    other.draft = (5,)
    assert drafts(scheduler.schedule()) == {1: (), 2: (5,)}
    assert scheduler.preemptions == 0
    assert list(one.draft) == []


def test_several_replies_to_one_question_hold_and_compute_it_once():
    scheduler = make_scheduler(token_budget=6)
    prompt = list(range(100, 114))
    sequences = [add(scheduler, n, prompt) for n in (1, 2, 3)]
    computed = []
    while sequences[2].num_pending:
        chunks = scheduler.schedule()
        scheduler.commit(chunks)
        computed += [chunk.num_tokens for chunk in chunks]
        scheduler.check_integrity()
    # Once the prompt, and for each of the others what of it fills no block.
    assert sum(computed) == 14 + 2 + 2
    assert len({tuple(sequence.block_table[:3]) for sequence in sequences}) == 1
    assert len({sequence.block_table[3] for sequence in sequences}) == 3


def test_another_question_does_not_wait_for_one_that_begins_alike():
    scheduler = make_scheduler(token_budget=16)
    add(scheduler, 1, [1, 2, 3, 4, 5, 6])
    add(scheduler, 2, [1, 2, 3, 9, 9, 9])  # less than a block is equal
    assert [chunk.sequence.request_id for chunk in scheduler.schedule()] == [1, 2]
