"""Sequences whose blocks are on their way: others go on, and nothing is lost or read too early."""

import pytest

from inference.kv_cache.manager import KvCacheManager
from inference.kv_cache.ram_tier import RamTier
from inference.metrics import BlockCounts
from inference.request import RequestId
from inference.scheduler import Scheduler
from inference.sequence import Sequence
from tests.inference.memory_tiers import FakeDisk, FakeMover

P = 4


class Desk:
    """A scheduler with a mover whose loads end when a test says so, and a clock set by hand."""

    def __init__(
        self,
        num_blocks: int = 16,
        *,
        num_slots: int = 0,
        has_disk: bool = False,
        token_budget: int = 8,
        max_running: int = 16,
    ) -> None:
        self.disk = FakeDisk() if has_disk else None
        self.mover = FakeMover(P, self.disk)
        self.ram = RamTier(num_slots)
        self.kv = KvCacheManager(
            num_blocks, P, namespace=b"m", mover=self.mover, ram=self.ram, disk=self.disk
        )
        self.now = 0.0
        self.scheduler = Scheduler(
            self.kv,
            token_budget=token_budget,
            max_running=max_running,
            mover=self.mover,
            clock=lambda: self.now,
        )
        self.num_added = 0

    def add(self, token_ids: list[int], chat: str = "chat") -> Sequence:
        self.num_added += 1
        sequence = Sequence(RequestId(self.num_added), chat, token_ids)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> list[tuple[int, int, int]]:
        chunks = self.scheduler.schedule()
        for chunk in chunks:
            sequence = chunk.sequence
            text = sequence.token_ids[: chunk.start + chunk.num_tokens]
            self.mover.compute(sequence.block_table, text, chunk.start)
        self.scheduler.commit(chunks)
        for chunk in chunks:
            if chunk.needs_logits:
                chunk.sequence.append(chunk.sequence.token_ids[-1] + 1)
        self.scheduler.check_integrity()
        return [(c.sequence.request_id, c.start, c.num_tokens) for c in chunks]

    def run(self, token_ids: list[int], chat: str = "chat") -> None:
        """A whole request, saved at its end; one token is sampled."""
        sequence = self.add(token_ids, chat)
        while sequence.num_computed < len(token_ids):
            self.mover.finish_all()
            self.step()
        table = sequence.block_table
        self.kv.seal(table, token_ids, len(token_ids), chat)
        if self.disk is not None:
            self.disk.save(self.kv.held(table, token_ids, len(token_ids)), self.mover)
        self.scheduler.remove(sequence.request_id)

    def push_out(self) -> None:
        """Evict all that is cached."""
        table: list[int] = []
        assert self.kv.grow(table, self.kv.num_available * P)
        self.kv.release(table)


def make_put_aside(length: int = 9, *, num_blocks: int = 16, max_running: int = 16) -> Desk:
    """A desk whose RAM holds the text 0 ... length - 1."""
    desk = Desk(num_blocks, num_slots=16, max_running=max_running)
    desk.run(list(range(length)))
    desk.push_out()
    assert desk.kv.counts().cached == 0
    return desk


def places(desk: Desk) -> tuple[list[int], ...]:
    """Requests that run, load and wait."""
    scheduler = desk.scheduler
    queues = (scheduler.running, scheduler.loading, scheduler.waiting)
    return tuple([sequence.request_id for sequence in queue] for queue in queues)


def has_only_loads(desk: Desk) -> bool:
    return desk.scheduler.is_only_loading


def test_loading_sequence_holds_its_blocks_and_runs_when_they_are_there():
    desk = make_put_aside()
    sequence = desk.add(list(range(12)))
    assert desk.step() == []
    assert places(desk) == ([], [2], [])
    assert desk.scheduler.has_work
    assert has_only_loads(desk)
    assert len(sequence.block_table) == 3
    assert desk.kv.counts() == BlockCounts(total=16, free=13, cached=0, used=3)
    desk.mover.finish_all()
    assert desk.step() == [(2, 9, 3)]
    assert places(desk) == ([2], [], [])
    assert not has_only_loads(desk)
    assert (sequence.num_reused, sequence.num_reused_ram, sequence.num_reused_disk) == (9, 9, 0)
    assert (sequence.num_lost, sequence.chain_end) == (0, "different_text")


