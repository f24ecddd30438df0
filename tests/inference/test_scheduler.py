"""The scheduler: who is computed when, and that nobody loses a block, a token or a turn."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.errors import ContextOverflowError
from inference.kv_cache.manager import KvCacheManager
from inference.metrics import BlockCounts
from inference.request import RequestId
from inference.scheduler import Scheduler
from inference.sequence import ScheduledChunk, Sequence
from tests.inference.memory_tiers import FakeMover

P = 4


def make_scheduler(
    num_blocks: int = 16, *, token_budget: int = 8, max_running: int = 16
) -> Scheduler:
    mover = FakeMover(P)
    kv = KvCacheManager(num_blocks, P, namespace=b"model", mover=mover)
    return Scheduler(kv, token_budget=token_budget, max_running=max_running, mover=mover)


def make_sequence(request_id: int, token_ids: list[int]) -> Sequence:
    return Sequence(RequestId(request_id), f"chat {request_id}", token_ids)


def counts(scheduler: Scheduler) -> BlockCounts:
    return scheduler._kv.counts()


def next_token(token_ids: list[int]) -> int:
    """A model: the next token depends on the whole history."""
    return random.Random(str(token_ids)).randrange(1000)


def plan(chunks: list[ScheduledChunk]) -> list[tuple[int, int, int, bool]]:
    return [(c.sequence.request_id, c.start, c.num_tokens, c.needs_logits) for c in chunks]


def mover_of(scheduler: Scheduler) -> FakeMover:
    mover = scheduler._loads._mover
    assert isinstance(mover, FakeMover)
    return mover


def compute(scheduler: Scheduler, chunks: list[ScheduledChunk]) -> None:
    """Write rows as a model would; those before must be there and right."""
    for chunk in chunks:
        sequence, end = chunk.sequence, chunk.start + chunk.num_tokens
        assert chunk.start == sequence.num_computed
        assert scheduler._kv.is_writable(sequence.block_table, chunk.start, chunk.num_tokens)
        tokens = sequence.token_ids[:end]
        mover_of(scheduler).compute(sequence.block_table, tokens, chunk.start)


def run_step(scheduler: Scheduler) -> list[tuple[int, int, int, bool]]:
    chunks = scheduler.schedule()
    compute(scheduler, chunks)
    scheduler.commit(chunks)
    for chunk in chunks:
        if chunk.needs_logits:
            chunk.sequence.append(next_token(chunk.sequence.token_ids))
    scheduler.check_integrity()
    return plan(chunks)


def ids(sequences: tuple[Sequence, ...]) -> list[int]:
    return [sequence.request_id for sequence in sequences]


# --- sequences --------------------------------------------------------------------------------


def test_sequence_new_knows_its_prompt_and_nothing_computed():
    prompt = [1, 2, 3]
    sequence = make_sequence(1, prompt)
    sequence.append(4)
    assert sequence.token_ids == [1, 2, 3, 4]
    assert prompt == [1, 2, 3]
    assert (sequence.num_prompt_tokens, sequence.num_computed, sequence.num_pending) == (3, 0, 4)
    assert (sequence.num_reused, sequence.chain_end) == (0, None)


def test_sequence_without_tokens_is_a_bug_of_ours():
    with pytest.raises(AssertionError, match="at least one token"):
        make_sequence(1, [])


# --- one sequence -----------------------------------------------------------------------------


@pytest.mark.parametrize(("token_budget", "max_running"), [(0, 1), (1, 0)])
def test_scheduler_limit_of_zero_is_refused(token_budget, max_running):
    with pytest.raises(ValueError, match="must be at least 1"):
        make_scheduler(token_budget=token_budget, max_running=max_running)


def test_schedule_without_work_gives_nothing():
    scheduler = make_scheduler()
    assert not scheduler.has_work
    assert scheduler.schedule() == []


def test_schedule_long_prompt_is_cut_into_chunks_of_the_budget_then_decodes():
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, list(range(19))))
    assert scheduler.has_work
    assert [run_step(scheduler) for _ in range(5)] == [
        [(1, 0, 8, False)],
        [(1, 8, 8, False)],
        [(1, 16, 3, True)],
        [(1, 19, 1, True)],
        [(1, 20, 1, True)],
    ]
    assert scheduler.running[0].block_table == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("budget", [1, 3, 4, 7, 8, 9, 100])
@pytest.mark.parametrize("length", [1, 7, 8, 9])
def test_schedule_any_chunking_computes_each_token_once(budget, length):
    scheduler = make_scheduler(token_budget=budget)
    scheduler.add(make_sequence(1, list(range(length))))
    computed: list[int] = []
    while len(computed) < length + 3:
        [(_, start, num_tokens, needs_logits)] = run_step(scheduler)
        computed += range(start, start + num_tokens)
        assert num_tokens <= budget
        assert needs_logits == (len(computed) >= length)
    assert computed == list(range(length + 3))


def test_schedule_again_without_commit_asks_for_the_same_work():
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, list(range(19))))
    first = plan(scheduler.schedule())
    assert plan(scheduler.schedule()) == first
    scheduler.check_integrity()


def test_schedule_sequence_that_waits_for_its_token_is_left_out():
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, [1, 2]))
    scheduler.commit(scheduler.schedule())
    assert scheduler.schedule() == []


# --- several ----------------------------------------------------------------------------------


def test_schedule_decodes_come_before_prompts_and_prompts_before_new_ones():
    scheduler = make_scheduler(token_budget=6)
    scheduler.add(make_sequence(1, [1, 2]))
    scheduler.add(make_sequence(2, list(range(100, 110))))
    assert run_step(scheduler) == [(1, 0, 2, True), (2, 0, 4, False)]
    scheduler.add(make_sequence(3, [7, 8, 9]))
    assert run_step(scheduler) == [(1, 2, 1, True), (2, 4, 5, False)]
    assert ids(scheduler.waiting) == [3]
    assert run_step(scheduler) == [(1, 3, 1, True), (2, 9, 1, True), (3, 0, 3, True)]
    assert run_step(scheduler) == [(1, 4, 1, True), (2, 10, 1, True), (3, 3, 1, True)]


def test_schedule_budget_smaller_than_the_decodes_serves_the_oldest():
    scheduler = make_scheduler(token_budget=2)
    for request_id in (1, 2, 3):
        scheduler.add(make_sequence(request_id, [request_id]))
    assert run_step(scheduler) == [(1, 0, 1, True), (2, 0, 1, True)]
    assert run_step(scheduler) == [(1, 1, 1, True), (2, 1, 1, True)]
    scheduler.remove(RequestId(1))
    assert run_step(scheduler) == [(2, 2, 1, True), (3, 0, 1, True)]


def test_schedule_no_more_run_than_allowed():
    scheduler = make_scheduler(max_running=1)
    scheduler.add(make_sequence(1, [1]))
    scheduler.add(make_sequence(2, [2]))
    assert run_step(scheduler) == [(1, 0, 1, True)]
    assert run_step(scheduler) == [(1, 1, 1, True)]
    scheduler.remove(RequestId(1))
    assert run_step(scheduler) == [(2, 0, 1, True)]


def test_schedule_new_one_waits_until_its_whole_prompt_fits():
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(make_sequence(1, list(range(9))))
    scheduler.add(make_sequence(2, list(range(100, 106))))
    assert run_step(scheduler) == [(1, 0, 8, False)]
    assert run_step(scheduler) == [(1, 8, 1, True)]  # 3 blocks of 4, and the other wants 2
    assert ids(scheduler.waiting) == [2]
    scheduler.remove(RequestId(1))
    assert run_step(scheduler) == [(2, 0, 6, True)]


def test_schedule_new_one_that_does_not_fit_waits_while_others_prefill():
    scheduler = make_scheduler(num_blocks=6, token_budget=5)
    scheduler.add(make_sequence(1, list(range(17))))  # 5 blocks in the end
    scheduler.add(make_sequence(2, list(range(100, 106))))
    assert [run_step(scheduler) for _ in range(4)] == [
        [(1, 0, 5, False)],
        [(1, 5, 5, False)],
        [(1, 10, 5, False)],
        [(1, 15, 2, True)],
    ]
    assert scheduler.preemptions == 0
    assert ids(scheduler.waiting) == [2]


def test_schedule_first_come_first_served_even_if_a_later_one_would_fit():
    scheduler = make_scheduler(num_blocks=3)
    scheduler.add(make_sequence(1, list(range(6))))
    run_step(scheduler)
    scheduler.add(make_sequence(2, list(range(100, 107))))
    scheduler.add(make_sequence(3, [7]))
    assert run_step(scheduler) == [(1, 6, 1, True)]
    assert ids(scheduler.waiting) == [2, 3]


def test_schedule_full_memory_admits_nobody():
    scheduler = make_scheduler(num_blocks=1)
    scheduler.add(make_sequence(1, [1, 2]))
    scheduler.add(make_sequence(2, [1]))
    assert run_step(scheduler) == [(1, 0, 2, True)]
    assert run_step(scheduler) == [(1, 2, 1, True)]


def test_schedule_two_equal_prompts_at_once_compute_and_hold_what_is_equal_once():
    scheduler = make_scheduler(token_budget=32)
    prompt = list(range(10))
    scheduler.add(make_sequence(1, prompt))
    scheduler.add(make_sequence(2, prompt))
    assert run_step(scheduler) == [(1, 0, 10, True)]
    assert run_step(scheduler) == [(1, 10, 1, True), (2, 9, 1, True)]
    one, other = scheduler.running
    assert one.block_table[:2] == other.block_table[:2] == [0, 1]
    assert one.block_table[2] != other.block_table[2]
    for _ in range(10):
        run_step(scheduler)
    assert one.token_ids[:-1] == other.token_ids  # which began one step later
    scheduler.remove(RequestId(1))
    scheduler.remove(RequestId(2))
    scheduler.check_integrity()
    assert counts(scheduler) == BlockCounts(total=16, free=10, cached=6, used=0)


# --- reuse ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "reused"), [(1, 0), (7, 6), (8, 7), (9, 8)])
def test_schedule_prompt_seen_before_starts_after_the_cached_part(length, reused):
    scheduler = make_scheduler(token_budget=32)
    scheduler.add(make_sequence(1, list(range(length))))
    run_step(scheduler)
    scheduler.remove(RequestId(1))
    sequence = make_sequence(2, list(range(length)))
    scheduler.add(sequence)
    assert run_step(scheduler) == [(2, reused, length - reused, True)]
    end = "all_reused" if length > 1 else "nothing_cached"
    assert (sequence.num_reused, sequence.chain_end) == (reused, end)


def test_schedule_next_turn_reuses_prompt_and_reply():
    scheduler = make_scheduler(token_budget=32)
    first = make_sequence(1, list(range(6)))
    scheduler.add(first)
    for _ in range(7):
        run_step(scheduler)
    scheduler.remove(RequestId(1))
    assert len(first.token_ids) == 13  # 12 are computed: 3 full blocks
    second = make_sequence(2, [*first.token_ids, 50, 51])
    scheduler.add(second)
    assert run_step(scheduler) == [(2, 12, 3, True)]
    assert (second.num_reused, second.chain_end) == (12, "different_text")
    assert second.block_table == [0, 1, 2, 3]


def test_remove_keeps_the_tail_without_the_last_sampled_token():
    scheduler = make_scheduler(token_budget=32)
    sequence = make_sequence(1, [1, 2, 3])
    scheduler.add(sequence)
    run_step(scheduler)  # the fourth token is known, its values are not computed
    scheduler.remove(RequestId(1))
    assert len(sequence.token_ids) == 4
    assert counts(scheduler) == BlockCounts(total=16, free=15, cached=1, used=0)
    [(_, prefix)] = scheduler._kv._pool.indexed()
    assert prefix.token_ids == (1, 2, 3)


def test_remove_after_a_failed_step_keeps_nothing():
    scheduler = make_scheduler(token_budget=32)
    scheduler.add(make_sequence(1, list(range(6))))
    run_step(scheduler)
    scheduler.schedule()
    scheduler.remove(RequestId(1), is_sound=False)
    assert counts(scheduler) == BlockCounts(total=16, free=16, cached=0, used=0)
    scheduler.check_integrity()


# --- add and remove ---------------------------------------------------------------------------


def test_add_longer_than_all_blocks_is_refused_with_both_numbers():
    scheduler = make_scheduler(num_blocks=2)
    with pytest.raises(ContextOverflowError) as caught:
        scheduler.add(make_sequence(1, list(range(9))))
    assert (caught.value.prompt_tokens, caught.value.context_tokens) == (9, 8)
    assert not scheduler.has_work


@pytest.mark.parametrize("is_running", [True, False])
def test_add_same_request_twice_is_a_bug_of_ours(is_running):
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, [1]))
    if is_running:
        run_step(scheduler)
    with pytest.raises(AssertionError, match="1 is already here"):
        scheduler.add(make_sequence(1, [1]))


def test_remove_unknown_request_gives_none():
    assert make_scheduler().remove(RequestId(1)) is None


def test_remove_waiting_sequence_keeps_the_order_of_the_others():
    scheduler = make_scheduler(max_running=1)
    sequences = [make_sequence(i, [i]) for i in range(4)]
    for sequence in sequences:
        scheduler.add(sequence)
    run_step(scheduler)
    assert scheduler.remove(RequestId(2)) is sequences[2]
    assert (ids(scheduler.running), ids(scheduler.waiting)) == ([0], [1, 3])


def test_remove_in_the_middle_of_a_prompt_keeps_what_was_computed():
    scheduler = make_scheduler()
    sequence = make_sequence(1, list(range(19)))
    scheduler.add(sequence)
    run_step(scheduler)
    scheduler.schedule()  # blocks of the second chunk are taken and never computed
    assert scheduler.remove(RequestId(1)) is sequence
    assert sequence.block_table == []
    assert counts(scheduler) == BlockCounts(total=16, free=14, cached=2, used=0)
    assert not scheduler.has_work


def test_commit_of_a_removed_sequence_is_passed_over():
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, list(range(5))))
    chunks = scheduler.schedule()
    removed = scheduler.remove(RequestId(1))
    scheduler.commit(chunks)
    scheduler.check_integrity()
    assert removed is not None
    assert removed.num_computed == 0
    assert counts(scheduler) == BlockCounts(total=16, free=16, cached=0, used=0)


def test_commit_of_a_removed_request_does_not_touch_a_new_one_of_its_number():
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, list(range(5))))
    chunks = scheduler.schedule()
    scheduler.remove(RequestId(1))
    scheduler.add(make_sequence(1, list(range(50, 59))))
    scheduler.schedule()
    scheduler.commit(chunks)
    assert scheduler.running[0].num_computed == 0


# --- preemption -------------------------------------------------------------------------------


def test_preempt_youngest_gives_way_and_comes_back_with_its_tokens():
    scheduler = make_scheduler(num_blocks=4, token_budget=32)
    old, young = make_sequence(1, list(range(8))), make_sequence(2, list(range(100, 108)))
    scheduler.add(old)
    scheduler.add(young)
    assert run_step(scheduler) == [(1, 0, 8, True), (2, 0, 8, True)]
    assert run_step(scheduler) == [(1, 8, 1, True)]
    assert scheduler.preemptions == 1
    assert (ids(scheduler.running), ids(scheduler.waiting)) == ([1], [2])
    assert (len(young.token_ids), young.num_computed, young.block_table) == (9, 0, [])
    assert old.block_table == [0, 1, 3]  # the tail of the other went first
    scheduler.remove(RequestId(1))
    assert run_step(scheduler) == [(2, 4, 5, True)]
    assert (young.num_reused, young.chain_end) == (0, "nothing_cached")  # as it first ran
    assert young.num_prompt_tokens == 8


def test_preempt_keeps_the_order_of_arrival():
    scheduler = make_scheduler(num_blocks=6, token_budget=32)
    for request_id in (1, 2, 3):
        scheduler.add(make_sequence(request_id, [100 * request_id + i for i in range(8)]))
    run_step(scheduler)
    scheduler.add(make_sequence(4, [9]))
    run_step(scheduler)
    assert (ids(scheduler.running), ids(scheduler.waiting)) == ([1, 2], [3, 4])
    for _ in range(8):
        run_step(scheduler)
    assert (ids(scheduler.running), ids(scheduler.waiting)) == ([1], [2, 3, 4])
    assert scheduler.preemptions == 2


def test_preempt_youngest_that_needs_the_block_itself_steps_back():
    scheduler = make_scheduler(num_blocks=4, token_budget=32)
    scheduler.add(make_sequence(1, list(range(6))))
    scheduler.add(make_sequence(2, list(range(100, 108))))
    assert run_step(scheduler) == [(1, 0, 6, True), (2, 0, 8, True)]
    assert run_step(scheduler) == [(1, 6, 1, True)]
    assert (ids(scheduler.running), ids(scheduler.waiting)) == ([1], [2])


def test_preempt_one_that_was_already_chosen_gives_its_budget_back():
    scheduler = make_scheduler(num_blocks=4, token_budget=9)
    scheduler.add(make_sequence(1, list(range(8))))
    scheduler.add(make_sequence(2, [100]))
    assert run_step(scheduler) == [(1, 0, 8, True), (2, 0, 1, True)]
    old, young = scheduler.running
    for token in range(50, 58):  # as after a preemption: much to compute again, and too few blocks
        old.append(token)
    assert run_step(scheduler) == [(1, 8, 8, False)]  # 8: the budget when it was its turn
    assert scheduler.preemptions == 1
    assert (young.num_computed, young.block_table) == (0, [])
    assert (ids(scheduler.running), ids(scheduler.waiting)) == ([1], [2])


def test_preempt_budget_given_back_goes_to_the_next_in_order():
    scheduler = make_scheduler(num_blocks=5, token_budget=9)
    for request_id, length in ((1, 5), (2, 3), (3, 1)):
        scheduler.add(make_sequence(request_id, [100 * request_id + i for i in range(length)]))
    run_step(scheduler)
    first, second, _ = scheduler.running
    for token in range(50, 57):
        first.append(token)
    second.append(60)
    # 3 is chosen first and leaves 8 of 9. Then 1 wants two blocks more, and only one is free.
    assert run_step(scheduler) == [(1, 5, 8, True), (2, 3, 1, False)]


def test_schedule_budget_used_up_leaves_the_others_out():
    scheduler = make_scheduler(token_budget=4)
    for request_id in (1, 2):
        scheduler.add(make_sequence(request_id, [request_id]))
    run_step(scheduler)
    for sequence in scheduler.running:
        for token in range(5):  # several tokens may become known at once, as guesses would
            sequence.append(token)
    assert run_step(scheduler) == [(1, 1, 4, False)]
    assert run_step(scheduler) == [(1, 5, 2, True), (2, 1, 2, False)]


def test_preempt_sequence_alone_that_outgrows_all_blocks_is_a_bug_of_ours():
    scheduler = make_scheduler(num_blocks=1)
    scheduler.add(make_sequence(1, [1, 2, 3, 4]))
    run_step(scheduler)
    with pytest.raises(RuntimeError, match="Request 1 is alone and does not fit"):
        scheduler.schedule()


def test_schedule_sequence_alone_waits_for_a_block_that_is_still_being_saved():
    scheduler = make_scheduler(num_blocks=2)
    saved = make_sequence(1, [1, 2, 3, 4])
    scheduler.add(saved)
    run_step(scheduler)
    block_ids = list(saved.block_table)
    scheduler._kv.pin(block_ids)
    scheduler.remove(saved.request_id)
    scheduler.add(make_sequence(2, [5, 6, 7, 8]))
    assert run_step(scheduler) == [(2, 0, 4, True)]
    scheduler.add(make_sequence(3, [9]))
    assert run_step(scheduler) == []  # nor does the one that came later begin
    assert (scheduler.is_only_loading, scheduler.preemptions) == (True, 0)
    scheduler._kv.unpin(block_ids)
    assert run_step(scheduler) == [(2, 4, 1, True)]


def test_preempt_under_pressure_all_finish_with_the_tokens_they_get_alone():
    prompts = {i: [1000 + (7 * i + j) % 40 for j in range(3 + 2 * i)] for i in range(6)}
    expected = {}
    for i, prompt in prompts.items():
        expected[i] = list(prompt)
        for _ in range(12):
            expected[i].append(next_token(expected[i]))
    scheduler = make_scheduler(num_blocks=8, token_budget=5)
    for i, prompt in prompts.items():
        scheduler.add(make_sequence(i, prompt))
    finished = {}
    for _ in range(1000):
        if not scheduler.has_work:
            break
        run_step(scheduler)
        for sequence in scheduler.running:
            if len(sequence.token_ids) == len(expected[sequence.request_id]):
                scheduler.remove(sequence.request_id)
                finished[sequence.request_id] = sequence.token_ids
    assert finished == expected
    assert list(finished) == sorted(finished)
    assert scheduler.preemptions > 0
    assert counts(scheduler).used == 0


# --- integrity --------------------------------------------------------------------------------


def test_check_integrity_values_without_blocks_are_reported():
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, [1, 2]))
    run_step(scheduler)
    scheduler.running[0].num_computed = 5
    with pytest.raises(RuntimeError, match="Request 1 has values without blocks"):
        scheduler.check_integrity()


def test_check_integrity_waiting_sequence_with_values_is_reported():
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, [1, 2]))
    scheduler.waiting[0].num_computed = 1
    with pytest.raises(RuntimeError, match="Request 1 waits and holds blocks"):
        scheduler.check_integrity()


# --- any order of events ----------------------------------------------------------------------


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps, aborts and finishes in any order, with memory always too small.

    The mover plays the KV tensors: for each slot the history up to its token, that is, all that its
    value depends on. A computed slot must hold the history of the sequence that reads it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = make_scheduler(num_blocks=6, token_budget=7, max_running=4)
        self.next_id = 0
        self.limits: dict[int, int] = {}

    @rule(start=st.integers(0, 2), length=st.integers(1, 16), reply=st.integers(1, 8))
    def add(self, start, length, reply):
        self.next_id += 1
        self.limits[self.next_id] = length + reply
        self.scheduler.add(make_sequence(self.next_id, list(range(start, start + length))))

    @precondition(lambda self: self.scheduler.has_work)
    @rule()
    def step(self):
        oldest = next(iter(self.scheduler.running), None)
        chunks = self.scheduler.schedule()
        assert chunks
        assert oldest is None or oldest in [chunk.sequence for chunk in chunks]
        assert sum(chunk.num_tokens for chunk in chunks) <= 7
        assert len({chunk.sequence.request_id for chunk in chunks}) == len(chunks)
        compute(self.scheduler, chunks)
        self.scheduler.commit(chunks)
        for chunk in chunks:
            self.sample(chunk)

    def sample(self, chunk: ScheduledChunk) -> None:
        sequence = chunk.sequence
        if not chunk.needs_logits:
            assert sequence.num_pending > 0
        elif len(sequence.token_ids) + 1 >= self.limits[sequence.request_id]:
            assert self.scheduler.remove(sequence.request_id) is sequence
        else:
            sequence.append(len(sequence.token_ids))

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def abort(self, data):
        everyone = [*self.scheduler.running, *self.scheduler.waiting]
        sequence = data.draw(st.sampled_from(everyone))
        removed = self.scheduler.remove(sequence.request_id)
        assert removed is sequence
        assert removed.block_table == []

    @precondition(lambda self: self.scheduler.running)
    @rule()
    def fail(self):
        """A step that is never committed, because the device failed."""
        for chunk in self.scheduler.schedule():
            self.scheduler.remove(chunk.sequence.request_id, is_sound=False)

    @rule()
    def forget(self):
        self.scheduler._kv.clear_cached()

    @invariant()
    def is_sound(self):
        self.scheduler.check_integrity()
        everyone = ids(self.scheduler.running) + ids(self.scheduler.waiting)
        assert everyone == sorted(everyone)  # first come, first served
        assert len(self.scheduler.running) <= 4

    def teardown(self):
        for _ in range(2000):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work
        self.scheduler.check_integrity()
        assert counts(self.scheduler).used == 0


TestAnyOrderOfEvents = SchedulerMachine.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
