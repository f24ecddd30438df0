"""All tiers under stress: chats grow, fork, are edited, stopped, deleted, with memory too small.

The mover keeps what lies in each row, so a chat that read a wrong row would fail at once. Rows of
free blocks and slots are wiped, as if they were filled with NaN.
"""

from collections.abc import Sequence as SequenceOf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.kv_cache.block import BlockHash, HashBlock, hash_block
from inference.kv_cache.manager import KvCacheManager
from inference.kv_cache.ram_tier import RamTier
from inference.metrics import BlockCounts
from inference.request import RequestId
from inference.scheduler import Scheduler
from inference.sequence import ScheduledChunk, Sequence
from tests.inference.memory_tiers import FakeDisk, FakeMover

pytestmark = pytest.mark.slow

P = 4
NUM_BLOCKS = 10
NUM_SLOTS = 6
MAX_TOKENS = NUM_BLOCKS * P - 2
TOKEN_BUDGET = 7
MAX_RUNNING = 3


def colliding_hash(
    namespace: bytes, parent_key: BlockHash, token_ids: SequenceOf[int]
) -> BlockHash:
    """The same for all texts that end alike, whatever came before: so their children meet."""
    return BlockHash(bytes([token_ids[-1] % 8, len(token_ids)]))


class TierMachine(RuleBasedStateMachine):
    """Chats of consecutive integers in any order of events."""

    hash_block: HashBlock = staticmethod(hash_block)
    has_disk = True

    def __init__(self) -> None:
        super().__init__()
        self.disk = FakeDisk() if self.has_disk else None
        self.mover = FakeMover(P, self.disk)
        self.ram = RamTier(NUM_SLOTS)
        self.kv = KvCacheManager(
            NUM_BLOCKS,
            P,
            namespace=b"model",
            mover=self.mover,
            ram=self.ram,
            disk=self.disk,
            hash_block=self.hash_block,
        )
        self.scheduler = Scheduler(
            self.kv, token_budget=TOKEN_BUDGET, max_running=MAX_RUNNING, mover=self.mover
        )
        self.chats: dict[str, list[int]] = {}
        self.limits: dict[int, int] = {}
        self.saves: list[list[int]] = []
        self.num_requests = self.num_chats = 0

    # --- what a person does ---------------------------------------------------------------

    @precondition(lambda self: len(self.chats) < 6)
    @rule(start=st.integers(0, 2), length=st.integers(1, 12), first=st.sampled_from([None, 50, 51]))
    def new_chat(self, start, length, first):
        text = list(range(start, start + length))
        if first is not None:  # another chat that goes on alike
            text[0] = first
        self._add_chat(text, reply=3)

    @precondition(lambda self: self.chats and len(self.chats) < 6)
    @rule(data=st.data())
    def fork(self, data):
        text = data.draw(st.sampled_from(list(self.chats.values())))
        self._add_chat(text[: data.draw(st.integers(1, len(text)))], reply=3)

    @precondition(lambda self: self.chats)
    @rule(data=st.data(), length=st.integers(1, 9), reply=st.integers(1, 7))
    def turn(self, data, length, reply):
        chat = data.draw(st.sampled_from(sorted(self.chats)))
        text = self.chats[chat]
        text += range(text[-1] + 1, text[-1] + 1 + length)
        self._ask(chat, reply)

    @precondition(lambda self: self.chats)
    @rule(data=st.data(), reply=st.integers(1, 7))
    def edit(self, data, reply):
        chat = data.draw(st.sampled_from(sorted(self.chats)))
        text = self.chats[chat]
        kept = data.draw(st.integers(0, len(text) - 1))
        text[kept:] = [text[kept] + 1]
        self._ask(chat, reply)

    @precondition(lambda self: self.chats)
    @rule(data=st.data(), reply=st.integers(1, 7))
    def make_again(self, data, reply):
        self._ask(data.draw(st.sampled_from(sorted(self.chats))), reply)

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def stop(self, data):
        scheduler = self.scheduler
        everyone = [*scheduler.running, *scheduler.loading, *scheduler.waiting]
        sequence = data.draw(st.sampled_from(everyone))
        removed = scheduler.remove(sequence.request_id)
        assert removed is sequence
        assert removed.block_table == []

    @precondition(lambda self: len(self.chats) > 3)
    @rule(data=st.data())
    def delete(self, data):
        chat = data.draw(st.sampled_from(sorted(self.chats)))
        self._delete(chat)

    @precondition(lambda self: len(self.chats) > 4)
    @rule()
    def clear(self):
        self.kv.clear_cached()
        assert self.kv.counts().cached == 0

    @precondition(lambda self: len(self.chats) > 2)
    @rule(limit=st.integers(0, NUM_SLOTS))
    def change_ram_budget(self, limit):
        self.ram.set_limit(limit)

    # --- what the machine does ------------------------------------------------------------

    @precondition(lambda self: self.scheduler.has_work)
    @rule(count=st.integers(1, 20))
    def steps(self, count):
        for _ in range(count):
            if not self.step():
                return

    def step(self) -> bool:
        """Whether there is something to compute in the next one, too."""
        scheduler = self.scheduler
        chunks = scheduler.schedule()
        assert chunks or scheduler.is_only_loading
        assert sum(chunk.num_tokens for chunk in chunks) <= TOKEN_BUDGET
        for chunk in chunks:
            sequence = chunk.sequence
            assert chunk.start == sequence.num_computed
            assert self.kv.is_writable(sequence.block_table, chunk.start, chunk.num_tokens)
            tokens = sequence.token_ids[: chunk.start + chunk.num_tokens]
            self.mover.compute(sequence.block_table, tokens, chunk.start)
        scheduler.commit(chunks)
        for chunk in chunks:
            self._sample(chunk)
        self.is_sound()
        return bool(chunks) and scheduler.has_work

    @precondition(lambda self: self.scheduler.running)
    @rule()
    def fail(self):
        """A step that is never committed, because the device failed."""
        for chunk in self.scheduler.schedule():
            self.scheduler.remove(chunk.sequence.request_id, is_sound=False)

    @precondition(lambda self: self.mover.tickets)
    @rule(data=st.data())
    def load_ends(self, data):
        self.mover.finish(data.draw(st.sampled_from(self.mover.tickets)))

    @precondition(lambda self: self.mover.tickets)
    @rule(data=st.data())
    def load_fails(self, data):
        ticket = data.draw(st.sampled_from(self.mover.tickets))
        failing = data.draw(st.sets(st.integers(0, len(ticket.loads) - 1), min_size=1))
        self.mover.finish(ticket, failing=tuple(failing))

    @precondition(lambda self: self.disk is not None and self.disk.pieces)
    @rule(data=st.data(), is_gone=st.booleans())
    def file_is_damaged(self, data, is_gone):
        assert self.disk is not None
        key = data.draw(st.sampled_from(sorted(self.disk.pieces)))
        if is_gone:
            del self.disk.pieces[key]
        else:
            self.disk.damaged.add(key)

    @precondition(lambda self: self.saves)
    @rule()
    def save_ends(self):
        self.kv.unpin(self.saves.pop(0))

    # --- what must be true ----------------------------------------------------------------

    @invariant()
    def is_sound(self) -> None:
        scheduler = self.scheduler
        scheduler.check_integrity()
        assert len(scheduler.running) + len(scheduler.loading) <= MAX_RUNNING
        for queue in (scheduler.running, scheduler.waiting):
            places = [sequence.place for sequence in queue]
            assert places == sorted(places)
        assert self.ram.num_used - len(self.ram._pins) <= self.ram.limit
        self._wipe_what_is_free()

    def teardown(self):
        for _ in range(3000):
            if not self.scheduler.has_work:
                break
            self.mover.finish_all()
            while self.saves:
                self.save_ends()
            self.step()
        assert not self.scheduler.has_work
        self.mover.finish_all()
        while self.saves:
            self.save_ends()
        self.scheduler.drain_loads()
        self.is_sound()
        assert self.kv.counts().used == 0
        for chat in list(self.chats):
            self._delete(chat)
        self.kv.clear_cached()
        self.is_sound()
        assert self.kv.counts() == BlockCounts(NUM_BLOCKS, free=NUM_BLOCKS)
        assert self.ram.num_used == 0
        assert len(self.kv._residents.owners) == 0

    def _add_chat(self, text: list[int], reply: int) -> None:
        self.num_chats += 1
        self.chats[f"chat {self.num_chats}"] = text
        self._ask(f"chat {self.num_chats}", reply)

    def _ask(self, chat: str, num_reply_tokens: int) -> None:
        prompt = self.chats[chat][: MAX_TOKENS - num_reply_tokens]
        self.chats[chat] = prompt
        self.num_requests += 1
        self.limits[self.num_requests] = len(prompt) + num_reply_tokens
        self.scheduler.add(Sequence(RequestId(self.num_requests), chat, prompt))

    def _sample(self, chunk: ScheduledChunk) -> None:
        sequence = chunk.sequence
        if not chunk.needs_logits:
            return
        if len(sequence.token_ids) < self.limits[sequence.request_id]:
            sequence.append(sequence.token_ids[-1] + 1)
            return
        table, num_computed = sequence.block_table, sequence.num_computed
        self.kv.seal(table, sequence.token_ids, num_computed, sequence.conversation_id)
        held = self.kv.held(table, sequence.token_ids, num_computed)
        assert sum(len(block.token_ids) for block in held) == num_computed
        block_ids = [block.block_id for block in held]
        self.kv.pin(block_ids)
        self.saves.append(block_ids)
        if len(self.saves) > 2:
            self.save_ends()
        if self.disk is not None:
            self.disk.save(held, self.mover)
        assert self.scheduler.remove(sequence.request_id) is sequence
        self.chats[sequence.conversation_id] = list(sequence.token_ids)

    def _delete(self, chat: str) -> None:
        del self.chats[chat]
        scheduler = self.scheduler
        for sequence in (*scheduler.running, *scheduler.loading, *scheduler.waiting):
            if sequence.conversation_id == chat:
                scheduler.remove(sequence.request_id)
        self.kv.forget(chat)
        owners = self.kv._residents.owners
        assert all(chat not in owners.of(key) for key in set(owners.keys()))
        assert self.kv.forget(chat) == 0

    def _wipe_what_is_free(self) -> None:
        for start, end in self.kv._pool._free.runs():
            for block_id in range(start, end):
                self.mover.wipe(block_id)
        for slot in self.ram._free:
            self.mover.slots.pop(slot, None)


class CollidingTierMachine(TierMachine):
    """A few keys for all texts; only comparing tokens keeps chats apart. No disk: a file is found
    by its key and proven by its parent's, so there a collision would be a wrong hit.
    """

    hash_block = staticmethod(colliding_hash)
    has_disk = False


TestTiers = TierMachine.TestCase
TestTiers.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestCollidingTiers = CollidingTierMachine.TestCase
TestCollidingTiers.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