def test_loading_takes_the_time_until_it_is_noticed():
    desk = make_put_aside()
    sequence = desk.add(list(range(12)))
    desk.now = 5.0
    desk.step()
    desk.now = 5.25
    desk.step()
    assert sequence.restore_s == 0.0
    desk.mover.finish_all()
    desk.now = 6.5
    desk.step()
    assert sequence.restore_s == 1.5


def test_loading_lets_others_decode_prefill_and_begin():
    desk = make_put_aside()
    decoding = desk.add(list(range(100, 102)), "other")
    assert desk.step() == [(2, 0, 2)]
    loading = desk.add(list(range(12)))
    desk.add(list(range(200, 210)), "third")
    assert desk.step() == [(2, 2, 1), (4, 0, 7)]
    assert desk.scheduler.loading == (loading,)
    assert desk.step() == [(2, 3, 1), (4, 7, 3)]
    desk.mover.finish_all()
    assert desk.step() == [(2, 4, 1), (4, 10, 1), (3, 9, 3)]
    assert [s.request_id for s in desk.scheduler.running] == [2, 3, 4]  # in order of arrival
    assert decoding.num_reused == 0


def test_loading_counts_as_running():
    desk = make_put_aside(max_running=1)
    desk.add(list(range(12)))
    desk.add([100])
    assert desk.step() == []
    assert [s.request_id for s in desk.scheduler.waiting] == [3]


def test_loading_two_equal_prompts_in_one_step_the_second_waits():
    desk = make_put_aside()
    one, other = desk.add(list(range(9))), desk.add(list(range(9)))
    assert desk.step() == []
    assert places(desk) == ([], [2], [3])
    desk.mover.finish_all()
    assert desk.step() == [(2, 8, 1), (3, 8, 1)]
    assert one.block_table[:2] == other.block_table[:2]
    assert (other.num_reused, other.num_reused_ram) == (8, 0)


def test_loading_that_fails_is_computed_and_not_counted_as_reused():
    desk = make_put_aside(13)
    sequence = desk.add(list(range(15)))
    desk.step()
    desk.mover.finish(desk.mover.tickets[0], failing=(1,))
    assert desk.step() == [(2, 4, 8)]
    assert (sequence.num_reused, sequence.num_reused_ram, sequence.num_lost) == (4, 4, 9)
    assert desk.step() == [(2, 12, 3)]


def test_loading_from_disk_is_counted_apart():
    desk = Desk(has_disk=True)
    desk.run(list(range(10)))
    desk.kv.clear_cached()
    sequence = desk.add(list(range(11)))
    desk.step()
    desk.mover.finish_all()
    assert desk.step() == [(2, 10, 1)]
    assert (sequence.num_reused, sequence.num_reused_ram, sequence.num_reused_disk) == (10, 0, 10)
    assert sequence.chain_end == "all_reused"


def test_remove_while_loading_keeps_the_blocks_until_the_load_has_ended():
    desk = make_put_aside()
    sequence = desk.add(list(range(12)))
    desk.step()
    assert desk.scheduler.remove(sequence.request_id) is sequence
    assert (sequence.block_table, sequence.num_reused) == ([], 0)
    assert not desk.scheduler.has_work
    assert not has_only_loads(desk)
    assert desk.mover.tickets[0].is_cancelled
    assert desk.scheduler.drain_loads()
    desk.scheduler.check_integrity()
    assert desk.kv.counts().used == 3
    desk.mover.finish_all()
    assert not desk.scheduler.drain_loads()
    desk.scheduler.check_integrity()
    assert desk.kv.counts() == BlockCounts(total=16, free=16, cached=0, used=0)
    assert len(desk.ram.entries()) == 3  # nothing moved up, so nothing is lost


def test_remove_while_loading_lets_an_equal_prompt_in_after_it():
    desk = make_put_aside()
    first = desk.add(list(range(12)))
    desk.step()
    desk.scheduler.remove(first.request_id)
    again = desk.add(list(range(12)))
    assert desk.step() == []
    assert desk.scheduler.waiting == (again,)
    assert has_only_loads(desk)
    desk.mover.finish_all()
    assert desk.step() == []
    assert desk.scheduler.loading == (again,)
    desk.mover.finish_all()
    assert desk.step() == [(3, 9, 3)]


def test_preempted_sequence_comes_back_from_ram_and_keeps_its_first_numbers():
    desk = Desk(4, num_slots=4, token_budget=32)
    old, young = desk.add(list(range(8)), "old"), desk.add(list(range(100, 107)), "young")
    assert desk.step() == [(1, 0, 8), (2, 0, 7)]
    assert desk.step() == [(1, 8, 1)]  # a third block: the young one's tail goes to RAM
    assert desk.scheduler.preemptions == 1
    assert [text.token_ids for text, _ in desk.ram.entries()] == [(104, 105, 106)]
    desk.scheduler.remove(old.request_id)
    assert desk.step() == []
    assert desk.scheduler.loading == (young,)
    desk.mover.finish_all()
    desk.now = 9.0
    assert desk.step() == [(2, 7, 1)]
    assert (young.num_reused, young.num_reused_ram, young.restore_s) == (0, 0, 0.0)
    assert young.chain_end == "nothing_cached"


def test_running_that_lacks_blocks_waits_for_a_load_and_nobody_is_let_in_before_it():
    desk = make_put_aside(9, num_blocks=4)
    running = desk.add(list(range(100, 103)), "other")
    assert desk.step() == [(2, 0, 3)]
    loading = desk.add(list(range(11)))
    assert desk.step() == [(2, 3, 1)]
    assert desk.scheduler.loading == (loading,)  # it took the last blocks
    assert desk.step() == []
    desk.scheduler.remove(loading.request_id)
    third = desk.add([200], "third")
    assert desk.step() == []
    assert has_only_loads(desk)
    assert desk.scheduler.waiting == (third,)
    desk.mover.finish_all()
    assert desk.step() == [(2, 4, 1), (4, 0, 1)]
    assert running.num_computed == 5


def test_running_that_lacks_blocks_waits_while_others_are_saved():
    desk = Desk(2)
    desk.run([1, 2, 3, 4], "saved")
    desk.kv.pin([0])
    desk.add([50, 51, 52, 53], "other")
    assert desk.step() == [(2, 0, 4)]
    assert desk.step() == []
    assert has_only_loads(desk)
    desk.kv.unpin([0])
    assert desk.step() == [(2, 4, 1)]


def test_loads_that_end_in_another_order_run_in_the_order_of_arrival():
    desk = Desk(num_slots=16)
    desk.run(list(range(6)), "one")
    desk.run(list(range(100, 106)), "other")
    desk.push_out()
    desk.add(list(range(7)), "one")
    desk.add(list(range(100, 107)), "other")
    assert desk.step() == []
    desk.mover.finish(desk.mover.tickets[1])
    assert desk.step() == [(4, 6, 1)]
    desk.mover.finish_all()
    assert desk.step() == [(3, 6, 1), (4, 7, 1)]
    assert [s.request_id for s in desk.scheduler.running] == [3, 4]


def test_load_without_a_mover_is_a_bug_of_ours():
    desk = make_put_aside()
    scheduler = Scheduler(desk.kv, token_budget=8)
    scheduler.add(Sequence(RequestId(9), "chat", list(range(12))))
    with pytest.raises(AssertionError, match="has a mover"):
        scheduler.schedule()
